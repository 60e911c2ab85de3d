"""Bytes that a rank has under way at most, against what its rounds really move."""

from __future__ import annotations

import pytest

from reshard import (
    Box,
    BoxLayout,
    Layout,
    LocalBox,
    Mesh,
    Model,
    Parallelism,
    PlanError,
    Replicate,
    Shard,
    TensorSpec,
    Topology,
    make_plan,
)
from reshard.rounds import Pace, Rounds, pace_of, pace_of_all
from reshard.spans import Spans
from reshard.timeline import Timeline
from reshard.traffic import MAX_ROUNDS, Traffic

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
    return Traffic(plan.rank_plan(rank), Spans(plan.planner.kinds))


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


def test_where_rates_say_too_much_the_order_of_tensors_counts():
    """Rank 2 takes a small tensor after every large one, never two of them in a row."""
    shapes = [(1000,), (10,)] * 50
    plan = plan_of(*shapes, dst=TWO)
    traffic = traffic_of(plan, 2)
    assert traffic.nbytes == 500
    assert traffic.most_within(1 / 100) == 500  # side by side they would take a hundredth
    number = traffic.num_rounds(25)
    assert 20 <= number < 30
    assert max(moved_per_round(plan, 2, number)) <= 25 + traffic.rounding


def test_the_most_of_a_time_may_end_at_an_edge():
    """A fast tensor after a slow one and before a slower one."""
    plan = plan_of((400,), (200,), (400,))
    kinds = Spans(plan.planner.kinds)
    line = Timeline([(0, 0, 400), (0, 1, 2000), (0, 2, 40)], kinds)
    # The fast one takes a fifth of the time; the rest is best taken before it.
    assert line.most_within(0.3) == pytest.approx(2000 + 100)
    assert line.most_within(0.1) == pytest.approx(1000)
    assert line.most_within(2) == pytest.approx(2440)


def test_rounding_is_an_element_per_leg_of_two_tensors():
    src = [TensorSpec("w", (1000,), "float64", ONE)]
    dst = [TensorSpec("w", (1000,), "float64", ONE.shifted(1))]
    assert traffic_of(make_plan(src, dst), 1).rounding == 2 * 8


def test_trainers_of_many_shards_need_few_rounds():
    """Small tensors lie between large ones, which rates alone would count as if side by side."""
    model = Model.load("qwen3-235b")
    src, dst = Parallelism.parse("fsdp48"), Parallelism.parse("tp4,dp2")
    sides = src.specs(model), dst.specs(model, 48)
    plan = make_plan(*sides, topology=Topology.dgx_h100(56), staging_bytes=64 << 20)
    assert plan.view.pace.num_rounds < 8000  # some 6,000 by simulation
    with pytest.raises(PlanError, match="give at least") as caught:
        _ = make_plan(*sides, topology=Topology.dgx_h100(56), staging_bytes=1 << 10).view
    assert int(str(caught.value).rsplit(" ", 1)[1].rstrip(".")) < 16 << 20


def test_what_fits_at_once_takes_one_round():
    plan = plan_of((1,))
    assert traffic_of(plan, 1).num_rounds(1) == 1
    assert traffic_of(plan, 1).num_rounds(0) is None


def test_no_budget_takes_more_than_the_most_rounds():
    """A tensor of three bytes beside one of ten million that goes elsewhere."""
    plan = plan_of((10_000_000,), (3,), dst=Layout(Mesh(("x",), (1,), (1,)), (Replicate(),)))
    traffic = traffic_of(plan, 2)
    assert traffic.nbytes == 3
    for budget in range(4):
        number = traffic.num_rounds(budget)
        assert number is None or number <= MAX_ROUNDS


def test_copies_inside_a_rank_do_not_count():
    """A rank that stores a box three times gets it once."""
    whole = Box((0,), (1 << 20,))
    thrice = BoxLayout({1: [LocalBox(whole, (i << 20,)) for i in range(3)]})
    plan = make_plan(
        [TensorSpec("w", (1 << 20,), "uint8", ONE)],
        [TensorSpec("w", (1 << 20,), "uint8", thrice)],
        topology=Topology((0, 1), (0, 1), 1, 1.0, 1.0),
    )
    assert traffic_of(plan, 1).nbytes == 1 << 20


def test_colocated_ranks_count_what_leaves_them():
    """Ranks 0 and 1 hold halves and want the whole: half is there already."""
    halves = Layout(Mesh.of(x=2), (Shard(0),))
    plan = make_plan(
        [TensorSpec("w", (1000,), "uint8", halves)], [TensorSpec("w", (1000,), "uint8", TWO)]
    )
    for rank in (0, 1):
        assert traffic_of(plan, rank).nbytes == 1000  # 500 out, 500 in


def test_what_goes_on_counts_as_it_is_stored():
    """A widening cast: sent as float16, passed on as float32."""
    src = [TensorSpec("w", (1 << 20,), "float16", ONE)]
    dst = [TensorSpec("w", (1 << 20,), "float32", TWO.shifted(1))]
    plan = make_plan(
        src,
        dst,
        casts=[("float16", "float32")],
        topology=Topology((0, 1, 1), (0, 1, 1), 2, 1.0, 100.0),
    )
    traffic = traffic_of(plan, 1)
    mib = 1 << 20
    assert traffic.last_hop == 1
    # Half of it comes from the holder; it goes on, and the other half comes.
    assert traffic.nbytes == mib // 2 * 2 + mib // 2 * 4 + mib // 2 * 4


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_holders_in_any_order_are_one_group(ranks):
    """Two layouts of the same ranks move one after the other, not side by side."""
    src = [TensorSpec("a", (1000,), "uint8", TWO)]
    other = Layout(Mesh(("x",), (2,), ranks), (Replicate(),))
    src.append(TensorSpec("b", (1000,), "uint8", other))
    dst = [TensorSpec(name, (1000,), "uint8", ONE.shifted(2)) for name in "ab"]
    spans = Spans(make_plan(src, dst).planner.kinds)
    assert [spans.of(0), spans.of(1)] == [(0, 1000, 2000), (1000, 2000, 2000)]


def test_spans_are_as_long_as_bytes_are_many():
    src = [TensorSpec("a", (1000,), "uint8", ONE), TensorSpec("b", (1000,), "float32", ONE)]
    dst = [TensorSpec(spec.name, (1000,), spec.dtype, ONE.shifted(1)) for spec in src]
    spans = Spans(make_plan(src, dst).planner.kinds)
    assert [spans.of(0), spans.of(1)] == [(0, 1000, 5000), (1000, 5000, 5000)]


def test_rounds_are_short_where_something_is_passed_on():
    """All of it would fit into one round, but whoever passes it on waits for that."""
    topology = Topology((0, 1, 1), (0, 1, 1), 2, 1.0, 100.0)
    sides = [TensorSpec("w", (1 << 28,), "uint8", each) for each in (ONE, TWO.shifted(1))]
    plan = make_plan(sides[:1], sides[1:], topology=topology)
    spans = Spans(plan.planner.kinds)
    assert pace_of(plan.rank_plan(1), spans, 1 << 32).num_rounds == 16
    assert pace_of(plan.rank_plan(0), spans, 1 << 32).num_rounds == 1


def test_rounds_are_the_shorter_the_more_often_something_is_passed_on():
    """A chain of three domains, one card each."""
    places = (0, 1, 2, 3)
    everyone = Layout.replicated(Mesh.of(x=3)).shifted(1)
    sides = [TensorSpec("w", (1 << 28,), "uint8", each) for each in (ONE, everyone)]
    topology = Topology(places, places, 1, 1.0, 100.0)
    plan = make_plan(sides[:1], sides[1:], topology=topology)
    spans = Spans(plan.planner.kinds)
    found = [pace_of(plan.rank_plan(rank), spans, 1 << 32).num_rounds for rank in (1, 2, 3)]
    assert plan.num_hops == 3
    assert found == [16, 32, 32]


def test_a_long_chain_of_domains_fits_the_budget_in_every_slot():
    """One element per tensor and domain: what rounding adds, it adds for each hop."""
    num_domains, num_tensors = 48, 12
    places = tuple(range(num_domains + 1))
    ranks = list(range(1, num_domains + 1))
    src, dst = [], []
    for i in range(num_tensors):
        order = tuple(ranks[4 * i :] + ranks[: 4 * i])
        chain = Layout(Mesh(("x",), (num_domains,), order), (Replicate(),))
        src.append(TensorSpec(f"w{i}", (1,), "complex128", ONE))
        dst.append(TensorSpec(f"w{i}", (1,), "complex128", chain))
    plan = make_plan(src, dst, topology=Topology(places, places, 1, 1e-9, 1.0))
    spans = Spans(plan.planner.kinds)
    plans = [plan.rank_plan(rank) for rank in plan.ranks]
    with pytest.raises(PlanError, match=r"give at least (\d+)") as caught:
        pace_of_all(plans, spans, 1)
    staging_bytes = int(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    rounds = Rounds(pace_of_all(plans, spans, staging_bytes), plan.num_hops, spans)
    moved: dict[tuple[int, int], int] = {}
    for transfer in plan.transfers():
        for slot in rounds.slots(transfer.pair, transfer.hop):
            a, b = rounds.chunk(transfer.pair, transfer.num_elements, transfer.hop, slot)
            for rank in (transfer.src_rank, transfer.dst_rank):
                moved[rank, slot] = moved.get((rank, slot), 0) + (b - a) * 16
    assert plan.num_hops == num_domains
    assert max(moved[r, s] + moved.get((r, s + 1), 0) for r, s in moved) <= staging_bytes


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-235b"])
def test_the_budget_that_an_error_names_suffices(model):
    request = Model.load(model)
    src, dst = Parallelism.parse(str(request.trainer)), Parallelism.parse(str(request.generator))
    sides = src.specs(request), dst.specs(request, src.num_ranks)
    topology = Topology.dgx_h100(src.num_ranks + dst.num_ranks)
    with pytest.raises(PlanError, match="give at least") as caught:
        _ = make_plan(*sides, topology=topology, staging_bytes=1 << 10).view
    least = int(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    assert make_plan(*sides, topology=topology, staging_bytes=least).view.pace.num_rounds > 1
    with pytest.raises(PlanError, match="give at least"):
        _ = make_plan(*sides, topology=topology, staging_bytes=least // 2).view


@pytest.mark.parametrize("staging_bytes", [64 << 20, 1 << 30])
@pytest.mark.parametrize(
    ("src", "dst", "share"),
    [("dp8", "tp4,dp5", 1.0), ("pp5,dp3", "pp3,ep16", 1.0), ("pp16,ep16", "tp32,dp2", 0.95)],
)
def test_a_view_says_how_many_rounds_all_ranks_agree_on(src, dst, share, staging_bytes):
    model = Model.load("qwen3-235b")
    sides = Parallelism.parse(src), Parallelism.parse(dst)
    plan = make_plan(
        sides[0].specs(model),
        sides[1].specs(model, sides[0].num_ranks),
        topology=Topology.gb200_nvl72(sides[0].num_ranks + sides[1].num_ranks),
        staging_bytes=staging_bytes,
    )
    plans = [plan.rank_plan(rank) for rank in plan.ranks]
    pace = pace_of_all(plans, Spans(plan.planner.kinds), staging_bytes)
    shown = plan.view.pace
    assert pace.num_rounds * share <= shown.num_rounds <= pace.num_rounds
    assert shown.num_groups == pace.num_groups
