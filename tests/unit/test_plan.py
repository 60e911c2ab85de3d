"""Plans: who sends what, what they say of themselves, and what their digest stands for."""

from __future__ import annotations

import dataclasses

import pytest

from reshard import (
    Box,
    BoxLayout,
    DType,
    Elementwise,
    Layout,
    Mesh,
    Part,
    PlanError,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
)
from reshard import plan as plan_module
from reshard.elementwise import change_of
from reshard.matching import match
from reshard.plan import Plan
from reshard.topology import Topology

R = Replicate()
SRC = [
    TensorSpec("w", (4096, 1024), DType.BFLOAT16, Layout(Mesh.of(fsdp=4), (Shard(0),))),
    TensorSpec("norm", (1024,), DType.BFLOAT16, Layout(Mesh.of(fsdp=4), (R,))),
]
DST = [
    TensorSpec("w", (4096, 1024), DType.BFLOAT16, Layout(Mesh.of(tp=2), (Shard(1),)).shifted(4)),
    TensorSpec("norm", (1024,), DType.BFLOAT16, Layout(Mesh.of(tp=2), (R,)).shifted(4)),
]


@pytest.fixture
def plan():
    return make_plan(SRC, DST)


def test_ranks_of_both_sides(plan):
    assert (plan.src_ranks, plan.dst_ranks) == ((0, 1, 2, 3), (4, 5))
    assert plan.ranks == (0, 1, 2, 3, 4, 5)
    assert repr(plan) == "<Plan of 2 tensors, 4 source and 2 destination ranks>"


def test_bytes_of_streams(plan):
    streams = plan.stream_bytes()
    assert streams[0, 4] >= 1024 * 512 * 2
    assert sum(streams.values()) == 4096 * 1024 * 2 + 2 * 1024 * 2
    assert plan.stream_bytes([5]) == {key: n for key, n in streams.items() if key[1] == 5}


def test_what_is_copied_within_a_rank_is_no_stream():
    plan = make_plan(SRC, [spec.shifted(-4) for spec in DST])
    assert all(src != dst for src, dst in plan.stream_bytes())
    assert any(t.src_rank == t.dst_rank for t in plan.transfers())


def test_describe(plan):
    text = plan.describe().splitlines()
    assert text[0].startswith("2 tensors, 4 source ranks -> 2 destination ranks, 8.004 MiB to move")
    assert (
        "w: bfloat16[4096, 1024] (fsdp:S(0))@(fsdp=4) -> [4096, 1024] (tp:S(1))@(tp=2)" in text[1]
    )
    assert "8 transfers" in text[1]
    assert any(line.startswith("sent per source rank: min ") for line in text)
    assert any(line.startswith("received per destination rank: min ") for line in text)
    assert any("rounds of 256 KiB per stream" in line for line in text)
    assert text[-1] == f"digest {plan.digest[:16]}"


def test_explain_says_who_holds_sends_and_receives(plan):
    text = plan.explain("w", 5)
    assert "w in logical dims (d0=4096, d1=1024), bfloat16 on the wire" in text
    assert "source: (fsdp:S(0))@(fsdp=4) on ranks 0 to 3" in text
    assert "destination: (tp:S(1))@(tp=2) on ranks 4 to 5" in text
    assert "rank 5 holds [0:4096, 512:1024]" in text
    assert "receives [0:1024, 512:1024] 1 MiB from rank 0; rank 0 is the only holder" in text
    assert "sends [1024:2048, 0:512] 1 MiB to rank 4" in plan.explain("w", 1)
    assert "one of 4 holders (ranks 0 to 3), which share it out" in plan.explain("norm", 4)


def test_explain_says_of_a_copy_in_place():
    plan = make_plan([SRC[1]], [dataclasses.replace(DST[1], layout=SRC[1].layout)])
    assert "a copy within rank 2, which holds it already" in plan.explain("norm", 2)


def test_explain_of_a_rank_that_has_no_part_in_it():
    elsewhere = [spec.shifted(10) for spec in (SRC[1], DST[1])]
    plan = make_plan([SRC[0], elsewhere[0]], [DST[0], elsewhere[1]])
    assert "rank 10 neither sends nor receives it" in plan.explain("w", 10)


def test_explain_refuses_a_rank_that_no_side_has(plan):
    with pytest.raises(PlanError, match="99: the source has 0 to 3, the destination 4 to 5"):
        plan.explain("w", 99)
    sparse = make_plan(
        [SRC[1]],
        [dataclasses.replace(SRC[1], layout=Layout(Mesh(("x",), (2,), (9, 4)), (R,)))],
    )
    with pytest.raises(PlanError, match="the source has 0 to 3, the destination 4, 9"):
        sparse.explain("norm", 5)


def test_explain_knows_stored_names_too():
    src = dataclasses.replace(SRC[0], name="kernel", parts=SRC[0].parts)
    assert "w in logical dims" in make_plan([src], [DST[0]]).explain("kernel", 0)


def test_explain_of_an_unknown_name_shows_some(plan):
    with pytest.raises(PlanError, match=r"called 'v'; it has 2, such as \['w', 'norm'\]"):
        plan.explain("v", 0)


def digest(src=None, dst=None, **options):
    return make_plan(src or SRC, dst or DST, **options).digest


def changed(specs, index=0, **changes):
    return [
        dataclasses.replace(spec, **changes) if i == index else spec for i, spec in enumerate(specs)
    ]


def test_equal_inputs_have_equal_digests(plan):
    assert digest() == plan.digest
    assert digest([dataclasses.replace(s) for s in SRC], list(DST)) == plan.digest
    assert len(plan.digest) == 64


def with_rule(specs):
    return changed(specs, parts=(Part("w", elementwise=Elementwise(offset=-1)),))


MESH = SRC[0].layout.mesh
OTHERS = {
    "dtype": {"src": changed(SRC, dtype=DType.FLOAT16), "dst": changed(DST, dtype=DType.FLOAT16)},
    "source layout": {"src": changed(SRC, layout=Layout(MESH, (Shard(1),)))},
    "source ranks": {"src": changed(SRC, layout=SRC[0].layout.shifted(10))},
    "order of ranks": {
        "src": changed(SRC, layout=Layout(Mesh(("fsdp",), (4,), (1, 0, 2, 3)), (Shard(0),)))
    },
    "division": {"src": changed(SRC, layout=Layout(MESH, (Shard(0),), (), "balanced"))},
    "destination layout": {"dst": changed(DST, layout=Layout(Mesh.of(tp=2), (R,)).shifted(4))},
    "order of tensors": {"dst": DST[::-1]},
    "fewer tensors": {"src": SRC[:1], "dst": DST[:1]},
    "budget": {"staging_bytes": 1 << 20},
    "rule of the source": {"src": with_rule(SRC)},
    "rule of the destination": {"dst": with_rule(DST)},
    "padding": {"dst": changed(DST, padding="zero")},
    "topology": {"topology": Topology.dgx_h100(6)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_matters_changes_the_digest(plan, what):
    assert digest(**OTHERS[what]) != plan.digest


@pytest.mark.parametrize(
    "change",
    [
        {"name": "v"},
        {"wire_dtype": DType.FLOAT16},
        {"rotation": 99},
        {"change": change_of(Elementwise(scale=2), None)},
    ],
    ids=str,
)
def test_whatever_a_pair_says_of_equal_specs_changes_the_digest(plan, change):
    first, *others = plan.pairs
    other = Plan([first._replace(**change), *others], plan.staging_bytes)
    assert Plan(plan.pairs, plan.staging_bytes).digest == plan.digest
    assert other.digest != plan.digest


def test_other_pairs_of_equal_specs_change_the_digest(plan):
    """As of a part of a stored tensor that one process lets stay without a partner."""
    more = [*plan.pairs, plan.pairs[0]._replace(name="v")]
    assert Plan(more, plan.staging_bytes).digest != plan.digest


def test_one_program_or_two_of_the_same_specs_are_two_plans():
    """Each program begins anew to choose among the replicas, so other ranks send."""
    src, dst = (
        [dataclasses.replace(side[1], name=name, parts=()) for name in ("a", "b")]
        for side in (SRC, DST)
    )
    together = make_plan(src, dst)
    options = {"allow_unused": ("*",)}
    pairs = [pair for spec in dst for pair in match(src, [spec], **options)]
    apart = Plan(pairs, together.staging_bytes)
    assert [pair.dst for pair in apart.pairs] == [pair.dst for pair in together.pairs]
    assert sorted(apart.transfers()) != sorted(together.transfers())
    assert apart.digest != together.digest


def test_the_version_of_the_planner_is_in_the_digest(monkeypatch):
    before = digest()
    monkeypatch.setattr(plan_module, "PLANNER_VERSION", plan_module.PLANNER_VERSION + 1)
    assert digest() != before


def test_check_finds_a_send_without_a_receive(plan, monkeypatch):
    plan.check()
    sends = plan.sends
    monkeypatch.setattr(plan, "sends", lambda rank: sends(rank)[1:])
    with pytest.raises(PlanError, match=r"4 transfers have one end only, such as .* -> 4\."):
        plan.check()


def test_layout_case_g12_equal_replicas_are_read_once():
    """8 replicas of one tensor to one destination: all holders share its bytes."""
    src = TensorSpec("w", (1 << 20,), DType.UINT8, Layout(Mesh.of(dp=8), (R,)))
    dst = TensorSpec("w", (1 << 20,), DType.UINT8, Layout(Mesh(("x",), (1,), (8,)), (R,)))
    streams = make_plan([src], [dst]).stream_bytes()
    assert streams == {(rank, 8): 1 << 17 for rank in range(8)}


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1])
def test_layout_case_f1_counts_around_two_gigabytes(count):
    src = TensorSpec("w", (count,), DType.UINT8, Layout(Mesh.of(fsdp=4), (Shard(0),)))
    dst = TensorSpec("w", (count,), DType.UINT8, Layout(Mesh.of(tp=3), (Shard(0),)).shifted(4))
    plan = make_plan([src], [dst])
    plan.check()
    assert sum(plan.stream_bytes().values()) == count
    assert max(transfer.stop[0] for transfer in plan.transfers()) == count


def test_layout_case_f1_square_of_2_to_the_34_bytes():
    shape = (131072, 131072)
    src = TensorSpec("w", shape, DType.UINT8, Layout(Mesh.of(fsdp=4), (Shard(0),)))
    dst = TensorSpec("w", shape, DType.UINT8, Layout(Mesh.of(tp=4), (Shard(1),)).shifted(4))
    plan = make_plan([src], [dst])
    assert set(plan.stream_bytes().values()) == {2**30}
    assert plan.schedule.num_rounds == 2**30 // (256 << 10)
    assert plan.schedule.staging_bytes <= 64 << 20


def test_a_gap_in_a_source_is_found_when_a_rank_is_planned():
    src = TensorSpec("w", (4,), "int8", BoxLayout({0: Box((0,), (3,))}))
    dst = TensorSpec("w", (4,), "int8", Layout(Mesh.of(x=1), (R,))).shifted(1)
    plan = make_plan([src], [dst])
    for ask in (plan.check, plan.describe, lambda: plan.explain("w", 1), lambda: plan.rank_plan(1)):
        with pytest.raises(PlanError, match="w: "):
            ask()


def test_sums_cost_as_much_as_the_distinct_geometries():
    """Each spec has layouts of its own, as from an adapter that describes tensor by tensor."""

    def side(count, mesh, placement, offset):
        return [
            TensorSpec(f"w{i}", (64, 64), "int8", Layout(mesh(), (placement,))).shifted(offset)
            for i in range(count)
        ]

    def plan_of(count):
        return make_plan(
            side(count, lambda: Mesh.of(x=4), Shard(0), 0),
            side(count, lambda: Mesh.of(x=2), Shard(1), 4),
        )

    for count in (1, 60):
        (batch,) = plan_of(count).rank_plan(5).receives
        assert batch.numbers == tuple(range(count))
        assert [(leg.peer, leg.num_elements) for leg in batch.legs] == [
            (rank, 16 * 32) for rank in range(4)
        ]
    assert "w0 and 59 more" in plan_of(60).describe()
    assert "480 transfers, 240 KiB" in plan_of(60).describe()


# ---- ranks in several domains --------------------------------------------------------------------


def in_domains(*domains, link_bytes_per_second=1.0):
    """Returns a topology whose domains are a host each."""
    return Topology(domains, domains, 1, 1.0, link_bytes_per_second)


def replicas(num_ranks, dtype="float32"):
    return TensorSpec("w", (64, 64), dtype, Layout.replicated(Mesh.of(x=num_ranks)))


@pytest.mark.parametrize(
    ("topology", "num_hops"),
    [
        (None, 1),
        (Topology.one_host(5), 2),  # takers outnumber the holder, so they exchange
        (in_domains(0, 1, 1, 1, 1), 2),  # into the domain, and inside
        (in_domains(0, 0, 0, 1, 1), 2),
        (in_domains(0, 1, 1, 2, 2), 3),  # and on to the next one, and inside that
        (in_domains(0, 1, 2, 3, 4), 4),  # one after the other
    ],
)
def test_hops_are_counted(topology, num_hops):
    plan = make_plan([replicas(1)], [replicas(4).shifted(1)], topology=topology)
    assert plan.num_hops == num_hops


def test_holders_that_keep_up_serve_all_domains_at_once():
    topology = in_domains(0, 1, 2, 3, 4, 5, 6, 7)
    plan = make_plan([replicas(4)], [replicas(4).shifted(4)], topology=topology)
    assert plan.num_hops == 1
    assert {src for src, _ in plan.stream_bytes()} <= {0, 1, 2, 3}


def test_tensors_without_elements_have_one_hop():
    empty = [TensorSpec("w", (0,), "int8", replicas(n).layout).shifted(n - 1) for n in (1, 2)]
    assert make_plan(empty[:1], empty[1:], topology=in_domains(0, 1, 1)).num_hops == 1


def test_the_digest_follows_the_topology():
    found = {
        make_plan([replicas(1)], [replicas(4).shifted(1)], topology=topology).digest
        for topology in (
            None,
            in_domains(0, 1, 1, 1, 1),
            in_domains(0, 0, 1, 1, 1),
            in_domains(0, 1, 1, 1, 1, 1),
            in_domains(0, 1, 1, 1, 1, link_bytes_per_second=2.0),
        )
    }
    assert len(found) == 5
    again = [
        make_plan([replicas(1)], [replicas(4).shifted(1)], topology=in_domains(0, 1, 1, 1, 1))
        for _ in range(2)
    ]
    assert again[0].digest == again[1].digest


def test_what_is_passed_on_counts_in_streams_and_not_as_sent_by_sources():
    plan = make_plan([replicas(1)], [replicas(4).shifted(1)], topology=in_domains(0, 1, 1, 1, 1))
    streams = plan.stream_bytes()
    whole = 64 * 64 * 4
    assert sum(streams.values()) == 4 * whole
    assert sum(nbytes for (src, _), nbytes in streams.items() if src == 0) == whole
    assert all(
        sum(nbytes for (_, dst), nbytes in streams.items() if dst == rank) == whole
        for rank in plan.dst_ranks
    )


@pytest.mark.parametrize("cast", [("float32", "bfloat16"), ("bfloat16", "float32")], ids=str)
def test_streams_of_a_cast_count_what_travels_at_each_hop(cast):
    src, dst = replicas(1, cast[0]), replicas(4, cast[1]).shifted(1)
    plan = make_plan([src], [dst], casts=[cast], topology=in_domains(0, 1, 1, 1, 1))
    assert sum(plan.stream_bytes().values()) == sum(map(plan.nbytes, plan.transfers()))


def test_a_topology_that_lacks_ranks_is_refused():
    with pytest.raises(PlanError, match="topology"):
        make_plan([replicas(1)], [replicas(4).shifted(1)], topology=in_domains(0, 1, 1)).check()


def test_a_small_tensor_can_be_planned_as_the_large_one_that_it_stands_for():
    """Stripes are the same but for their scale, and the digest tells the plans apart."""
    factor, topology = 1 << 10, Topology.dgx_h100(24)

    def plan_of(length, **options):
        src = TensorSpec("w", (length,), "float32", Layout.replicated(Mesh.of(x=3)))
        dst = TensorSpec("w", (length,), "float32", Layout.replicated(Mesh.of(x=12))).shifted(8)
        return make_plan([src], [dst], topology=topology, **options)

    def moves(plan, scale):
        return sorted((t.src_rank, t.dst_rank, t.start[0] * scale, t.hop) for t in plan.transfers())

    small, large = plan_of(512), plan_of(512 * factor)
    stand_in = plan_of(512, times_larger=factor)
    assert len(moves(large, 1)) > len(moves(small, factor))
    assert [m[:2] + m[3:] for m in moves(stand_in, factor)] == [
        m[:2] + m[3:] for m in moves(large, 1)
    ]
    assert all(
        abs(a[2] - b[2]) <= factor
        for a, b in zip(moves(stand_in, factor), moves(large, 1), strict=True)
    )
    assert plan_of(512, times_larger=1).digest == small.digest != stand_in.digest
    stand_in.check()


def test_a_budget_is_a_whole_number():
    with pytest.raises(PlanError, match=r"staging_bytes='1GiB' is no whole number. Give bytes"):
        make_plan(SRC, DST, staging_bytes="1GiB")


def test_single_things_are_not_many_and_times_have_units():
    whole = TensorSpec("w", (1 << 20,), "float32", Layout.replicated(Mesh.of(x=1)))
    text = make_plan([whole], [whole.shifted(1)], topology=Topology.dgx_h100(2)).describe()
    assert text.startswith("1 tensor, 1 source rank -> 1 destination rank, 4 MiB to move")
    assert "1 transfer, 4 MiB" in text
    assert "1 hop\nfloor 9.32 us (" in text
    assert "in 1 round;" in text
