"""Laws of whole-cluster figures: loads are those of the transfers, and no schedule beats the floor.

The oracle of the floor is `helpers.best_delivery`: all ways to deliver, and an LP over them.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from helpers import oracle
from helpers.best_delivery import best_seconds, busy_seconds
from helpers.topologies import min_stripe_bytes, placed_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import Box, BoxLayout, Layout, Mesh, Replicate, Shard, TensorSpec, make_plan
from reshard.floor import find_floor
from reshard.loads import find_loads
from reshard.needs import find_needs
from reshard.planner import Planner
from reshard.topology import Topology

R = Replicate()

# Brute force: minutes where the machine is slow.
pytestmark = pytest.mark.timeout(600)


def plan_and_planner(placed):
    problem = placed.problem
    plan = make_plan(problem.src, problem.dst, topology=placed.topology)
    return plan, Planner(plan.pairs, placed.topology)


@pytest.mark.parametrize("is_planned_here", [True, False])
@given(placed_problems())
def test_loads_are_the_sums_of_the_transfers(is_planned_here, placed):
    """Those of a plan that knows its places, and of one in which holders serve everybody."""
    with min_stripe_bytes(placed.stripe_bytes):
        planned_on = placed.topology if is_planned_here else None
        plan = make_plan(placed.problem.src, placed.problem.dst, topology=planned_on)
        loads = find_loads(plan.planner, placed.topology)
        sums = {name: Counter() for name in loads.__slots__[1:]}
        domains = placed.topology.domains
        for transfer in plan.transfers():
            src, dst, nbytes = transfer.src_rank, transfer.dst_rank, plan.nbytes(transfer)
            if src == dst:
                sums["copied"][src] += nbytes
                continue
            link = "link" if domains[src] == domains[dst] else "network"
            sums[f"{link}_sent"][src] += nbytes
            sums[f"{link}_received"][dst] += nbytes
            if transfer.hop:
                sums["forwarded"][src] += nbytes
                if link == "network":
                    sums["network_forwarded"][src] += nbytes
    assert loads.ranks == plan.ranks
    for name, per_rank in sums.items():
        assert getattr(loads, name) == tuple(per_rank[rank] for rank in plan.ranks), name
    assert loads.delivered == sum(map(plan.stored_bytes, plan.dst_ranks))


@given(placed_problems())
def test_what_a_domain_needs_is_what_its_ranks_want_and_none_of_them_holds(placed):
    plan, planner = plan_and_planner(placed)
    domains = placed.topology.domains
    lacking: Counter[tuple[int, ...]] = Counter()
    wanting: Counter[tuple[int, ...]] = Counter()
    for pairs in _by_source(plan).values():
        held = defaultdict(set)
        wanted = defaultdict(set)
        for pair in pairs:
            for rank in pair.src.layout.ranks:
                held[rank] |= _elements(pair.src, pair, rank)
            for rank in pair.dst.layout.ranks:
                wanted[rank] |= _elements(pair.dst, pair, rank)
        itemsize = min(pair.wire_dtype.itemsize for pair in pairs)
        for rank, elements in wanted.items():
            wanting[rank,] += itemsize * len(elements - held[rank])
        for domain in set(domains):
            inside = [rank for rank in wanted.keys() | held.keys() if domains[rank] == domain]
            have = set().union(*[held[rank] for rank in inside])
            want = set().union(*[wanted[rank] for rank in inside])
            lacking[domain,] += itemsize * len(want - have)
    needs = find_needs(planner, placed.topology)
    assert all(needs.into_domains[key] <= nbytes for key, nbytes in lacking.items())
    assert all(needs.into_ranks[key] <= nbytes for key, nbytes in wanting.items())
    if _is_plain(plan):
        assert needs.into_domains == +lacking
        assert needs.into_ranks == +wanting


def _by_source(plan):
    found = defaultdict(list)
    for pair in plan.pairs:
        wanted = next(part for part in pair.dst.parts if part.name == pair.name).names
        part = next(part for part in pair.src.parts if set(part.names) & set(wanted))
        found[pair.src.name, part.name].append(pair)
    return found


def _elements(spec, pair, rank):
    names = {name for part in pair.dst.parts if part.name == pair.name for name in part.names}
    places = oracle.canonical_places(spec, rank)
    (part,) = (part for part in spec.parts if names & set(part.names))
    held = next((places[name] for name in part.names if name in places), np.zeros(0, np.int64))
    return set(held[held != oracle.HOLE].tolist())


def _is_plain(plan):
    """True if nothing is read twice, so that what is needed is known to the byte."""
    layouts = [spec.layout for pair in plan.pairs for spec in (pair.src, pair.dst)]
    return all(isinstance(layout, Layout) for layout in layouts) and all(
        len(pairs) == 1 for pairs in _by_source(plan).values()
    )


@st.composite
def tiny_cases(draw):
    """One or two tensors, up to 3 source and 3 destination ranks in up to 3 domains."""
    shape = (draw(st.sampled_from((60, 61))), draw(st.sampled_from((60, 90))))

    def layout(count, first):
        sizes = draw(
            st.sampled_from({1: [(1, 1)], 2: [(1, 2), (2, 1)], 3: [(1, 3), (3, 1)]}[count])
        )
        placements = draw(st.sampled_from(((R, Shard(0)), (R, Shard(1)), (R, R), (Shard(0), R))))
        return Layout(Mesh(("a", "b"), sizes, tuple(range(first, first + count))), placements)

    num_src, num_dst = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    overlap = draw(st.integers(0, 1))
    sides = [
        (layout(num_src, 0), layout(num_dst, num_src - overlap))
        for _ in range(draw(st.integers(1, 2)))
    ]
    num_ranks = num_src + num_dst
    domains = tuple(draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks)))
    link = draw(st.sampled_from((50.0, 450.0)))
    # A host per rank: as many cards as ranks. One host per domain: all share a card.
    hosts = draw(st.sampled_from((tuple(range(num_ranks)), domains)))
    topology = Topology(hosts, domains, 1, 50.0, link, "tiny")
    src = [TensorSpec(f"w{i}", shape, "float32", a) for i, (a, _) in enumerate(sides)]
    dst = [TensorSpec(f"w{i}", shape, "float32", b) for i, (_, b) in enumerate(sides)]
    return src, dst, topology


# With links faster than cards, as they are, a plan may keep its busiest resource busy so many times
# as long as the best schedule would; 1.5 was the worst of 1,500 drawn cases, 1.02 their mean.
WORST = 2.0
# The same where explicit boxes overlap as they like: 3.0 the worst of 2,100, 1.04 their mean.
WORST_OF_BOXES = 4.0


@settings(max_examples=150)
@given(tiny_cases())
def test_no_schedule_beats_the_floor_and_the_plan_is_near_the_best(case):
    src, dst, topology = case
    with min_stripe_bytes(1):
        plan = make_plan(src, dst, topology=topology)
        floor = find_floor(Planner(plan.pairs, topology), topology)
        busy = busy_seconds(plan, topology)
    best = best_seconds(plan, topology)
    assert floor.seconds <= best * (1 + 1e-6)
    assert best <= busy * (1 + 1e-6)
    if topology.link_bytes_per_second > topology.nic_bytes_per_second:
        assert busy <= WORST * best * (1 + 1e-6)


@st.composite
def box_cases(draw):
    """One tensor in intervals that overlap as they like; some rank holds all of it."""
    length = 60
    num_src, num_dst = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ends = st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda pair: pair[0] < pair[1])

    def boxes(count, first):
        cuts = [draw(ends) for _ in range(count)]
        return {first + i: Box((10 * a, 0), (10 * (b - a), 100)) for i, (a, b) in enumerate(cuts)}

    held = boxes(num_src, 0)
    held[draw(st.integers(0, num_src - 1))] = Box((0, 0), (length, 100))
    wanted = boxes(num_dst, num_src - draw(st.integers(0, 1)))
    num_ranks = num_src + num_dst
    domains = tuple(draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks)))
    hosts = draw(st.sampled_from((tuple(range(num_ranks)), domains)))
    topology = Topology(hosts, domains, 1, 50.0, 450.0, "tiny")
    src = TensorSpec("w", (length, 100), "uint8", BoxLayout(held))
    dst = TensorSpec("w", (length, 100), "uint8", BoxLayout(wanted))
    return [src], [dst], topology


@settings(max_examples=150)
@given(box_cases())
def test_no_schedule_beats_the_floor_where_boxes_overlap(case):
    """What two ranks of a domain want of the same elements enters it once, in any case."""
    src, dst, topology = case
    with min_stripe_bytes(1):
        plan = make_plan(src, dst, topology=topology)
        floor = find_floor(plan.planner, topology)
        busy = busy_seconds(plan, topology)
    best = best_seconds(plan, topology)
    assert floor.seconds <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= busy <= WORST_OF_BOXES * best * (1 + 1e-6)
