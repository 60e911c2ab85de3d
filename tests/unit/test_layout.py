"""Layouts: which boxes each rank holds. Laws are in property/test_value_laws.py."""

from __future__ import annotations

import dataclasses
import enum
import pickle

import numpy as np
import pytest

import reshard
from reshard import (
    Box,
    BoxLayout,
    Layout,
    LayoutError,
    LocalBox,
    Mesh,
    Replicate,
    SegmentedLayout,
    Shard,
    UnsupportedError,
)

R = Replicate()


def boxes(layout, shape):
    """Returns the boxes of each rank as text."""
    return {
        rank: " ".join(str(box) for box, _ in layout.local_boxes(rank, shape))
        for rank in layout.ranks
    }


def test_layout_case_a1_uneven_shards_follow_torch():
    layout = Layout(Mesh.of(x=4), (Shard(0),))
    assert boxes(layout, (5, 10)) == {0: "[0:2, 0:10]", 1: "[2:4, 0:10]", 2: "[4:5, 0:10]", 3: ""}
    assert [layout.local_shape(rank, (5, 10)) for rank in range(4)] == [
        (2, 10),
        (2, 10),
        (1, 10),
        (0, 10),
    ]


def test_layout_case_a5_strided_shards():
    layout = Layout(Mesh.of(dp=2, tp=2), (Shard(0, blocks=2), Shard(0)))
    assert boxes(layout, (5,)) == {0: "[0:2]", 1: "[3:4]", 2: "[2:3]", 3: "[4:5]"}


def test_layout_case_a8_the_order_of_cutting_is_part_of_the_layout():
    mesh = Mesh.of(fsdp=2, tp=2)
    layout = Layout(mesh, (Shard(0), Shard(0)), order=("tp", "fsdp"))
    assert boxes(layout, (8,)) == {0: "[0:2]", 1: "[4:6]", 2: "[2:4]", 3: "[6:8]"}
    assert boxes(Layout(mesh, (Shard(0), Shard(0))), (8,))[1] == "[2:4]"


@pytest.mark.parametrize(
    ("order", "of_rank_1"),
    [(("a", "b", "c"), "[1:2]"), (("c", "b", "a"), "[4:5]"), (("b", "c", "a"), "[2:3]")],
)
def test_layout_case_a9_three_axes_in_any_order(order, of_rank_1):
    layout = Layout(Mesh.of(a=2, b=2, c=2), (Shard(0),) * 3, order)
    assert boxes(layout, (8,))[1] == of_rank_1


def test_layout_case_a12_both_uneven_rules():
    mesh = Mesh.of(x=4)
    chunk = Layout(mesh, (Shard(0),))
    balanced = Layout(mesh, (Shard(0),), division="balanced")
    assert [chunk.local_shape(r, (10,)) for r in range(4)] == [(3,), (3,), (3,), (1,)]
    assert [balanced.local_shape(r, (10,)) for r in range(4)] == [(3,), (3,), (2,), (2,)]


def test_layout_case_b8_the_first_name_of_a_tuple_is_major():
    mesh = Mesh.of(fsdp=2, tp=2)
    one = Layout.from_spec(mesh, (("fsdp", "tp"), None))
    other = Layout.from_spec(mesh, (("tp", "fsdp"), None))
    assert boxes(one, (8, 4))[1] == "[2:4, 0:4]"
    assert boxes(other, (8, 4))[1] == "[4:6, 0:4]"


def test_a_spec_leaves_missing_dims_and_axes_alone():
    layout = Layout.from_spec(Mesh.of(a=2, b=3), (None, "b"))
    assert layout.placements == (R, Shard(1))
    assert boxes(layout, (4, 6, 2))[4] == "[0:4, 2:4, 0:2]"


@pytest.mark.parametrize("spec", [("nope",), ("a", "a"), (("a", "a"),)])
def test_a_spec_names_axes_of_the_mesh_once(spec):
    with pytest.raises(LayoutError, match=r"must name axes of mesh \(a=2\), each at most once"):
        Layout.from_spec(Mesh.of(a=2), spec)


def test_replicated():
    layout = Layout.replicated(Mesh.of(a=2, b=2))
    assert set(boxes(layout, (3,)).values()) == {"[0:3]"}


def test_several_runs_lie_one_after_the_other_in_the_local_array():
    layout = Layout(Mesh.of(tp=2), (Shard(0, blocks=2),))
    assert layout.local_boxes(1, (8, 3)) == (
        LocalBox(Box((2, 0), (2, 3)), (0, 0)),
        LocalBox(Box((6, 0), (2, 3)), (2, 0)),
    )
    assert layout.local_shape(1, (8, 3)) == (4, 3)


def test_a_tensor_without_dims_is_held_whole():
    layout = Layout(Mesh.of(a=2), (R,))
    assert layout.local_boxes(1, ()) == (LocalBox(Box((), ()), ()),)
    assert layout.local_shape(1, ()) == ()


def test_ranks_outside_hold_nothing():
    layout = Layout(Mesh(("a",), (2,), (5, 7)), (Shard(0),))
    assert (layout.position(5), layout.position(6)) == (0, None)
    assert layout.local_shape(6, (4,)) is None
    assert layout.local_boxes(6, (4,)) == ()


def test_patterns_are_equal_where_only_ranks_and_axis_names_differ():
    one = Layout(Mesh.of(a=2, b=2), (Shard(0), R))
    other = Layout(Mesh(("x", "y"), (2, 2), (9, 3, 4, 5)), (Shard(0), R))
    assert one.pattern == other.pattern
    assert one.pattern != Layout(Mesh.of(a=2, b=2), (R, Shard(0))).pattern
    assert one.pattern != Layout(Mesh.of(a=2, b=2), (Shard(0), R), division="balanced").pattern


def test_it_reads_as_a_line():
    assert str(Layout(Mesh.of(fsdp=2, tp=4), (Shard(0), R))) == "(fsdp:S(0), tp:R)@(fsdp=2,tp=4)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placements": (R, R)}, r"mesh \(a=2\) has 1 axes but 2 placements"),
        ({"order": ("b",)}, r"order \('b',\) must name every axis of mesh \(a=2\) exactly once"),
        ({"order": ("a", "a")}, "exactly once"),
        ({"division": "odd"}, "division 'odd' is unknown"),
    ],
)
def test_what_is_no_layout_is_refused(options, message):
    with pytest.raises(LayoutError, match=message):
        Layout(Mesh.of(a=2), **{"placements": (R,), **options})


def test_a_dim_that_the_tensor_has_not_is_refused():
    with pytest.raises(LayoutError, match=r"S\(2\) cuts dim 2 of a tensor of shape \(4, 4\)"):
        Layout(Mesh.of(a=2), (Shard(2),)).check((4, 4))


def test_even_is_checked_against_the_shape():
    layout = Layout(Mesh.of(a=2), (Shard(0),), division="even")
    layout.check((4,))
    with pytest.raises(LayoutError, match="5 elements do not divide evenly over 2 parts"):
        layout.check((5,))


class Partial:
    def __repr__(self) -> str:
        return "Partial(sum)"


def test_partial_sums_are_refused_with_how_to_reduce():
    with pytest.raises(UnsupportedError, match=r"Partial\(sum\).*reduce first.*redistribute"):
        Layout(Mesh.of(a=2), (Partial(),))


# ---- explicit boxes


def test_layout_case_a3_ragged_widths_per_rank():
    starts = [0, 2, 5, 9]
    layout = BoxLayout(
        {
            rank: Box((0, start), (2, width))
            for rank, (start, width) in enumerate(zip(starts, (2, 3, 4, 5), strict=True))
        }
    )
    layout.check((2, 14))
    assert [layout.local_shape(rank, (2, 14)) for rank in range(4)] == [
        (2, 2),
        (2, 3),
        (2, 4),
        (2, 5),
    ]


def test_a_single_box_is_the_local_array():
    assert BoxLayout({3: Box((4, 0), (2, 5))}).local_boxes(3, (6, 5)) == (
        LocalBox(Box((4, 0), (2, 5)), (0, 0)),
    )


def test_concatenated_boxes_lie_one_after_the_other():
    layout = BoxLayout.concatenated({0: [Box((4, 0), (2, 3)), Box((0, 0), (1, 3))]}, dim=0)
    assert layout.local_boxes(0, (6, 3)) == (
        LocalBox(Box((4, 0), (2, 3)), (0, 0)),
        LocalBox(Box((0, 0), (1, 3)), (2, 0)),
    )
    assert layout.local_shape(0, (6, 3)) == (3, 3)


def test_empty_boxes_are_left_out_and_ranks_without_boxes_have_an_empty_array():
    layout = BoxLayout({0: Box((4,), (0,)), 1: [], 2: Box((0,), (4,))})
    assert layout.local_boxes(0, (4,)) == ()
    assert [layout.local_shape(rank, (4,)) for rank in (0, 1, 2, 3)] == [(0,), (0,), (4,), None]


def test_ranks_are_in_ascending_order():
    layout = BoxLayout({7: Box((0,), (1,)), 2: Box((1,), (1,))})
    assert layout.ranks == (2, 7)
    assert layout.position(7) == 1
    assert str(layout) == "2 boxes on 2 ranks"
    assert layout.shifted(3).ranks == (5, 10)


def test_boxes_outside_the_tensor_are_refused():
    with pytest.raises(LayoutError, match=r"rank 1: box \[3:5\] is not inside.*shape \(4,\)"):
        BoxLayout({0: Box((0,), (3,)), 1: Box((3,), (2,))}).check((4,))
    with pytest.raises(LayoutError, match=r"rank 0: box \[0:3\] is not inside"):
        BoxLayout({0: Box((0,), (3,))}).check((4, 4))


def test_a_rank_is_listed_once():
    with pytest.raises(LayoutError, match="given twice"):
        BoxLayout(((0, (LocalBox(Box((0,), (1,)), (0,)),)), (0, ())))


def test_boxes_of_a_rank_have_places_of_their_own():
    whole = Box((0,), (4,))
    with pytest.raises(LayoutError, match=r"rank 2: two boxes share local elements.*own place"):
        BoxLayout({2: [LocalBox(whole, (0,)), LocalBox(whole, (3,))]})


def test_several_boxes_without_places_are_refused_with_the_way_to_place_them():
    pair = [Box((0,), (2,)), Box((4,), (2,))]
    with pytest.raises(LayoutError, match=r"rank 3: its 2 boxes have no places.*concatenated\("):
        BoxLayout({3: pair})
    assert BoxLayout({3: pair[:1]}) == BoxLayout({3: pair[0]})
    assert BoxLayout.concatenated({3: pair}, dim=0).local_shape(3, (6,)) == (4,)


def test_a_mesh_of_one_axis_may_give_its_placement_alone():
    assert Layout(Mesh.of(tp=2), Shard(0)) == Layout(Mesh.of(tp=2), (Shard(0),))
    with pytest.raises(LayoutError, match="has 2 axes but 1 placements"):
        Layout(Mesh.of(dp=2, tp=2), R)


def test_values_are_kept_as_tuples_however_they_are_given():
    mesh = Mesh(["tp"], [2], [5, 3])
    assert mesh == Mesh(("tp",), (2,), (5, 3))
    assert Layout(mesh, [Shard(0)], ["tp"]) == Layout(mesh, (Shard(0),), ("tp",))
    assert BoxLayout([(1, [(Box([0], [2]), [3])])]) == BoxLayout(
        ((1, (LocalBox(Box((0,), (2,)), (3,)),)),)
    )


def test_values_may_be_made_anew_with_one_thing_changed():
    layout = Layout(Mesh.of(tp=2), (Shard(0, blocks=2),), division="balanced")
    other = dataclasses.replace(layout, mesh=Mesh(("tp",), (2,), (5, 3)))
    assert other == Layout(Mesh(("tp",), (2,), (5, 3)), (Shard(0, blocks=2),), ("tp",), "balanced")
    assert other.axes_of_dim(0) == (0,)
    segments = SegmentedLayout(0, (4, 4), (layout, layout))
    for value in (layout, other, other.mesh, segments, BoxLayout({1: Box((0,), (2,))})):
        assert dataclasses.replace(value) == value
        assert pickle.loads(pickle.dumps(value)) == value
        assert eval(repr(value), vars(reshard)) == value


@pytest.mark.parametrize("arguments", [("x", (Shard(0),)), (Mesh.of(x=2), 0), ((2,), R)])
def test_a_layout_is_of_a_mesh_and_placements(arguments):
    with pytest.raises(LayoutError, match="give a Mesh and one placement per axis of it, as in"):
        Layout(*arguments)


@pytest.mark.parametrize("entries", [Box((0,), (1,)), 3, "x", [Box((0,), (1,))]])
def test_boxes_are_given_per_rank(entries):
    with pytest.raises(LayoutError, match="give the boxes of each rank, as in BoxLayout"):
        BoxLayout(entries)


@pytest.mark.parametrize("rank", [-1, np.int64(-2), 0.0, "0", None])
def test_ranks_of_boxes_are_whole_numbers_from_zero(rank):
    with pytest.raises(LayoutError, match=r"boxes of rank .*, which is no whole number from 0"):
        BoxLayout({rank: Box((0,), (1,))})


@pytest.mark.parametrize("at", [(-1, 0), (0,), (0, 0, 0)])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_boxes_begin_inside_the_local_array(at, shape):
    with pytest.raises(LayoutError, match=r"rank 3: a box has no place .* one whole number from 0"):
        BoxLayout({3: [LocalBox(Box((0, 0), shape), at)]})


@pytest.mark.parametrize("dim", [-1, 2, 0.0, "0", None])
def test_boxes_are_concatenated_along_one_of_their_dims(dim):
    with pytest.raises(LayoutError, match=r"rank 0: box .* has 2 dims, counted from 0"):
        BoxLayout.concatenated({0: [Box((0, 0), (1, 2))]}, dim)


@pytest.mark.parametrize("order", [3, (0,), None, ("a", 1)])
def test_an_order_is_of_names(order):
    with pytest.raises(LayoutError, match=r"must name every axis of mesh \(a=2\) exactly once"):
        Layout(Mesh.of(a=2), R, order)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (
            BoxLayout({np.int64(1): [(Box((0,), (2,)), np.array([3]))], True + 1: []}),
            BoxLayout({1: [LocalBox(Box((0,), (2,)), (3,))], 2: []}),
        ),
        (
            BoxLayout.concatenated({np.int64(1): [Box((0,), (2,))] * 2}, np.int64(0)),
            BoxLayout.concatenated({1: [Box((0,), (2,))] * 2}, 0),
        ),
        (
            Layout(Mesh.of(a=2), R, np.array(["a"]), np.str_("even")),
            Layout(Mesh.of(a=2), R, ("a",), "even"),
        ),
        (
            Layout(Mesh(("a",), (2,)), R).shifted(np.int64(4)),
            Layout(Mesh(("a",), (2,), (4, 5)), R),
        ),
    ],
)
def test_names_and_numbers_of_any_kind_become_plain_ones(given, plain):
    assert given == plain
    assert repr(given) == repr(plain)


@pytest.mark.parametrize(
    "boxes",
    [
        "x",
        3,
        [(1, 2, 3)],
        [(Box((0,), (1,)), 0)],
        [None],
        [(Box((0,), (1,)), (0.0,))],
        [(Box((0,), (1,)), "0")],
    ],
)
def test_what_is_no_box_of_a_rank_is_refused(boxes):
    with pytest.raises(LayoutError, match=r"rank 4: .* is no Box, and no list of LocalBox"):
        BoxLayout({4: boxes})


class _Division(str, enum.Enum):  # noqa: UP042 (a StrEnum prints as its value)
    BALANCED = "balanced"


def test_a_text_of_a_class_of_its_own_means_what_it_says():
    layout = Layout(Mesh.of(x=4), (Shard(0),), division=_Division.BALANCED)
    assert layout == Layout(Mesh.of(x=4), (Shard(0),), division="balanced")
    assert repr(layout).endswith("division='balanced')")
    assert layout.local_shape(2, (10,)) == (2,)
