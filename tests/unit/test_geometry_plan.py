"""Which planner a geometry gets, and what a grid plan keeps between tensors."""

from __future__ import annotations

import pytest

from reshard import (
    Box,
    BoxLayout,
    DType,
    Form,
    Layout,
    Mesh,
    Part,
    Replicate,
    SegmentedLayout,
    Shard,
    TensorSpec,
    match,
)
from reshard.geometry_plan import GridPlan, make_geometry_plan
from reshard.grid import NotAGrid
from reshard.legs import Taken
from reshard.places import DeliveryTable, Places
from reshard.sweep import SweepPlan

R = Replicate()
TP = Layout(Mesh.of(tp=2), (Shard(0),))
BOXES = BoxLayout({0: Box((0, 0), (8, 6))})
ONE = Layout(Mesh.of(x=1), (R,))


def geometry(src_layout, dst_layout, shape=(8, 6), dst_parts=(), dtype=DType.UINT8):
    src = TensorSpec("w", shape, dtype, src_layout)
    dst = TensorSpec("w", shape, dtype, dst_layout, dst_parts)
    (pair,) = match([src], [dst])
    return pair.geometry


@pytest.mark.parametrize(
    ("src", "dst", "kind"),
    [
        (TP, TP.shifted(2), GridPlan),
        (TP, TP, GridPlan),
        (BOXES, TP.shifted(2), SweepPlan),
        (TP, BOXES.shifted(5), SweepPlan),
    ],
)
def test_meshes_are_planned_by_arithmetic_and_boxes_by_comparison(src, dst, kind):
    assert isinstance(make_geometry_plan(geometry(src, dst)), kind)


def fused(*lengths):
    return SegmentedLayout(0, lengths, (TP,) * len(lengths))


def test_a_part_that_lies_in_one_segment_is_planned_by_arithmetic():
    part = Part("w", Form("r e -> r e", (("r", 8),), start=((0, 4),)))
    src = TensorSpec("w", (8, 6), DType.UINT8, TP)
    dst = TensorSpec("f", (14, 6), DType.UINT8, fused(4, 8, 2).shifted(2), (part,), "keep")
    (pair,) = match([src], [dst])
    plan = make_geometry_plan(pair.geometry)
    assert isinstance(plan, GridPlan)
    sweep = SweepPlan(pair.geometry)
    for position in (0, 1):
        assert plan.takes(position).of(1) == sweep.takes(position).of(1)
        assert plan.sends(position).of(1) == sweep.sends(position).of(1)


def test_a_part_across_segments_is_planned_by_comparison():
    assert isinstance(make_geometry_plan(geometry(TP, fused(3, 5).shifted(2))), SweepPlan)


def test_large_boxes_are_striped_alike_for_every_tensor():
    """Legs that no choice among holders depends on are computed once, whatever the rotation."""
    everywhere = Layout(Mesh.of(x=2), (R,))
    plan = GridPlan(geometry(everywhere, ONE.shifted(9), (4096, 64)))
    assert plan.takes(0).of(1) is plan.takes(0).of(2)
    assert len(plan.takes(0).of(1).receives) == 2


def test_small_boxes_turn_from_tensor_to_tensor():
    everywhere = Layout(Mesh.of(x=2), (R,))
    plan = GridPlan(geometry(everywhere, ONE.shifted(9), (4, 6)))
    assert {plan.takes(0).of(turn).receives[0].peer for turn in range(2)} == {0, 1}
    assert plan.takes(0).of(0) is plan.takes(0).of(2)


def test_empty_tensors_have_no_legs():
    plan = make_geometry_plan(geometry(TP, TP.shifted(2), (0, 6)))
    assert plan.sends(0).of(0) == ()
    assert plan.takes(1).of(0) == Taken()


def test_a_box_goes_once_into_a_domain_and_on_inside_it():
    both = Layout(Mesh.of(x=2), (R,)).shifted(9)
    plan = GridPlan(geometry(ONE, both), DeliveryTable(Places((0,), (1, 1)), 1))
    whole = (0, 0), (8, 6)
    assert [(leg.start, leg.stop) for leg in plan.sends(0).of(0)] == [whole]
    first, second = plan.takes(0).of(0), plan.takes(1).of(0)
    assert [len(legs) for legs in first] == [1, 0, 1]
    assert [len(legs) for legs in second] == [0, 1, 0]
    assert (first.forwards[0].peer, first.forwards[0].hop) == (1, 1)
    assert (second.arrivals[0].peer, second.arrivals[0].hop) == (0, 1)
    assert [len(legs) for legs in plan.takes(1).of(1)] == [1, 0, 1]
    assert plan.takes(0).of(2) is first


def test_a_grid_plan_refuses_what_is_no_grid():
    with pytest.raises(NotAGrid):
        GridPlan(geometry(BOXES, TP.shifted(2)))


def _rows_to_columns(num_holders: int) -> SweepPlan:
    """Four row boxes, each on some ranks, to four column boxes: no grid, for it is explicit."""
    rows = {4 * copy + i: Box((i, 0), (1, 4)) for copy in range(num_holders) for i in range(4)}
    columns = {100 + i: Box((0, i), (4, 1)) for i in range(4)}
    src = TensorSpec("w", (4, 4), "float32", BoxLayout(rows))
    dst = TensorSpec("w", (4, 4), "float32", BoxLayout(columns))
    return SweepPlan(match([src], [dst])[0].geometry)


@pytest.mark.parametrize("num_holders", [1, 2, 3])
def test_explicit_boxes_are_planned_once_per_choice_of_holders(num_holders):
    """Every rotation was planned for all ranks anew, though each box had one holder: minutes."""
    plan = _rows_to_columns(num_holders)
    legs = [plan.takes(0).of(rotation).receives for rotation in range(3 * num_holders)]
    for rotation, found in enumerate(legs):
        assert found is legs[rotation % num_holders]
    assert len({id(each) for each in legs}) == num_holders


def test_boxes_of_two_and_of_three_holders_repeat_after_six_tensors():
    layout = {rank: Box((0,), (4,)) for rank in (0, 1)} | {r: Box((4,), (4,)) for r in (2, 3, 4)}
    src = TensorSpec("w", (8,), "float32", BoxLayout(layout))
    dst = TensorSpec("w", (8,), "float32", BoxLayout({9: Box((0,), (8,))}))
    plan = SweepPlan(match([src], [dst])[0].geometry)
    peers = [
        tuple(leg.peer for leg in plan.takes(0).of(rotation).receives) for rotation in range(12)
    ]
    assert len(set(peers[:6])) == 6
    assert peers[:6] == peers[6:]
