"""Laws of rounds: everything moves once, nothing moves before it has come, memory stays bounded."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from helpers.topologies import min_stripe_bytes, placed_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import Layout, Mesh, PlanError, Replicate, Shard, TensorSpec, make_plan
from reshard.rounds import (
    MAX_GROUP_MESSAGES,
    MAX_GROUP_OPERATIONS,
    Pace,
    Rounds,
    agreed,
    pace_of,
    pace_of_all,
)
from reshard.spans import Spans
from reshard.topology import Topology

R = Replicate()

# Brute force: minutes where the machine is slow.
pytestmark = pytest.mark.timeout(600)


def elements_of(plan, transfer):
    space = plan.pairs[transfer.pair].geometry.space
    axes = [
        np.arange(a, b) * stride
        for a, b, stride in zip(transfer.start, transfer.stop, space.index_strides, strict=True)
    ]
    total = np.zeros((), np.int64)
    for axis in axes:
        total = np.add.outer(total, axis)
    return total.reshape(-1).tolist()


def run(plan, rounds):
    """Moves elements slot by slot; returns how often each was written."""
    arrived = defaultdict(set)
    written = Counter()
    transfers = [(transfer, elements_of(plan, transfer)) for transfer in plan.transfers()]
    for slot in range(rounds.num_slots):
        moved = []
        for transfer, elements in transfers:
            start, stop = rounds.chunk(transfer.pair, len(elements), transfer.hop, slot)
            if start == stop:
                continue
            assert slot in rounds.slots(transfer.pair, transfer.hop)
            chunk = elements[start:stop]
            place = transfer.pair, transfer.src_rank, transfer.src_copy
            if transfer.hop:
                assert arrived[place].issuperset(chunk), (transfer, slot)
            moved.append(((transfer.pair, transfer.dst_rank, transfer.copy), chunk))
        for place, chunk in moved:
            arrived[place].update(chunk)
            written.update((place, element) for element in chunk)
    return written


@given(placed_problems(), st.integers(1, 9))
def test_what_is_passed_on_came_in_a_slot_before(placed, num_rounds):
    problem = placed.problem
    with min_stripe_bytes(placed.stripe_bytes):
        plan = make_plan(problem.src, problem.dst, topology=placed.topology)
        rounds = Rounds(Pace(num_rounds, 1), plan.num_hops, Spans(plan.planner.kinds))
        written = run(plan, rounds)
        expected = Counter(
            ((t.pair, t.dst_rank, t.copy), element)
            for t in plan.transfers()
            for element in elements_of(plan, t)
        )
    assert written == expected


def stacks(num_layers, shape, src, dst, topology, dtype="bfloat16"):
    shapes = [shape if i % 3 else shape[:1] for i in range(num_layers)]

    def specs(layout):
        return [
            TensorSpec(f"w{i}", each, dtype, layout if len(each) > 1 else whole(layout))
            for i, each in enumerate(shapes)
        ]

    return make_plan(specs(src), specs(dst), topology=topology)


def whole(layout):
    return Layout.replicated(layout.mesh)


@settings(max_examples=20)
@given(
    st.integers(1, 12),
    st.sampled_from(((256, 128), (300, 77))),
    st.sampled_from((48 << 10, 96 << 10, 1 << 20)),
)
def test_two_rounds_fit_the_budget_on_every_rank(num_layers, shape, staging_bytes):
    topology = Topology.gb200_nvl72(16, ranks_per_domain=4)
    src = Layout(Mesh.of(dp=2, fsdp=4), (R, Shard(0)))
    dst = Layout(Mesh.of(dp=4, tp=2), (R, Shard(1))).shifted(8)
    with min_stripe_bytes(1 << 10):
        plan = stacks(num_layers, shape, src, dst, topology)
        spans = Spans(plan.planner.kinds)
        pace = agreed(pace_of(plan.rank_plan(rank), spans, staging_bytes) for rank in plan.ranks)
        rounds = Rounds(pace, plan.num_hops, spans)
        moved = Counter()
        for transfer in plan.transfers():
            if transfer.src_rank == transfer.dst_rank:
                continue
            itemsize = plan.nbytes(transfer) // transfer.num_elements
            for slot in rounds.slots(transfer.pair, transfer.hop):
                a, b = rounds.chunk(transfer.pair, transfer.num_elements, transfer.hop, slot)
                for rank in (transfer.src_rank, transfer.dst_rank):
                    moved[rank, slot] += (b - a) * itemsize
    # One slot's chunks are on the wire while the next one's are packed.
    held = [moved[rank, slot] + moved[rank, slot + 1] for rank, slot in list(moved)]
    assert max(held) <= staging_bytes


def test_spans_of_each_group_of_holders_fill_the_whole_time():
    shape, dst = (64, 64), Layout.replicated(Mesh.of(dp=1))
    stages = [Layout.replicated(Mesh(("dp",), (2,), (2 * i, 2 * i + 1))) for i in range(3)]
    specs = [TensorSpec(f"w{i}", shape, "bfloat16", stages[i % 3]) for i in range(9)]
    wanted = [TensorSpec(f"w{i}", shape, "bfloat16", dst.shifted(9)) for i in range(9)]
    found = Spans(make_plan(specs, wanted).planner.kinds)
    spans = [found.of(number) for number in range(9)]
    for stage in range(3):
        edges = [(span.start / span.total, span.stop / span.total) for span in spans[stage::3]]
        assert [edge[0] for edge in edges[1:]] == [edge[1] for edge in edges[:-1]]
        assert math.isclose(edges[0][0], 0)
        assert math.isclose(edges[-1][1], 1)


class _WithoutDelay(Rounds):
    """Passes on in the very slot in which it comes: the negative control of `run`."""

    def chunk(self, pair, num_elements, hop, slot):
        del hop
        return Rounds.chunk(self, pair, num_elements, 0, slot)


def test_the_check_of_what_has_come_can_fail():
    src = Layout.replicated(Mesh.of(dp=1))
    dst = Layout.replicated(Mesh.of(dp=2)).shifted(1)
    topology = Topology((0, 1, 1), (0, 1, 1), 1, 1.0, 1.0)
    plan = stacks(2, (64, 64), src, dst, topology)
    spans = Spans(plan.planner.kinds)
    run(plan, Rounds(Pace(3, 1), plan.num_hops, spans))
    with pytest.raises(AssertionError):
        run(plan, _WithoutDelay(Pace(3, 1), plan.num_hops, spans))


def test_a_budget_below_one_element_per_leg_is_refused():
    src = Layout.replicated(Mesh.of(dp=1))
    plan = stacks(2, (64, 64), src, Layout.replicated(Mesh.of(dp=2)).shifted(1), None)
    with pytest.raises(PlanError, match=r"staging_bytes=16 is too small for rank 0 even in 104857"):
        pace_of(plan.rank_plan(0), Spans(plan.planner.kinds), 16)


def test_hops_that_meet_in_a_slot_fit_the_budget_together():
    """Holders serve one tensor from one end of a chain of domains, another from the other end."""
    num_takers, shape = 6, (1 << 12, 64)
    ranks = tuple(range(1, num_takers + 1))
    there = Layout.replicated(Mesh(("dp",), (num_takers,), ranks))
    back = Layout.replicated(Mesh(("dp",), (num_takers,), ranks[::-1]))
    src = Layout.replicated(Mesh.of(dp=1))
    plan = make_plan(
        [TensorSpec(name, shape, "float32", src) for name in "ab"],
        [TensorSpec("a", shape, "float32", there), TensorSpec("b", shape, "float32", back)],
        topology=Topology(tuple(range(7)), tuple(range(7)), 1, 50.0, 450.0),
    )
    spans, staging_bytes = Spans(plan.planner.kinds), 256 << 10
    plans = [plan.rank_plan(rank) for rank in plan.ranks]
    pace = agreed(pace_of(each, spans, staging_bytes) for each in plans)
    rounds = Rounds(pace, plan.num_hops, spans)
    moved = Counter()
    for transfer in plan.transfers():
        for slot in rounds.slots(transfer.pair, transfer.hop):
            a, b = rounds.chunk(transfer.pair, transfer.num_elements, transfer.hop, slot)
            for rank in (transfer.src_rank, transfer.dst_rank):
                moved[rank, slot] += (b - a) * 4
    assert plan.num_hops == num_takers
    assert max(moved[r, s] + moved[r, s + 1] for r, s in list(moved)) <= staging_bytes


def test_a_rank_that_moves_nothing_needs_one_round():
    layout = Layout.replicated(Mesh.of(dp=2))
    plan = stacks(2, (64, 64), layout, layout, None)
    assert pace_of(plan.rank_plan(0), Spans(plan.planner.kinds), 1) == Pace(1, 1, 1024)


def test_a_rank_of_many_peers_posts_in_groups():
    num_ranks = 600
    src = Layout(Mesh.of(fsdp=num_ranks), (Shard(0),))
    specs = [TensorSpec("w", (num_ranks, 8), "float32", src)]
    dst = Layout.replicated(Mesh.of(dp=1)).shifted(num_ranks)
    plan = make_plan(specs, [TensorSpec("w", (num_ranks, 8), "float32", dst)])
    pace = pace_of(plan.rank_plan(num_ranks), Spans(plan.planner.kinds), 1 << 20)
    rounds = Rounds(pace, 1, Spans(plan.planner.kinds))
    groups = Counter(rounds.group(rank, num_ranks) for rank in range(num_ranks))
    assert pace.num_groups == 4
    assert max(groups.values()) <= MAX_GROUP_OPERATIONS
    assert pace.messages_per_pair == MAX_GROUP_MESSAGES // max(groups.values())
    few = agreed([pace_of(plan.rank_plan(rank), rounds.spans, 1 << 20) for rank in (0, num_ranks)])
    assert few == pace


@pytest.mark.parametrize("num_local", [1, 3, 8, 300])
def test_the_ranks_of_one_process_share_what_a_group_takes(num_local):
    src = Layout(Mesh.of(fsdp=64), (Shard(0),))
    dst = Layout(Mesh.of(tp=num_local), (Shard(1),)).shifted(64)
    specs = [TensorSpec("w", (64, 600), "float32", layout) for layout in (src, dst)]
    plan = make_plan(specs[:1], specs[1:])
    spans = Spans(plan.planner.kinds)
    plans = [plan.rank_plan(64 + i) for i in range(num_local)]
    pace = pace_of_all(plans, spans, 1 << 20, num_local)
    groups = Counter(
        Rounds(pace, 1, spans).group(peer, each.rank)
        for each in plans
        for peer, _, _ in each.messages
    )
    assert sum(len(each.messages) for each in plans) == 64 * num_local
    assert pace.messages_per_pair >= 1
    if num_local <= MAX_GROUP_OPERATIONS // 2:
        assert max(groups.values()) <= MAX_GROUP_OPERATIONS
        assert max(groups.values()) * pace.messages_per_pair <= MAX_GROUP_MESSAGES


def test_peers_behind_and_ahead_share_a_group_however_many_there_are():
    """No number of groups parts what a rank of a ring sends ahead from what comes from behind."""
    shards = (Shard(0),)
    src = Layout(Mesh(("ring",), (4,), (0, 1, 2, 3)), shards)
    dst = Layout(Mesh(("ring",), (4,), (1, 2, 3, 0)), shards)
    plan = make_plan(*([TensorSpec("w", (8, 8), "float32", layout)] for layout in (src, dst)))
    plans = [plan.rank_plan(rank) for rank in range(4)]
    pace = pace_of_all(plans, Spans(plan.planner.kinds), 1 << 20, num_local=300)
    assert (pace.num_groups, pace.messages_per_pair) == (1, 1)
