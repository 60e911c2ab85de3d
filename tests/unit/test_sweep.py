"""Transfers between layouts that are no grids: atoms, holders, coverage."""

from __future__ import annotations

import pytest

import reshard.sweep
from reshard import Box, BoxLayout, DType, Layout, Mesh, PlanError, Shard, TensorSpec, match
from reshard.legs import Leg, Taken
from reshard.places import DeliveryTable, Places
from reshard.sweep import SweepPlan, box_holders


def sweep(src_layout, dst_layout, shape=(8,), places=None):
    src = TensorSpec("w", shape, DType.UINT8, src_layout)
    dst = TensorSpec("w", shape, DType.UINT8, dst_layout)
    (pair,) = match([src], [dst])
    return SweepPlan(pair.geometry, DeliveryTable(places, 1)), pair.geometry


def leg(peer, start, stop, copy, hop=0, src_copy=0):
    return Leg(start, copy, peer, stop, hop, src_copy)


HALVES = Layout(Mesh.of(x=2), (Shard(0),))


def test_boxes_are_shared_out_as_those_that_they_stand_for():
    both = BoxLayout({rank: Box((0,), (64,)) for rank in (0, 1)})
    src = TensorSpec("w", (64,), DType.UINT8, both)
    dst = TensorSpec("w", (64,), DType.UINT8, BoxLayout({2: Box((0,), (64,))}))

    def num_holders(times_larger):
        (pair,) = match([src], [dst], times_larger=times_larger)
        return len({leg.peer for leg in SweepPlan(pair.geometry).takes(0).of(0).receives})

    assert num_holders(1) == 1
    assert num_holders(1 << 11) == 2


def test_holders_are_listed_per_distinct_box():
    layout = BoxLayout({0: Box((0,), (4,)), 5: Box((0,), (4,)), 7: Box((4,), (4,))})
    _, geometry = sweep(layout, HALVES.shifted(20))
    assert box_holders(geometry.src, 1) == {((0,), (4,)): [(0, 0), (1, 0)], ((4,), (8,)): [(2, 0)]}


def test_boxes_that_overlap_in_part_are_cut_along_their_edges():
    layout = BoxLayout({0: Box((0,), (5,)), 1: Box((3,), (5,))})
    plan, _ = sweep(layout, Layout.replicated(Mesh(("x",), (1,), (20,))))
    received = plan.takes(0).of(0).receives
    assert [(leg.start, leg.stop) for leg in received] == [((0,), (3,)), ((3,), (5,)), ((5,), (8,))]
    assert received[0].peer == 0
    assert received[2].peer == 1


def test_each_rank_finds_its_own_legs():
    ragged = BoxLayout({0: Box((0,), (1,)), 1: Box((1,), (6,)), 2: Box((7,), (1,))})
    plan, _ = sweep(ragged, HALVES.shifted(20))
    assert plan.sends(1).of(0) == (leg(0, (1,), (4,), 0), leg(1, (4,), (7,), 0))
    assert plan.takes(1).of(0).receives == (leg(1, (4,), (7,), 0), leg(2, (7,), (8,), 0))


def test_a_rank_on_both_sides_copies_what_it_holds():
    boxes = {0: Box((0,), (8,)), 1: Box((0,), (8,))}
    plan, _ = sweep(BoxLayout(boxes), BoxLayout(boxes))
    assert plan.takes(0).of(0).receives == (leg(0, (0,), (8,), 0),)
    assert plan.takes(1).of(0).receives == (leg(1, (0,), (8,), 0),)


def test_several_equal_boxes_of_one_rank_are_told_apart():
    twice = BoxLayout.concatenated({20: [Box((2,), (2,)), Box((2,), (2,))]}, 0)
    plan, _ = sweep(HALVES, twice)
    assert plan.takes(0).of(0).receives == (leg(0, (2,), (4,), 0), leg(0, (2,), (4,), 1))


def test_boxes_of_one_rank_that_overlap_in_part_are_told_apart():
    overlapping = BoxLayout.concatenated({20: [Box((0,), (6,)), Box((4,), (4,))]}, 0)
    plan, _ = sweep(Layout.replicated(Mesh.of(x=1)), overlapping)
    assert plan.takes(0).of(0).receives == (
        leg(0, (0,), (4,), 0),
        leg(0, (4,), (6,), 0),
        leg(0, (4,), (6,), 1),
        leg(0, (6,), (8,), 1),
    )


def test_what_boxes_of_one_domain_have_in_common_enters_it_once():
    overlapping = BoxLayout({20: Box((0,), (6,)), 21: Box((4,), (4,))})
    plan, _ = sweep(BoxLayout({0: WHOLE}), overlapping, places=Places((0,), (1, 1)))
    first, second = (plan.takes(position).of(0) for position in (0, 1))
    assert first.receives == (leg(0, (0,), (4,), 0), leg(0, (4,), (6,), 0))
    assert second.receives == (leg(0, (6,), (8,), 0),)
    (onward,) = first.forwards
    assert (onward.start, onward.stop, onward.peer, onward.hop) == ((4,), (6,), 1, 1)
    assert plan.are_apart


def test_boxes_that_would_fall_into_very_many_parts_are_sent_apart(monkeypatch):
    monkeypatch.setattr(reshard.sweep, "_MAX_PARTS", 1)
    overlapping = BoxLayout({20: Box((0,), (6,)), 21: Box((4,), (4,))})
    plan, _ = sweep(BoxLayout({0: WHOLE}), overlapping, places=Places((0,), (1, 1)))
    assert [plan.takes(position).of(0).receives for position in (0, 1)] == [
        (leg(0, (0,), (6,), 0),),
        (leg(0, (4,), (8,), 0),),
    ]
    assert not plan.are_apart


def test_layout_case_a14_a_gap_is_named():
    gap = BoxLayout({0: Box((0, 0), (4, 6)), 1: Box((5, 0), (3, 6))})
    with pytest.raises(
        PlanError, match=r"holds only 42 of the 48 elements of logical box \[0:8, 0:6\]"
    ):
        sweep(gap, Layout.replicated(Mesh(("x",), (1,), (20,))), (8, 6))


def test_a_gap_that_nobody_wants_does_not_matter():
    gap = BoxLayout({0: Box((0,), (4,)), 1: Box((5,), (3,))})
    plan, _ = sweep(gap, BoxLayout({20: Box((5,), (2,))}))
    assert plan.takes(0).of(0).receives == (leg(1, (5,), (7,), 0),)


def test_empty_tensors_need_no_holder():
    plan, _ = sweep(BoxLayout({0: ()}), HALVES.shifted(20), (0,))
    assert plan.takes(0).of(0) == Taken()


WHOLE = Box((0,), (8,))


def test_a_relay_receives_at_one_hop_and_sends_on_at_the_next():
    """Three ranks in domains of their own, of which the source serves one."""
    places = Places((0,), (1, 2, 3), (1, 3))
    three = BoxLayout({rank: WHOLE for rank in (20, 21, 22)})
    plan, _ = sweep(BoxLayout({0: WHOLE}), three, places=places)
    assert plan.sends(0).of(0) == (leg(0, (0,), (8,), 0),)
    first, second, third = (plan.takes(position).of(0) for position in range(3))
    assert first == Taken((leg(0, (0,), (8,), 0),), (), (leg(1, (0,), (8,), 0, hop=1),))
    assert second == Taken((), (leg(0, (0,), (8,), 0, hop=1),), (leg(2, (0,), (8,), 0, hop=2),))
    assert third == Taken((), (leg(1, (0,), (8,), 0, hop=2),), ())


def test_equal_boxes_of_one_rank_in_another_domain_are_filled_from_each_other():
    twice = BoxLayout.concatenated({20: [WHOLE, WHOLE]}, 0)
    plan, _ = sweep(BoxLayout({0: WHOLE}), twice, places=Places((0,), (1,)))
    assert plan.takes(0).of(0) == Taken(
        (leg(0, (0,), (8,), 0),),
        (leg(0, (0,), (8,), 1, hop=1, src_copy=0),),
        (leg(0, (0,), (8,), 1, hop=1, src_copy=0),),
    )
    assert plan.takes(0).of(1) == Taken(
        (leg(0, (0,), (8,), 1),),
        (leg(0, (0,), (8,), 0, hop=1, src_copy=1),),
        (leg(0, (0,), (8,), 0, hop=1, src_copy=1),),
    )


def test_source_boxes_that_fall_into_very_many_parts_are_refused(monkeypatch):
    monkeypatch.setattr(reshard.sweep, "_MAX_SOURCE_PARTS", 1)
    overlapping = BoxLayout({0: Box((0,), (6,)), 1: Box((4,), (4,))})
    with pytest.raises(PlanError, match=r"2 different boxes of the source overlap.*equal or apart"):
        sweep(overlapping, BoxLayout({20: Box((0,), (8,))}))
