"""Laws of plans over random pairs of sides. No byte moves and no native library is needed."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from helpers import oracle
from helpers.strategies import Problem, problems
from helpers.topologies import min_stripe_bytes, placed_problems
from hypothesis import assume, given
from hypothesis import strategies as st

import reshard
from reshard import (
    Buffer,
    Layout,
    Mesh,
    Plan,
    Shard,
    TensorSpec,
    Transfer,
    make_plan,
    reference_transfers,
)
from reshard.geometry_plan import GridPlan
from reshard.grid import NotAGrid
from reshard.kinds import kinds_of
from reshard.logical_space import Side, pieces_of_rank
from reshard.matching import TensorPair
from reshard.place_table import PlaceTable
from reshard.places import DeliveryTable
from reshard.program_table import make_program_tables
from reshard.sweep import SweepPlan
from reshard.topology import Topology


def plan_of(problem: Problem) -> Plan:
    return make_plan(problem.src, problem.dst)


def elements_of(plan: Plan, transfer: Transfer) -> np.ndarray:
    """Returns the canonical elements (row-major index) of a transfer."""
    return elements_between(plan.pairs[transfer.pair], transfer.start, transfer.stop)


def elements_between(pair: TensorPair, start: tuple[int, ...], stop: tuple[int, ...]) -> np.ndarray:
    axes = [
        np.arange(a, b) * stride
        for a, b, stride in zip(start, stop, pair.geometry.space.index_strides, strict=True)
    ]
    total = np.zeros((), np.int64)
    for axis in axes:
        total = np.add.outer(total, axis)
    return total.reshape(-1)


def held_elements(spec: TensorSpec, names: tuple[str, ...], rank: int) -> np.ndarray:
    """Returns the canonical elements that a rank stores, each as often as it stores it."""
    places = oracle.canonical_places(spec, rank)
    (held,) = (places[name] for name in names if name in places)
    return held[held != oracle.HOLE]


def names_of(spec: TensorSpec, name: str) -> tuple[str, ...]:
    (part,) = (part for part in spec.parts if name in part.names)
    return part.names


@given(problems())
def test_the_rank_local_plans_are_the_reference_plan(problem):
    plan = plan_of(problem)
    received = list(plan.transfers())
    sent = [transfer for rank in plan.src_ranks for transfer in plan.sends(rank)]
    reference = list(reference_transfers(plan.pairs))
    assert len(set(received)) == len(received)
    assert sorted(sent) == sorted(received)
    assert sorted(reference) == sorted(received)
    plan.check()


@given(problems())
def test_each_stored_element_is_written_once(problem):
    plan = plan_of(problem)
    written: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for transfer in plan.transfers():
        written[transfer.pair, transfer.dst_rank].update(elements_of(plan, transfer).tolist())
    for number, pair in enumerate(plan.pairs):
        for rank in pair.dst.layout.ranks:
            stored = held_elements(pair.dst, names_of(pair.dst, pair.name), rank)
            assert written[number, rank] == Counter(stored.tolist())


@given(problems())
def test_copies_tell_the_pieces_of_a_rank_apart(problem):
    plan = plan_of(problem)
    written: Counter[tuple[int, int, int, int]] = Counter()
    for transfer in plan.transfers():
        key = transfer.pair, transfer.dst_rank, transfer.copy
        written.update((*key, element) for element in elements_of(plan, transfer).tolist())
    assert max(written.values(), default=1) == 1


@given(problems())
def test_a_rank_sends_only_what_it_holds(problem):
    plan = plan_of(problem)
    held: dict[tuple[int, int], set[int]] = {}
    for transfer in plan.transfers():
        pair = plan.pairs[transfer.pair]
        key = transfer.pair, transfer.src_rank
        if key not in held:
            elements = held_elements(
                pair.src, names_of(pair.src, source_name(pair)), transfer.src_rank
            )
            held[key] = set(elements.tolist())
        assert held[key].issuperset(elements_of(plan, transfer).tolist())


def source_name(pair) -> str:
    wanted = set(names_of(pair.dst, pair.name))
    (name,) = {part.name for part in pair.src.parts if wanted & set(part.names)}
    return name


@given(problems())
def test_what_a_rank_holds_already_is_not_sent_to_it(problem):
    plan = plan_of(problem)
    for transfer in plan.transfers():
        pair = plan.pairs[transfer.pair]
        rank = transfer.dst_rank
        if transfer.src_rank != rank and pair.src.layout.position(rank) is not None:
            own = held_elements(pair.src, names_of(pair.src, source_name(pair)), rank)
            assert set(own.tolist()).isdisjoint(elements_of(plan, transfer).tolist())


@given(problems())
def test_both_ends_of_a_stream_have_the_same_boxes_in_the_same_order(problem):
    plan = plan_of(problem)
    ends = defaultdict(list), defaultdict(list)
    for rank in plan.ranks:
        for transfer in plan.sends(rank):
            ends[0][transfer.src_rank, transfer.dst_rank].append(transfer)
        for transfer in plan.receives(rank):
            ends[1][transfer.src_rank, transfer.dst_rank].append(transfer)
    assert ends[0] == ends[1]


@given(placed_problems(), st.booleans(), st.integers(0, 12))
def test_the_two_planners_agree_where_both_apply(placed, is_placed, rotation):
    with min_stripe_bytes(placed.stripe_bytes):
        compared = 0
        for pair in plan_of(placed.problem).pairs:
            geometry = pair.geometry
            (kind,) = kinds_of([pair])
            _, places = PlaceTable(placed.topology if is_placed else None, [kind]).of(kind)
            try:
                table = DeliveryTable(places, geometry.counted_bytes)
                grid = GridPlan(geometry, table)
            except NotAGrid:
                continue
            sweep = SweepPlan(geometry, table)
            for position in range(len(geometry.src.layout.ranks)):
                assert grid.sends(position).of(rotation) == sweep.sends(position).of(rotation)
            for position in range(len(geometry.dst.layout.ranks)):
                assert grid.takes(position).of(rotation) == sweep.takes(position).of(rotation)
            compared += 1
    assume(compared)


@given(problems())
def test_legs_do_not_depend_on_what_was_asked_before(problem):
    plan, again = plan_of(problem), plan_of(problem)
    forwards = {rank: transfers_of(plan, rank) for rank in plan.ranks}
    backwards = {rank: transfers_of(again, rank) for rank in reversed(again.ranks)}
    assert forwards == backwards


def transfers_of(plan, rank):
    """Returns all that a rank sends and receives, in order."""
    return plan.sends(rank), plan.receives(rank)


@given(problems())
def test_stream_bytes_and_schedule_follow_from_the_transfers(problem):
    plan = plan_of(problem)
    expected: Counter[tuple[int, int]] = Counter()
    for transfer in plan.transfers():
        if transfer.src_rank != transfer.dst_rank:
            expected[transfer.src_rank, transfer.dst_rank] += (
                transfer.num_elements * problem.dtype.itemsize
            )
    assert plan.stream_bytes() == dict(expected)
    chunk = plan.schedule.chunk_bytes
    assert plan.schedule.num_rounds == math.ceil(max(expected.values(), default=0) / chunk)
    assert plan.schedule.staging_bytes <= plan.staging_bytes


@given(problems())
def test_describe_and_explain_speak_about_every_tensor_and_rank(problem):
    plan = plan_of(problem)
    text = plan.describe()
    assert text.startswith(f"{len(plan.pairs)} tensor")
    assert plan.digest[:16] in text
    pair = plan.pairs[-1]
    for rank in (plan.src_ranks[0], plan.dst_ranks[-1]):
        assert pair.name in plan.explain(pair.name, rank)


@given(problems())
def test_equal_inputs_give_equal_digests(problem):
    rebuilt = [[eval_again(spec) for spec in side] for side in problem.sides]
    assert make_plan(*rebuilt).digest == plan_of(problem).digest


def eval_again(spec: TensorSpec) -> TensorSpec:
    found = eval(repr(spec), vars(reshard))
    assert isinstance(found, TensorSpec)
    return found


@given(problems(), st.data())
def test_a_change_of_any_spec_changes_the_digest(problem, data):
    side = data.draw(st.sampled_from((0, 1)))
    specs = [list(own) for own in problem.sides]
    index = data.draw(st.integers(0, len(specs[side]) - 1))
    specs[side][index] = specs[side][index].shifted(100)
    assert make_plan(*specs).digest != plan_of(problem).digest


@given(problems())
def test_staging_budget_is_part_of_the_digest(problem):
    other = make_plan(*problem.sides, staging_bytes=1 << 20)
    assert other.digest != plan_of(problem).digest


@given(problems())
def test_tables_hold_what_the_plan_says(problem):
    """Wire bytes, order and sizes of the operations of each stream, on both ends."""
    plan = plan_of(problem)
    buffers = [
        {(rank, spec.name): buffer_like(spec, rank) for spec in specs for rank in spec.layout.ranks}
        for specs in problem.sides
    ]
    sizes: tuple[dict, dict] = {}, {}
    for rank in plan.ranks:
        tables = make_program_tables(plan, [rank], *buffers)
        streams = rows(tables.streams)
        for stream, wire in zip(streams, wire_sizes(tables, len(streams)), strict=True):
            direction, src, dst = stream
            sizes[direction][src, dst] = wire
    assert sizes[0] == sizes[1]


def rows(table) -> list[tuple[int, ...]]:
    values = list(table)
    return [tuple(values[i : i + 3]) for i in range(0, len(values), 3)]


def wire_sizes(tables, num_streams: int) -> list[list[tuple[int, ...]]]:
    """Returns, per stream, (wire dtype, sizes) of its operations; checks every one's extent."""
    found: list[list[tuple[int, ...]]] = [[] for _ in range(num_streams)]
    table = list(tables.operations)
    position = 0
    while position < len(table):
        stream, buffer, offset, memory_dtype, wire, ndim = table[position : position + 6]
        extents = table[position + 6 : position + 6 + ndim]
        strides = table[position + 6 + ndim : position + 6 + 2 * ndim]
        position += 6 + 2 * ndim
        found[stream].append((wire, *extents))
        low, high = tables.extents[2 * buffer : 2 * buffer + 2]
        spans = [(n - 1) * stride for n, stride in zip(extents, strides, strict=True)]
        assert memory_dtype == wire
        assert low <= offset + sum(span for span in spans if span < 0)
        assert offset + sum(span for span in spans if span > 0) < high
    return found


def buffer_like(spec: TensorSpec, rank: int) -> Buffer:
    shape = spec.layout.local_shape(rank, spec.shape)
    strides, step = [], spec.dtype.itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return Buffer(0, shape, tuple(reversed(strides)), spec.dtype)


@pytest.mark.parametrize("num_ranks", [1, 7, 10_000])
def test_one_rank_of_a_wide_mesh_is_planned_alone(num_ranks):
    rows_ = Layout(Mesh.of(fsdp=num_ranks), (Shard(0),))
    columns = Layout(Mesh.of(tp=num_ranks), (Shard(1),)).shifted(num_ranks)
    src = TensorSpec("w", (70_000, 70_000), "bfloat16", rows_)
    dst = TensorSpec("w", (70_000, 70_000), "bfloat16", columns)
    plan = make_plan([src], [dst])
    last = 2 * num_ranks - 1
    assert len(plan.receives(last)) == num_ranks
    assert sum(t.num_elements for t in plan.receives(last)) == 70_000**2 // num_ranks


# ---- where ranks are in several domains ----------------------------------------------------------


@given(placed_problems())
def test_with_domains_too_the_rank_local_plans_are_the_reference_plan(placed):
    plan = make_plan(placed.problem.src, placed.problem.dst, topology=placed.topology)
    with min_stripe_bytes(placed.stripe_bytes):
        received = list(plan.transfers())
        sent = [transfer for rank in plan.ranks for transfer in plan.sends(rank)]
        reference = list(reference_transfers(plan.pairs, plan.planner.topology))
    assert len(set(received)) == len(received)
    assert sorted(sent) == sorted(received)
    assert sorted(reference) == sorted(received)


@given(placed_problems())
def test_with_domains_too_each_stored_element_is_written_once(placed):
    """As often as the rank stores it, and each piece once."""
    plan = make_plan(placed.problem.src, placed.problem.dst, topology=placed.topology)
    written: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    pieces: Counter[tuple[int, int, int, int]] = Counter()
    with min_stripe_bytes(placed.stripe_bytes):
        for transfer in plan.transfers():
            elements = elements_of(plan, transfer).tolist()
            key = transfer.pair, transfer.dst_rank
            written[key].update(elements)
            pieces.update((*key, transfer.copy, element) for element in elements)
    assert max(pieces.values(), default=1) == 1
    for number, pair in enumerate(plan.pairs):
        for rank in pair.dst.layout.ranks:
            stored = held_elements(pair.dst, names_of(pair.dst, pair.name), rank)
            assert written[number, rank] == Counter(stored.tolist())


@given(placed_problems())
def test_a_rank_sends_only_what_it_holds_or_has_received_by_then(placed):
    plan = make_plan(placed.problem.src, placed.problem.dst, topology=placed.topology)
    with min_stripe_bytes(placed.stripe_bytes):
        transfers = sorted(plan.transfers(), key=lambda transfer: transfer.hop)
    # Per pair, rank and copy: the hop at which each element arrived there.
    arrived: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    for transfer in transfers:
        elements = elements_of(plan, transfer).tolist()
        pair = plan.pairs[transfer.pair]
        if transfer.hop == 0:
            assert transfer.src_copy == 0
            names = names_of(pair.src, source_name(pair))
            assert set(held_elements(pair.src, names, transfer.src_rank)).issuperset(elements)
        else:
            own = arrived[transfer.pair, transfer.src_rank, transfer.src_copy]
            assert all(own.get(element, transfer.hop) < transfer.hop for element in elements)
        here = arrived[transfer.pair, transfer.dst_rank, transfer.copy]
        here.update(dict.fromkeys(elements, transfer.hop))
    with min_stripe_bytes(placed.stripe_bytes):
        assert plan.num_hops == 1 + max((transfer.hop for transfer in transfers), default=0)


NUM_CARDS = 8
"""Of a host at most, as `placed_problems` draws them."""


@given(placed_problems())
def test_each_element_enters_a_domain_once_and_none_enters_where_it_is_held(placed):
    """Where links are faster than cards, as they are."""
    rate = placed.topology.nic_bytes_per_second
    topology = dataclasses.replace(placed.topology, link_bytes_per_second=9 * rate * NUM_CARDS)
    plan = make_plan(placed.problem.src, placed.problem.dst, topology=topology)
    domains = topology.domains
    entered: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    with min_stripe_bytes(placed.stripe_bytes):
        for transfer in plan.transfers():
            domain = domains[transfer.dst_rank]
            if domains[transfer.src_rank] != domain:
                entered[transfer.pair, domain].update(elements_of(plan, transfer).tolist())
    for number, pair in enumerate(plan.pairs):
        held, wanted = boxes_by_domain(pair, domains, 0), boxes_by_domain(pair, domains, 1)
        for domain, boxes in wanted.items():
            here = {i for box in held[domain] for i in elements_between(pair, *box).tolist()}
            wanted_here = {i for box in boxes for i in elements_between(pair, *box).tolist()}
            assert entered[number, domain] == Counter(wanted_here - here)


def boxes_by_domain(pair: TensorPair, domains: tuple[int, ...], side: int):
    """Returns, per domain, the different logical boxes that its ranks store of one side."""
    spec = (pair.src, pair.dst)[side]
    rows = (pair.geometry.src, pair.geometry.dst)[side].rows
    found: dict[int, set[tuple[tuple[int, ...], tuple[int, ...]]]] = defaultdict(set)
    for rank in spec.layout.ranks:
        own = Side(spec.shape, spec.layout, rows)
        for piece in pieces_of_rank(own, len(pair.geometry.space.shape), rank):
            found[domains[rank]].add((piece.start, piece.stop))
    return found


@given(problems())
def test_within_one_domain_what_few_hold_is_exchanged_by_those_who_want_it(problem):
    """Everybody gets the same as without a topology, and holders send no more than before."""
    ranks = [rank for side in problem.sides for spec in side for rank in spec.layout.ranks]
    plan = make_plan(
        problem.src, problem.dst, topology=Topology.one_host(1 + max(ranks, default=0))
    )
    plain = plan_of(problem)
    assert plain.num_hops == 1
    assert plan.num_hops <= 2
    is_even = not plan.planner.shares and not plain.planner.shares
    sent: list[tuple[int, int]] = []
    for rank in plan.ranks:
        assert plan.stored_bytes(rank) == plain.stored_bytes(rank)
        first, before = (
            sum(each.nbytes(t) for t in each.sends(rank) if t.hop == 0) for each in (plan, plain)
        )
        assert first <= before or plan.num_hops == 1 or not is_even
        sent.append((first, before))
    assert sum(first for first, _ in sent) <= sum(before for _, before in sent)


@given(placed_problems())
def test_with_domains_too_both_ends_of_a_stream_have_the_same_operations(placed):
    """Hop by hop, for that is how programs are made."""
    problem = placed.problem
    plan = make_plan(problem.src, problem.dst, topology=placed.topology)
    buffers = [
        {(rank, spec.name): buffer_like(spec, rank) for spec in specs for rank in spec.layout.ranks}
        for specs in problem.sides
    ]
    with min_stripe_bytes(placed.stripe_bytes):
        transfers = list(plan.transfers())
        for hop in range(plan.num_hops):
            sizes: tuple[dict, dict] = {}, {}
            for rank in plan.ranks:
                tables = make_program_tables(plan, [rank], *buffers, hop)
                streams = rows(tables.streams)
                for stream, wire in zip(streams, wire_sizes(tables, len(streams)), strict=True):
                    direction, src, dst = stream
                    sizes[direction][src, dst] = wire
            assert sizes[0] == sizes[1]
            count = sum(transfer.hop == hop for transfer in transfers)
            assert sum(map(len, sizes[0].values())) == count


@given(placed_problems())
def test_with_domains_too_legs_do_not_depend_on_what_was_asked_before(placed):
    plan, again = (
        make_plan(placed.problem.src, placed.problem.dst, topology=placed.topology)
        for _ in range(2)
    )
    with min_stripe_bytes(placed.stripe_bytes):
        forwards = {rank: transfers_of(plan, rank) for rank in plan.ranks}
        backwards = {rank: transfers_of(again, rank) for rank in reversed(again.ranks)}
    assert forwards == backwards


def test_with_domains_too_a_plan_checks_itself():
    everywhere = Layout.replicated(Mesh.of(dp=4)).shifted(1)
    src = TensorSpec("w", (64, 64), "float32", Layout.replicated(Mesh.of(dp=1)))
    dst = TensorSpec("w", (64, 64), "float32", everywhere)
    places = (0, 1, 1, 2, 2)
    make_plan([src], [dst], topology=Topology(places, places, 1, 1.0, 1.0)).check()
