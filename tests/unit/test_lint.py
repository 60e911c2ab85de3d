"""Each kind of finding, on a plan that has it and on one that has not."""

from __future__ import annotations

import pytest

from reshard import (
    Box,
    BoxLayout,
    Elementwise,
    Form,
    Layout,
    LayoutError,
    Mesh,
    Part,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
)
from reshard.finding import Finding
from reshard.lint import lint_names, lint_specs
from reshard.topology import Topology

ROWS = Layout(Mesh.of(x=2), (Shard(0),))
COLUMNS = Layout(Mesh.of(x=2), (Shard(1),))
SHAPE = (512, 512)


def spec(name="w", dtype="float32", layout=ROWS, shape=SHAPE, **options):
    return TensorSpec(name, shape, dtype, layout, **options)


def plan_of(src, dst, **options):
    src = [src] if isinstance(src, TensorSpec) else src
    dst = [dst] if isinstance(dst, TensorSpec) else dst
    return make_plan(src, [each.shifted(2) for each in dst], **options)


def found(plan, code):
    return [finding for finding in plan.lint() if finding.code == code]


def test_a_plain_plan_has_no_findings():
    assert plan_of(spec(), spec(layout=COLUMNS)).lint() == []


# ---- sides that do not pair up -------------------------------------------------------------------


def test_every_name_without_a_partner_is_listed():
    src = [spec(f"a{i}") for i in range(30)]
    dst = [spec(f"b{i}") for i in range(40)]
    findings = lint_specs(src, dst)
    assert {f.severity for f in findings} == {"error"}
    assert [f.subject for f in findings if f.code == "uncovered"] == [s.name for s in dst]
    assert [f.subject for f in findings if f.code == "unused"] == [s.name for s in src]


def test_doubled_names_shapes_and_missing_casts_are_mismatches():
    doubled = [spec("w"), spec("v", parts=Part("w"))]
    (finding,) = lint_specs(doubled, [spec("w")])
    assert (finding.code, finding.subject) == ("mismatch", "w")
    assert "both source tensors 'w' and 'v' provide it" in finding.message
    (finding,) = lint_specs([spec()], [spec(shape=(4, 4))])
    assert "canonical shape" in finding.message
    (finding,) = lint_specs([spec()], [spec(dtype="bfloat16")])
    assert "no cast rule" in finding.message


def test_tensors_that_one_cast_would_let_through_are_one_finding():
    src = [spec(f"l.{i}.w") for i in range(9)] + [spec("v", dtype="float16")]
    dst = [spec(f"l.{i}.w", dtype="bfloat16") for i in range(9)] + [spec("v", dtype="bfloat16")]
    first, second = lint_specs(src, dst)
    assert (first.code, first.subject, second.subject) == ("mismatch", "l.0.w", "v")
    assert first.message.endswith("The same holds for 8 tensors like it.")
    assert "like it" not in second.message


def test_rules_that_apply_to_nothing():
    src, dst = [spec("v"), spec("w")], [spec("w", dtype="bfloat16")]
    given = {"casts": [("float32", "bfloat16")], "allow_unmatched": ["v"]}
    assert lint_specs(src, dst, **given) == []
    given["casts"].append(("float16", "bfloat16"))
    given["allow_unmatched"] += ["w", "x.*"]  # w has a partner, so it needs no leave
    found = lint_specs(src, dst, **given)
    assert [(f.severity, f.code, f.subject) for f in found] == [
        ("warning", "idle-rule", "float16 to bfloat16"),
        ("warning", "idle-rule", "w"),
        ("warning", "idle-rule", "x.*"),
    ]


def test_a_rule_that_a_refused_tensor_needs_is_not_idle():
    found = lint_specs(
        [spec()], [spec(dtype="bfloat16", shape=(4, 4))], casts=[("float32", "bfloat16")]
    )
    assert [f.code for f in found] == ["mismatch"]


def test_nothing_to_move_is_an_error():
    assert lint_specs([], []) == [Finding("error", "mismatch", "", "there is no tensor to move.")]


def test_what_fits_or_is_allowed_is_no_finding():
    assert lint_specs([spec()], [spec()]) == []
    assert lint_specs([spec(), spec("v")], [spec()], allow_unmatched=["v"]) == []
    with pytest.raises(LayoutError):
        lint_specs([spec()], [spec()], casts=("float32", "bfloat16"))


def test_names_that_no_rule_knows_come_by_kind():
    findings = lint_names(["m.0.x", "m.1.x", "y"])
    assert [(f.severity, f.subject) for f in findings] == [("warning", "m.*.x"), ("warning", "y")]
    assert "(2 tensors)" in findings[0].message
    assert "(1 tensor)" in findings[1].message


# ---- plans ---------------------------------------------------------------------------------------


def test_elements_that_the_source_does_not_hold():
    half = BoxLayout({0: Box((0, 0), (256, 512)), 1: Box((0, 0), (256, 512))})
    src = [spec("v", layout=half), spec("w", layout=half), spec("z")]
    plan = plan_of(src, [spec("v"), spec("w"), spec("z")])
    (finding,) = plan.lint()
    assert (finding.severity, finding.code, finding.subject) == ("error", "not-held", "v")
    assert "The same holds for 1 tensor like it" in finding.message


def test_elements_that_a_rank_stores_twice():
    repeated = Form("(heads repeat) d -> heads d", {"repeat": 2}, repeat=["repeat"])
    dst = [
        spec(f"k.{i}.w", shape=(1024, 512), layout=Layout.replicated(ROWS.mesh), parts=repeated)
        for i in range(3)
    ]
    plan = plan_of([spec(f"k.{i}.w") for i in range(3)], dst)
    (finding,) = found(plan, "aliasing")
    assert (finding.severity, finding.subject) == ("note", "k.*.w")
    assert "a destination rank stores elements more than once" in finding.message
    assert "Tensors like it: 3" in finding.message


def test_boxes_of_the_source_that_meet():
    src = spec(
        "k",
        shape=(1024, 512),
        layout=Layout.replicated(ROWS.mesh),
        parts=Form("(heads repeat) d -> heads d", {"repeat": 2}, repeat=["repeat"]),
    )
    (finding,) = found(plan_of(src, spec("k")), "aliasing")
    assert "a source rank holds elements more than once" in finding.message


def test_tied_names():
    tied = Part("embed", aliases=("lm_head",))
    plan = plan_of(spec("embed", parts=tied), spec("embed", parts=tied))
    (finding,) = found(plan, "aliasing")
    assert finding.message.startswith("lm_head is the same storage")


@pytest.mark.parametrize(
    ("src", "dst", "severity", "code"),
    [
        ("float32", "bfloat16", "warning", "narrowing"),
        ("float16", "bfloat16", "warning", "narrowing"),
        ("bfloat16", "float32", "note", "widening"),
    ],
)
def test_casts(src, dst, severity, code):
    plan = plan_of(spec(dtype=src), spec(dtype=dst), casts=[(src, dst)])
    (finding,) = plan.lint()
    assert (finding.severity, finding.code) == (severity, code)
    assert finding.subject == f"{src} to {dst}"


def test_types_that_differ_from_layer_to_layer():
    src = [spec("l.0.w"), spec("l.1.w"), spec("l.2.w", dtype="bfloat16")]
    (finding,) = plan_of(src, src).lint()
    assert (finding.severity, finding.code, finding.subject) == (
        "warning",
        "mixed-dtypes",
        "l.*.w",
    )
    assert "float32 in 2 and bfloat16 in 1" in finding.message


@pytest.mark.parametrize(("padding", "done"), [("keep", "left alone"), ("zero", "set to zero")])
def test_padding(padding, done):
    part = Part("w", Form("rows columns -> rows columns", {"rows": 500}))
    plan = plan_of(spec(shape=(500, 512)), spec(parts=part, padding=padding))
    (finding,) = found(plan, "padding")
    assert finding.severity == "note"
    assert "24 KiB of the destination's" in finding.message
    assert done in finding.message


def test_a_budget_that_is_too_small():
    (finding,) = plan_of(spec(), spec(layout=COLUMNS), staging_bytes=4096).lint()
    assert (finding.severity, finding.code) == ("error", "staging")
    assert "give at least" in finding.message


@pytest.mark.parametrize(
    ("count", "shape", "severity", "text"),
    [
        (3, (8, 8), "note", "all of it moves in one round"),
        (200, (512, 512), "warning", "1 MiB of staging take 101 rounds"),
    ],
)
def test_messages_that_take_long_to_post(count, shape, severity, text):
    """More memory helps where there are several rounds."""
    sides = [
        [spec(f"w{i}", shape=shape, layout=layout) for i in range(count)]
        for layout in (Layout(Mesh.of(x=4), (Shard(0),)), Layout(Mesh.of(x=4), (Shard(1),)))
    ]
    dst = [each.shifted(4) for each in sides[1]]
    topology = Topology.dgx_h100(8)
    (finding,) = found(
        make_plan(sides[0], dst, topology=topology, staging_bytes=1 << 20), "staging"
    )
    assert finding.severity == severity
    assert text in finding.message


def test_small_messages():
    (finding,) = plan_of(spec(shape=(8, 8)), spec(shape=(8, 8), layout=COLUMNS)).lint()
    assert (finding.severity, finding.code) == ("warning", "small-messages")
    assert "4 of 4 streams" in finding.message


def test_uneven_layouts_are_notes():
    uneven = BoxLayout({0: Box((0, 0), (400, 512)), 1: Box((400, 0), (112, 512))})
    findings = found(plan_of(spec(layout=uneven), spec(layout=COLUMNS)), "imbalance")
    assert [(f.severity, f.subject) for f in findings] == [("note", "rank 0")]
    assert "uneven" in findings[0].message


def test_dims_that_do_not_divide():
    five = Layout(Mesh.of(x=5), (Shard(0),))
    src = [spec(f"l.{i}.w", layout=five) for i in range(3)]
    dst = [spec(f"l.{i}.w").shifted(5) for i in range(3)]
    (finding,) = [f for f in make_plan(src, dst).lint() if f.code == "uneven"]
    assert (finding.severity, finding.subject) == ("note", "l.*.w")
    assert finding.message.startswith("the source cuts the 512 indices of dim 0 into 5 parts")
    assert "the largest share is 103, the smallest 100 (chunk). Tensors like it: 3." in (
        finding.message
    )


def test_ranks_that_pass_on_what_they_received():
    whole = Layout.replicated(Mesh.of(x=4))
    topology = Topology((0, 1, 2, 2, 2, 2), (0, 1, 2, 2, 2, 2), 1, 1.0, 1.0)
    plan = plan_of(spec(), spec(layout=whole), topology=topology)
    assert plan.num_hops > 1
    assert [f.severity for f in found(plan, "relays")] == ["note"]


def test_the_worst_comes_first():
    src = [spec("a", dtype="bfloat16", shape=(8, 8)), spec("b", shape=(8, 8))]
    dst = [spec("a", shape=(8, 8)), spec("b", dtype="bfloat16", shape=(8, 8))]
    casts = [("float32", "bfloat16"), ("bfloat16", "float32")]
    plan = plan_of(src, dst, casts=casts, staging_bytes=4096)
    severities = [finding.severity for finding in plan.lint()]
    assert severities == sorted(severities, key=("error", "warning", "note").index)
    assert {"error", "warning", "note"} <= set(severities)


def test_replicas_of_a_source_share_its_sends():
    src = spec(layout=Layout(Mesh.of(dp=2), (Replicate(),)))
    assert plan_of(src, spec(layout=COLUMNS)).lint() == []


# ---- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domains", "remedy"),
    [
        (
            (0, 1, 1),
            "In domain 1 there are ranks of both sides; give each side domains of its own.",
        ),
        ((0, 2, 1), None),
    ],
)
def test_a_card_that_is_busy_for_much_longer_than_the_floor(domains, remedy):
    # Ranks 0 and 1 are sources, rank 2 takes a tensor that rank 0 alone holds.
    topology = Topology(domains, domains, 2, 1e9, 1e9)
    src = [spec(layout=Layout.replicated(Mesh(("x",), (1,), (rank,)))) for rank in (0, 1)]
    src = [src[0], spec("v", layout=src[1].layout, shape=(64, 64))]
    dst = [spec("w", layout=src[0].layout), spec("v", layout=src[0].layout, shape=(64, 64))]
    plan = plan_of(src, dst, topology=topology)
    findings = found(plan, "far-from-floor")
    assert len(findings) == (remedy is not None)
    for finding in findings:
        assert (finding.severity, finding.subject) == ("warning", "card into rank 2")
        assert "1.05 ms, 2.00 times the floor of 524 us (into domain 1)" in finding.message
        assert finding.message.endswith(remedy)


def test_what_a_domain_lacks_may_be_wanted_by_few_of_its_ranks():
    layouts = [
        Layout(Mesh.of(x=4), (Shard(0),)),
        Layout(Mesh.of(dp=2, x=2), (Replicate(), Shard(0))),
    ]
    topology = Topology((0, 0, 1, 1), (0, 0, 1, 1), 2, 1e9, 1e12)
    plan = make_plan(*[[spec(layout=each)] for each in layouts], topology=topology)
    (finding,) = found(plan, "far-from-floor")
    assert "2.00 times the floor" in finding.message
    assert "Ranks are on both sides: what a domain lacks few of them may want." in finding.message


def test_links_that_are_busy_for_much_longer_than_the_floor():
    """Eight replicas of a domain exchange over links that are hardly faster than cards."""
    hosts = tuple(rank // 8 for rank in range(16))
    plan = make_plan(
        [spec(layout=Layout.replicated(Mesh.of(x=8)), shape=(8192, 8192))],
        [spec(layout=Layout.replicated(Mesh.of(x=8)).shifted(8), shape=(8192, 8192))],
        topology=Topology(hosts, hosts, 8, 1e9, 2e9),
    )
    (finding,) = found(plan, "far-from-floor")
    assert finding.subject.startswith("link ")
    assert finding.message.endswith("exchange; faster ones would help.")


def test_small_messages_without_a_topology_say_that_there_was_none():
    small = spec(shape=(8, 8))
    (finding,) = found(plan_of(small, small), "small-messages")
    assert "This is without a topology" in finding.message
    (finding,) = found(plan_of(small, small, topology=Topology.dgx_h100(4)), "small-messages")
    assert "without a topology" not in finding.message


# ---- values --------------------------------------------------------------------------------------


def ruled(name, rule, **options):
    return spec(name, parts=Part(name, elementwise=rule), **options)


def test_a_change_of_values_is_noted_once_per_kind():
    names = [f"layers.{number}.norm.weight" for number in range(3)]
    rule = Elementwise(offset=-1)
    plan = plan_of(
        [ruled(name, rule) for name in names], [spec(name, layout=COLUMNS) for name in names]
    )
    (finding,) = found(plan, "elementwise")
    assert finding.severity == "note"
    assert "becomes x - 1 at the destination. Tensors like it: 3." in finding.message


def test_rules_that_differ_are_warned_of():
    """Such as a normaliser that one side has in another type."""
    src, dst = Elementwise(divisor=50.5), Elementwise(divisor=50.59644256269407)
    plan = plan_of(ruled("w", src), ruled("w", dst, layout=COLUMNS))
    (finding,) = found(plan, "elementwise")
    assert finding.severity == "warning"
    assert "x / 50.5 * 50.59644256269407" in finding.message
    assert found(plan_of(ruled("w", src), ruled("w", src, layout=COLUMNS)), "elementwise") == []
