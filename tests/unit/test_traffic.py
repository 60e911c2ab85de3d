"""Bytes that a rank has under way at most, against what its rounds really move."""

from __future__ import annotations

import pytest

from reshard import Layout, Mesh, Model, Parallelism, Replicate, TensorSpec, Topology, make_plan
from reshard.rounds import Pace, Rounds, agreed, pace_of
from reshard.spans import Spans
from reshard.traffic import rank_traffic

ONE = Layout(Mesh.of(dp=1), (Replicate(),))
TWO = Layout(Mesh.of(dp=2), (Replicate(),))


def plan_of(*shapes, dst=ONE):
    """Returns a plan from rank 0, of which rank 1 takes all tensors, rank 2 what `dst` says."""
    src = [TensorSpec(f"w{i}", shape, "uint8", ONE) for i, shape in enumerate(shapes)]
    wanted = [
        TensorSpec(f"w{i}", shape, "uint8", (dst if i % 2 else ONE).shifted(1))
        for i, shape in enumerate(shapes)
    ]
    return make_plan(src, wanted)


def traffic_of(plan, rank):
    return rank_traffic(plan.rank_plan(rank), Spans(plan.planner.kinds))


def moved_per_round(plan, rank, num_rounds):
    """Returns the bytes that a rank sends and receives in each round."""
    rounds = Rounds(Pace(num_rounds, 1), 1, Spans(plan.planner.kinds))
    moved = [0] * num_rounds
    for transfer in (*plan.sends(rank), *plan.receives(rank)):
        for number in range(num_rounds):
            a, b = rounds.chunk(transfer.pair, transfer.num_elements, 0, number)
            moved[number] += b - a
    return moved


def test_all_bytes_are_counted():
    plan = plan_of((4000,), (1000,), dst=TWO)
    assert [traffic_of(plan, rank).nbytes for rank in (0, 1, 2)] == [6000, 5000, 1000]
    assert traffic_of(plan, 2).last_hop == 0


def test_a_steady_rank_moves_as_much_at_all_times():
    """Rank 1 takes every tensor whole, and time is shared out by that."""
    traffic = traffic_of(plan_of((4000,), (1000,), (3000,)), 1)
    assert traffic.most_within(1 / 8) == 8000 // 8 + 1
    assert traffic.num_rounds(1001) == 8
    assert traffic.num_rounds(8001) == 1


def test_the_busiest_moment_counts_wherever_it_is():
    """Rank 0 sends every other tensor twice; rank 2 takes these alone."""
    plan = plan_of(*[(1000,)] * 8, dst=TWO)
    sender, taker = traffic_of(plan, 0), traffic_of(plan, 2)
    assert sender.most_within(1 / 8) == 2000 + 1
    assert sender.most_within(1) == 12_000
    assert taker.most_within(1 / 4) == 2000 + 1
    assert taker.most_within(1 / 2) == taker.most_within(1) == 4000


@pytest.mark.parametrize("num_rounds", [1, 2, 3, 5, 8, 13, 100])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_no_round_moves_more_than_the_bound(rank, num_rounds):
    plan = plan_of((4000,), (1000,), (30,), (700,), (1,), dst=TWO)
    traffic = traffic_of(plan, rank)
    most = max(moved_per_round(plan, rank, num_rounds))
    assert most <= traffic.most_within(1 / num_rounds) + traffic.rounding
    assert most > traffic.most_within(1 / num_rounds) / 3, "a bound that says nothing"


def test_rounds_fit_their_budget_and_one_round_less_would_not():
    plan = plan_of(*[(1000,)] * 8, dst=TWO)
    traffic = traffic_of(plan, 0)
    for budget in (150, 601, 999, 2001, 5000):
        number = traffic.num_rounds(budget)
        assert traffic.most_within(1 / number) <= budget
        assert number == 1 or traffic.most_within(1 / (number - 1)) > budget


@pytest.mark.parametrize("staging_bytes", [64 << 20, 1 << 30])
def test_a_view_says_how_many_rounds_all_ranks_agree_on(staging_bytes):
    model = Model.load("qwen3-235b")
    src, dst = Parallelism.parse("pp4,ep8"), Parallelism.parse("tp16,dp2")
    plan = make_plan(
        src.specs(model),
        dst.specs(model, src.num_ranks),
        topology=Topology.gb200_nvl72(src.num_ranks + dst.num_ranks),
        staging_bytes=staging_bytes,
    )
    spans = Spans(plan.planner.kinds)
    pace = agreed([pace_of(plan.rank_plan(rank), spans, staging_bytes) for rank in plan.ranks])
    shown = plan.view.pace
    assert pace.num_rounds * 0.99 <= shown.num_rounds <= pace.num_rounds
    assert shown.num_groups == pace.num_groups
