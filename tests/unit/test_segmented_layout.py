"""Fused tensors: each segment has a layout of its own, and its place follows from those before."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import reshard
from reshard import (
    Box,
    BoxLayout,
    Layout,
    LayoutError,
    Mesh,
    Replicate,
    SegmentedLayout,
    Shard,
)

TP = Layout(Mesh.of(tp=2), (Shard(0),))
EVERYWHERE = Layout(Mesh.of(tp=2), (Replicate(),))


def places(layout, rank, shape):
    return [(str(box), at) for box, at in layout.local_boxes(rank, shape)]


def test_layout_case_c1_a_rank_holds_its_part_of_every_segment():
    fused = SegmentedLayout(0, (8, 8), (TP, TP))
    assert places(fused, 1, (16, 4)) == [("[4:8, 0:4]", (0, 0)), ("[12:16, 0:4]", (4, 0))]
    assert fused.local_shape(1, (16, 4)) == (8, 4)


def test_layout_case_c6_uneven_segments_are_cut_one_by_one():
    fused = SegmentedLayout(0, (3, 3), (TP, TP))
    assert places(fused, 0, (6,)) == [("[0:2]", (0,)), ("[3:5]", (2,))]
    assert places(fused, 1, (6,)) == [("[2:3]", (0,)), ("[5:6]", (1,))]


def test_segments_may_be_replicated_and_of_different_length():
    fused = SegmentedLayout(0, (4, 1, 2), (TP, EVERYWHERE, TP))
    assert places(fused, 1, (7,)) == [("[2:4]", (0,)), ("[4:5]", (2,)), ("[6:7]", (3,))]
    assert fused.local_shape(0, (7,)) == (4,)


def test_segments_along_another_dim():
    columns = Layout(Mesh.of(tp=2), (Shard(0),))
    fused = SegmentedLayout(1, (2, 3), (columns, columns))
    assert places(fused, 1, (4, 5)) == [("[2:4, 0:2]", (0, 0)), ("[2:4, 2:5]", (0, 2))]


def test_segments_may_be_segmented():
    inner = SegmentedLayout(0, (2, 2), (TP, TP))
    outer = SegmentedLayout(0, (4, 4), (inner, TP))
    assert places(outer, 1, (8,)) == [("[1:2]", (0,)), ("[3:4]", (1,)), ("[6:8]", (2,))]
    assert outer.pattern == (0, (4, 4), (inner.pattern, TP.pattern))


def test_values():
    fused = SegmentedLayout(0, (8, 8), (TP, EVERYWHERE))
    for other in (eval(repr(fused), vars(reshard)), pickle.loads(pickle.dumps(fused))):
        assert other == fused
        assert hash(other) == hash(fused)
    assert fused.shifted(4).ranks == (4, 5)
    assert fused.shifted(4).pattern == fused.pattern
    assert (fused.ranks, fused.position(1), fused.position(2)) == ((0, 1), 1, None)
    assert fused.local_shape(2, (16,)) is None
    assert " + " in str(fused)


@pytest.mark.parametrize(
    ("lengths", "layouts", "message"),
    [
        (4, (TP, TP), r"SegmentedLayout\(0, 4, .*the length of each segment"),
        ((4, 4), (TP, 3), "segment layout 3 is not a Layout or BoxLayout"),
        ((4,), (TP, TP), "1 segment lengths and 2 layouts"),
        ((6, -2), (TP, TP), r"lengths \(6, -2\) along dim 0: negative number. Count dims from 0"),
        ((4.0, 4), (TP, TP), "the length of each segment"),
        (("4", 4), (TP, TP), "the length of each segment"),
        ((), (), "at least one"),
        ((4, 4), (TP, TP.shifted(1)), "different ranks"),
        ((4, 4), (TP, Layout(Mesh(("x",), (2,), (1, 0)), (Shard(0),))), "another order"),
    ],
)
def test_what_does_not_join_is_refused(lengths, layouts, message):
    with pytest.raises(LayoutError, match=message):
        SegmentedLayout(0, lengths, layouts)


@pytest.mark.parametrize(
    ("dim", "message"),
    [(-1, "along dim -1: negative number"), (0.0, "give a dim"), ("0", "give a dim")],
)
def test_dims_are_whole_numbers_from_zero(dim, message):
    with pytest.raises(LayoutError, match=message):
        SegmentedLayout(dim, (4, 4), (TP, TP))


def test_whole_numbers_of_any_kind_become_plain_ones():
    fused = SegmentedLayout(np.int64(0), np.array([4, 4]), (TP, TP))
    assert repr(fused) == repr(SegmentedLayout(0, (4, 4), (TP, TP)))


@pytest.mark.parametrize(("dim", "shape"), [(0, (9, 4)), (1, (8,)), (0, ())])
def test_segments_add_up_to_the_tensor(dim, shape):
    with pytest.raises(LayoutError, match=r"\(4, 4\) along dim . do not add up"):
        SegmentedLayout(dim, (4, 4), (TP, TP)).check(shape)


def test_each_segment_is_checked():
    even = Layout(Mesh.of(tp=2), (Shard(0),), division="even")
    with pytest.raises(LayoutError, match="5 elements do not divide evenly"):
        SegmentedLayout(0, (4, 5), (even, even)).check((9,))


def test_segments_of_other_widths_are_refused():
    """One is cut along its columns too, so its rows would be written into those of the other."""
    columns = Layout(Mesh.of(tp=2), (Shard(1),))
    mixed = SegmentedLayout(0, (2, 2), (EVERYWHERE, columns))
    with pytest.raises(
        LayoutError, match=r"rank 0: its parts of segments 0 and 1 are \[4\] and \[2\] wide"
    ):
        mixed.check((4, 4))
    SegmentedLayout(0, (2, 2), (columns, columns)).check((4, 4))
    SegmentedLayout(0, (2, 3), (EVERYWHERE, TP)).check((5, 4))


def test_a_rank_without_a_part_of_a_segment_joins_the_others():
    boxes = BoxLayout({0: Box((0, 0), (2, 4)), 1: ()})
    SegmentedLayout(0, (2, 2), (boxes, TP)).check((4, 4))
