"""Names, forms and types of both sides pair up, or every misfit is listed at once."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from reshard import (
    DType,
    Elementwise,
    Form,
    Layout,
    LayoutError,
    Mesh,
    Part,
    PlanError,
    Shard,
    TensorSpec,
    UnsupportedError,
    match,
    read_casts,
)
from reshard.elementwise import Change

ROWS = Layout(Mesh.of(x=2), (Shard(0),))


def spec(name, shape=(4, 6), dtype="float32", layout=ROWS, parts=(), padding="refuse"):
    return TensorSpec(name, shape, dtype, layout, parts, padding)


def problems(src, dst, **options):
    with pytest.raises(PlanError) as caught:
        match(src, dst, **options)
    return str(caught.value)


def test_pairs_are_in_the_order_of_the_destination():
    pairs = match([spec("a"), spec("b")], [spec("b"), spec("a")])
    assert [(pair.name, pair.src.name, pair.dst.name) for pair in pairs] == [
        ("b", "b", "b"),
        ("a", "a", "a"),
    ]
    assert pairs[0].num_elements == 24


def test_pairs_of_one_kind_share_a_geometry_and_turn():
    pairs = match(
        [spec("a"), spec("b"), spec("c", (8, 6))],
        [spec(n.name, n.shape) for n in (spec("a"), spec("b"), spec("c", (8, 6)))],
    )
    assert pairs[0].geometry is pairs[1].geometry
    assert pairs[0].geometry is not pairs[2].geometry
    assert pairs[1].rotation == pairs[0].rotation + 1


def test_layouts_that_differ_in_rank_numbers_only_share_a_geometry_where_no_rank_is_on_both_sides():
    src = [spec("a"), spec("b", layout=ROWS.shifted(2))]
    apart = match(src, [spec(n).shifted(20) for n in "ab"])
    assert apart[0].geometry is apart[1].geometry
    assert apart[0].geometry.is_disjoint
    together = match(src, [spec("a"), spec("b")])
    assert together[0].geometry is not together[1].geometry


def test_every_name_without_a_partner_is_listed():
    text = problems([spec("a"), spec("x"), spec("y")], [spec("a"), spec("b"), spec("c")])
    for line in (
        "source (3 tensors) and destination (3 tensors) do not fit; 1 pair up by name, shape "
        "and type, 4 problems",
        "b: no source holds this destination tensor.",
        "c: no source holds this destination tensor.",
        "x: no destination takes this source tensor.",
        "y: no destination takes this source tensor.",
        "allow_unmatched=[...]",
    ):
        assert line in text


def test_a_long_list_is_cut():
    src, dst = [spec(f"a{i}") for i in range(30)], [spec(f"b{i}") for i in range(25)]
    text = problems(src, dst)
    assert "55 problems" in text
    assert "a0: no destination takes this source tensor." in text
    assert "... and 10 more like the last" in text
    assert "b0: no source holds this destination tensor." in text
    assert "... and 5 more like the last" in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["module.a.w", "module.b.w"],
            "Names of the source are those of the other side with 'module.'",
        ),
        (["x.y.a.w", "x.y.b.w", "x.y.c"], "with 'x.y.' in front: give the part of the model"),
        (["module.a.w", "c", "d"], None),
        (["c", "module.a.w"], None),
    ],
)
def test_a_prefix_that_one_side_has_in_front_is_named(names, expected):
    text = problems([spec(name) for name in names], [spec("a.w"), spec("b.w")])
    assert (expected in text) if expected else ("in front" not in text)
    text = problems([spec("a.w"), spec("b.w")], [spec(name) for name in names])
    if expected:
        assert expected.replace("source", "destination") in text


def test_names_may_be_allowed_to_stay_alone_by_pattern():
    src, dst = [spec("a"), spec("opt.m"), spec("opt.v")], [spec("a"), spec("rope.cache")]
    pairs = match(src, dst, allow_unmatched=["opt.*", "rope.cache"])
    assert [pair.name for pair in pairs] == ["a"]
    assert "rope.cache: no source" in problems(src, dst, allow_unmatched=["opt.*"])
    assert "opt.m: no destination" in problems(src, dst, allow_unmatched=["rope.*"])


def test_only_source_names_may_be_unused():
    src, dst = [spec("a"), spec("opt.m")], [spec("a")]
    assert len(match(src, dst, allow_unused=["opt.*"])) == 1
    text = problems([spec("a")], [spec("a"), spec("opt.m")], allow_unused=["opt.*"])
    assert "opt.m: no source holds" in text


def test_nothing_at_all_is_an_error():
    assert "there is no tensor to move" in problems([], [])
    assert "there is no tensor to move" in problems([spec("a")], [], allow_unmatched=["*"])


def test_a_stored_tensor_is_given_once():
    assert "a: the source gives this stored tensor twice" in problems([spec("a")] * 2, [spec("a")])
    assert "a: the destination gives this stored tensor twice" in problems(
        [spec("a")], [spec("a")] * 2
    )


def test_two_sources_of_one_name_are_refused():
    twice = [spec("s1", parts=(Part("a"),)), spec("s2", parts=(Part("a"),))]
    assert "a: both source tensors 's1' and 's2' provide it" in problems(twice, [spec("a")])


def test_two_sources_of_one_name_are_seen_also_where_they_share_a_part():
    first = spec("s1", parts=(Part("a"),))
    second = dataclasses.replace(first, name="s2")
    assert second.parts[0] is first.parts[0]
    assert "'s1' and 's2' provide it" in problems([first, second], [spec("a")])


TIED = Part("embed", None, ("head",))


def test_layout_case_d9_one_storage_feeds_every_name():
    pairs = match([spec("e", parts=(TIED,))], [spec("head"), spec("embed")])
    assert [(pair.name, pair.src.name) for pair in pairs] == [("head", "e"), ("embed", "e")]


def test_a_tied_destination_takes_either_name():
    for name in ("embed", "head"):
        (pair,) = match([spec(name)], [spec("e", parts=(TIED,))])
        assert (pair.name, pair.src.name) == ("embed", name)


def test_a_tied_destination_of_two_sources_is_refused():
    text = problems([spec("embed"), spec("head")], [spec("e", parts=(TIED,))])
    assert "embed: the destination stores ('embed', 'head') once in 'e'" in text
    assert "['embed', 'head']. Tie them in the source, or drop one name" in text


def test_canonical_shapes_are_compared():
    text = problems([spec("a", (4, 6))], [spec("a", (6, 4))])
    assert "a: source has canonical shape (4, 6), destination (6, 4)" in text
    form = (Part("a", Form("x y -> y x")),)
    (pair,) = match([spec("a", (4, 6))], [spec("a", (6, 4), parts=form)])
    assert pair.geometry.space.shape == (4, 6)


def test_types_are_equal_or_a_rule_says_how():
    src, dst = [spec("a", dtype="float32")], [spec("a", dtype="bfloat16")]
    assert "no cast rule says to convert" in problems(src, dst)
    assert "pass casts=[('float32', 'bfloat16')]" in problems(src, dst)
    assert "no cast rule" in problems(src, dst, casts=[("bfloat16", "float32")])
    (pair,) = match(src, dst, casts=[("float32", "bfloat16")])
    assert pair.wire_dtype is DType.BFLOAT16


@pytest.mark.parametrize(
    ("src", "dst", "wire"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "bfloat16", "float16"),
        ("float8_e5m2", "float64", "float8_e5m2"),
    ],
)
def test_the_narrower_type_is_on_the_wire(src, dst, wire):
    (pair,) = match([spec("a", dtype=src)], [spec("a", dtype=dst)], casts=[(src, dst)])
    assert str(pair.wire_dtype) == wire
    assert pair.geometry.counted_bytes == DType.of(wire).itemsize


def test_tensors_may_stand_for_larger_ones():
    (pair,) = match([spec("a", dtype="float32")], [spec("a", dtype="float32")], times_larger=3)
    assert pair.geometry.counted_bytes == 12
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(PlanError, match="is not a whole number from 1 on"):
            match([spec("a")], [spec("a")], times_larger=wrong)


@pytest.mark.parametrize(
    ("src", "dst"), [("int32", "float32"), ("bool", "uint8"), ("int8", "int16")]
)
def test_integers_are_never_cast(src, dst):
    text = problems([spec("a", dtype=src)], [spec("a", dtype=dst)], casts=[(src, dst)])
    assert f"a: {src} cannot be cast to {dst}: casts exist between float16" in text


RULE = Elementwise(scale=0.1, offset=-1)


def ruled(rule, dtype="float32", name="a"):
    return spec(name, dtype=dtype, parts=Part(name, elementwise=rule))


def test_rules_of_the_sides_are_one_change():
    (pair,) = match([ruled(RULE)], [ruled(None)])
    assert pair.change == Change(RULE, Elementwise())
    (pair,) = match([ruled(None)], [ruled(RULE)])
    assert pair.change == Change(Elementwise(), RULE)
    (pair,) = match([spec("a")], [spec("a")])
    assert pair.change is None


def test_equal_rules_cancel_also_where_elements_are_cast():
    (pair,) = match([ruled(RULE)], [ruled(RULE)])
    assert pair.change is None
    (pair,) = match([ruled(RULE)], [ruled(RULE, "bfloat16")], casts=[("float32", "bfloat16")])
    assert pair.change is None


def test_a_rule_does_not_stand_for_a_cast():
    text = problems([ruled(RULE)], [ruled(None, "bfloat16")])
    assert "no cast rule says to convert" in text


@pytest.mark.parametrize(
    ("src", "dst", "side"),
    [
        ("float32", "float32", 0),
        ("float32", "bfloat16", 0),
        ("float8_e5m2", "float8_e5m2", 0),
        ("bfloat16", "float32", 1),
        ("float16", "bfloat16", 1),
    ],
)
def test_values_change_where_they_are_cast_and_else_at_the_source(src, dst, side):
    (pair,) = match([ruled(RULE, src)], [ruled(None, dst)], casts=[(src, dst)])
    assert [pair.changes_at(0), pair.changes_at(1)] == [side == 0, side == 1]
    (pair,) = match([ruled(RULE, src)], [ruled(RULE, dst)], casts=[(src, dst)])
    assert not (pair.changes_at(0) or pair.changes_at(1))


def test_pairs_share_a_geometry_where_their_values_change_alike():
    rules = [None, RULE, None, RULE, Elementwise(scale=2)]
    src = [ruled(rule, name=f"w{number}") for number, rule in enumerate(rules)]
    pairs = match(src, [spec(f"w{number}") for number in range(len(rules))])
    geometries = [pair.geometry for pair in pairs]
    assert geometries[0] is geometries[2]
    assert geometries[1] is geometries[3]
    assert len({id(geometry) for geometry in geometries}) == 3


def test_layout_case_e2_types_are_per_tensor():
    src = [spec("router.bias", dtype="float32"), spec("w", dtype="float32")]
    dst = [spec("router.bias", dtype="float32"), spec("w", dtype="bfloat16")]
    pairs = match(src, dst, casts=[("float32", "bfloat16")])
    assert [str(pair.wire_dtype) for pair in pairs] == ["float32", "bfloat16"]


def test_a_stacked_source_feeds_split_destinations_and_the_reverse():
    stack = tuple(
        Part(f"e{i}", Form("experts out in -> out in", index={"experts": i})) for i in range(3)
    )
    stacked, split = [spec("experts", (3, 4, 6), parts=stack)], [spec(f"e{i}") for i in range(3)]
    assert [pair.name for pair in match(stacked, split)] == ["e0", "e1", "e2"]
    assert [pair.name for pair in match(split, stacked)] == ["e0", "e1", "e2"]


def test_a_text_is_no_list_of_patterns():
    """Its characters would be patterns, and a star would allow everything."""
    one = spec("w")
    for option in ("allow_unmatched", "allow_unused"):
        with pytest.raises(LayoutError, match=rf"{option}='rotary\*' is one text. Give a list"):
            match([one], [one.shifted(2)], **{option: "rotary*"})
        with pytest.raises(LayoutError, match=f"{option} holds 3, which is no text"):
            match([one], [one.shifted(2)], **{option: ["a", 3]})


@pytest.mark.parametrize("casts", [("float32", "bfloat16"), "float32", [("float32",)], 5, [None]])
def test_cast_rules_are_a_list_of_pairs(casts):
    with pytest.raises(LayoutError, match=r"is not a pair of dtypes. Give a list of \(source, d"):
        match([spec("a")], [spec("a")], casts=casts)


def test_cast_rules_take_the_types_of_frameworks():
    rules = [(np.float32, ml_dtypes.bfloat16), (np.dtype("float64"), "float16")]
    assert read_casts(rules) == (
        (DType.FLOAT32, DType.BFLOAT16),
        (DType.FLOAT64, DType.FLOAT16),
    )
    with pytest.raises(UnsupportedError, match=r"^casts=.*Did you mean 'bfloat16'\?"):
        read_casts([("float32", "bf16")])


def test_each_kind_of_problem_has_its_own_remedy():
    types = problems([spec("a"), spec("b")], [spec("a", dtype="float16"), spec("b", dtype="int8")])
    assert types.endswith("\nTo convert between dtypes, pass casts=[('float32', 'float16')].")
    names = problems([spec("a")], [spec("b")])
    assert names.endswith("allow names with allow_unmatched=[...].")
    assert "casts=" not in names
    shapes = problems([spec("a")], [spec("a", (6, 4))])
    assert "check the forms" in shapes
    assert "allow_unmatched" not in shapes
    both = problems([spec("a"), spec("c")], [spec("a", dtype="float16")])
    assert "casts=[" in both
    assert "allow_unmatched=[" in both


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (
            (spec("a"), [spec("a")]),
            r"the source is of type TensorSpec, .*Give \[TensorSpec\(\.\.\.\)\]",
        ),
        (([spec("a")], "a"), "the destination is of type str, no list of specs"),
        (([spec("a")], ["a"]), "the destination holds a str. Give TensorSpecs alone"),
    ],
)
def test_sides_are_lists_of_specs(sides, message):
    with pytest.raises(PlanError, match=message):
        match(*sides)
