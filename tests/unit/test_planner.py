"""One rank's part of a plan; laws are in property/test_plan_laws.py."""

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
    PlanError,
    Shard,
    TensorSpec,
    make_plan,
)
from reshard import planner as planner_module
from reshard.legs import Leg, Taken, Turning
from reshard.planner import Planner
from reshard.sweep import SweepPlan
from reshard.topology import Topology

ROWS = Layout(Mesh.of(fsdp=2), (Shard(0),))
COLUMNS = Layout(Mesh.of(tp=2), (Shard(1),)).shifted(2)


def specs(count, layout, shape=(4, 6)):
    return [TensorSpec(f"w{i}", shape, DType.FLOAT32, layout) for i in range(count)]


def test_a_rank_knows_its_transfers_of_all_tensors():
    plan = make_plan(specs(2, ROWS), specs(2, COLUMNS))
    assert [str(transfer) for transfer in plan.sends(1)] == [
        "[2:4, 0:3] 1 -> 2",
        "[2:4, 3:6] 1 -> 3",
    ] * 2
    assert [transfer.pair for transfer in plan.receives(3)] == [0, 0, 1, 1]
    assert plan.sends(2) == []
    assert plan.sends(9) == []


def test_tensors_of_one_geometry_share_their_legs():
    plan = make_plan(specs(50, ROWS), specs(50, COLUMNS))
    (batch,) = plan.rank_plan(2).receives
    assert batch.numbers == tuple(range(50))


def test_only_what_is_asked_for_is_planned():
    asked = []

    class Watched(Planner):
        def plan_rank(self, rank):
            asked.append(rank)
            return super().plan_rank(rank)

    pairs = make_plan(specs(1, ROWS), specs(1, COLUMNS)).pairs
    Watched(pairs).plan_rank(3)
    assert asked == [3]


def test_layout_case_b11_each_stage_sends_its_own_layers():
    """Pipeline stages are meshes of their own: layer i lies on stage i // 2."""
    src, dst = [], []
    for layer in range(8):
        train = Layout(Mesh.of(tp=2), (Shard(0),)).shifted(2 * (layer // 2))
        engine = Layout(Mesh.of(tp=4), (Shard(1),)).shifted(20 + 4 * (layer // 4))
        src.append(TensorSpec(f"l{layer}", (8, 8), DType.BFLOAT16, train))
        dst.append(TensorSpec(f"l{layer}", (8, 8), DType.BFLOAT16, engine))
    plan = make_plan(src, dst)
    plan.check()
    assert {t.pair for t in plan.sends(3)} == {2, 3}
    assert {t.pair for t in plan.receives(25)} == {4, 5, 6, 7}
    assert {t.src_rank for t in plan.receives(25)} == {4, 5, 6, 7}


def test_layout_case_b12_32_sources_feed_one_destination():
    src = TensorSpec("w", (64, 8), DType.FLOAT32, Layout(Mesh.of(fsdp=32), (Shard(0),)))
    dst = TensorSpec("w", (64, 8), DType.FLOAT32, Layout(Mesh.of(tp=2), (Shard(1),)).shifted(32))
    plan = make_plan([src], [dst])
    assert [t.src_rank for t in plan.receives(33)] == list(range(32))


def test_a_missing_source_is_told_with_the_name():
    src = TensorSpec("w", (4, 6), DType.FLOAT32, BoxLayout({0: Box((0, 0), (2, 6))}))
    dst = TensorSpec("w", (4, 6), DType.FLOAT32, COLUMNS)
    plan = make_plan([src], [dst])
    with pytest.raises(PlanError, match=r"^w: the source layout holds only 6 of the 12 elements"):
        plan.rank_plan(2)
    with pytest.raises(PlanError, match=r"^w: "):
        plan.rank_plan(0)


def test_a_slice_that_no_source_rank_holds_is_told():
    part = Part("w", Form("layers a -> a", index={"layers": 1}))
    empty = BoxLayout({0: Box((0, 0), (1, 6))})
    src = TensorSpec("stack", (2, 6), DType.FLOAT32, empty, (part,), "keep")
    dst = TensorSpec("w", (6,), DType.FLOAT32, Layout(Mesh(("x",), (1,), (9,)), (Shard(0),)))
    with pytest.raises(PlanError, match=r"^w: "):
        make_plan([src], [dst]).rank_plan(9)


def leg(peer, start, stop, hop=0):
    return Leg(peer=peer, start=start, stop=stop, copy=0, hop=hop)


class Wrong:
    """A planner that forgets or doubles something."""

    def __init__(self, taken):
        self._taken = taken

    def sends(self, position):
        return Turning(1, lambda _: ())

    def takes(self, position):
        return Turning(1, lambda _: self._taken)


@pytest.mark.parametrize(
    ("receives", "arrivals"),
    [
        ((leg(0, (0, 0), (2, 3)),), ()),
        ((leg(0, (0, 0), (2, 3)), leg(0, (0, 0), (2, 3))), ()),
        ((leg(0, (0, 0), (3, 3)), leg(1, (2, 0), (3, 3))), ()),
        ((leg(0, (0, 0), (2, 3)), leg(1, (1, 0), (3, 3))), ()),
        ((), (leg(1, (0, 0), (2, 3), 1),)),
        ((leg(0, (0, 0), (2, 3)),), (leg(1, (1, 0), (3, 3), 1),)),
        ((leg(0, (0, 0), (4, 3)),), (leg(1, (0, 0), (4, 3), 1),)),
    ],
    ids=[
        "a part is missing",
        "twice the same",
        "one row twice and one missing",
        "overlap",
        "a part of what others pass on is missing",
        "overlap of what a holder and what others send",
        "all of it twice",
    ],
)
def test_a_planner_that_is_wrong_is_caught(monkeypatch, receives, arrivals):
    taken = Taken(receives, arrivals)
    monkeypatch.setattr(planner_module, "make_geometry_plan", lambda *_: Wrong(taken))
    plan = make_plan(specs(1, ROWS), specs(1, COLUMNS))
    with pytest.raises(PlanError, match=r"w0: destination rank 2 stores 12 elements.*defect"):
        plan.rank_plan(2)


def test_what_others_pass_on_counts_as_received(monkeypatch):
    taken = Taken((leg(0, (0, 0), (2, 3)),), (leg(1, (2, 0), (4, 3), 1),))
    monkeypatch.setattr(planner_module, "make_geometry_plan", lambda *_: Wrong(taken))
    plan = make_plan(specs(1, ROWS), specs(1, COLUMNS))
    assert list(map(str, plan.receives(2))) == ["[0:2, 0:3] 0 -> 2", "[2:4, 0:3] 3 -> 2"]


def test_pairs_of_one_geometry_that_lie_differently_are_planned_apart():
    """Two engines store the same tensors; one of them is in the trainer's domain."""
    src = specs(2, Layout(Mesh.of(fsdp=1), (Shard(0),)))
    everywhere = Layout.replicated(Mesh.of(dp=2))
    dst = [
        TensorSpec(spec.name, spec.shape, spec.dtype, everywhere.shifted(offset))
        for spec, offset in zip(src, (1, 3), strict=True)
    ]
    places = (0, 0, 0, 1, 1)
    plan = make_plan(src, dst, topology=Topology(places, places, 1, 1.0, 1.0))
    assert plan.pairs[0].geometry is plan.pairs[1].geometry
    assert [(t.src_rank, t.hop) for t in plan.receives(1) + plan.receives(2)] in (
        [(0, 0), (1, 1)],
        [(2, 1), (0, 0)],
    )
    assert [(t.src_rank, t.hop) for t in plan.receives(3) + plan.receives(4)] in (
        [(0, 0), (3, 1)],
        [(4, 1), (0, 0)],
    )
    assert [t.pair for rank in (1, 2, 3, 4) for t in plan.sends(rank)] == [0, 1]


def test_a_rank_is_proven_even_if_its_legs_are_those_of_another_one(monkeypatch):
    """Rank 2 stores nothing and gets nothing; so would rank 3, by a planner that is broken."""
    nothing = Taken()
    monkeypatch.setattr(SweepPlan, "takes", lambda plan, position: Turning(1, lambda turn: nothing))
    src = TensorSpec("w", (4,), "int8", BoxLayout({0: Box((0,), (4,))}))
    dst = TensorSpec("w", (4,), "int8", BoxLayout({2: (), 3: Box((0,), (4,))}))
    plan = make_plan([src], [dst])
    assert plan.receives(2) == []
    with pytest.raises(PlanError, match="rank 3 stores 4 elements but the plan writes 0"):
        plan.receives(3)
