"""The best that any schedule could do, by brute force: every way to deliver, and an LP over them.

Elements with the same holders and the same takers are one class. A way to deliver it gives each
taker a parent, a holder or another taker; the LP mixes all ways of all classes such that the
busiest resource is busy for as short as possible. That is the optimum of all schedules which may
cut as finely as they like and overlap all they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.optimize import linprog

from helpers import oracle
from reshard import Plan
from reshard.topology import Topology

__all__ = ["best_seconds", "busy_seconds", "element_classes"]

Resource = tuple[str, int]


def element_classes(plan: Plan) -> Counter[tuple[frozenset[int], frozenset[int]]]:
    """Returns wire bytes per (holders, takers); takers hold nothing of them."""
    classes: Counter[tuple[frozenset[int], frozenset[int]]] = Counter()
    for pair in plan.pairs:
        held, wanted = (_masks(spec, pair.num_elements) for spec in (pair.src, pair.dst))
        for both, count in zip(
            *np.unique(np.stack([held, wanted & ~held], 1), axis=0, return_counts=True), strict=True
        ):
            if both[1]:
                nbytes = int(count) * pair.wire_dtype.itemsize
                classes[_ranks(int(both[0])), _ranks(int(both[1]))] += nbytes
    return classes


def _masks(spec, num_elements):
    masks = np.zeros(num_elements, np.int64)
    for rank in spec.layout.ranks:
        places = oracle.canonical_places(spec, rank)
        if places:
            (held,) = places.values()
            masks[held[held != oracle.HOLE]] |= 1 << rank
    return masks


def _ranks(mask: int) -> frozenset[int]:
    return frozenset(rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def _ways(holders: frozenset[int], takers: frozenset[int]) -> Iterator[dict[int, int]]:
    """Yields every {taker: parent} in which everybody descends from a holder."""
    order = sorted(takers)
    for parents in product(*[sorted(holders | (takers - {taker})) for taker in order]):
        way = dict(zip(order, parents, strict=True))
        if all(_descends(taker, way, holders) for taker in order):
            yield way


def _descends(rank: int, way: dict[int, int], holders: frozenset[int]) -> bool:
    for _ in way:
        rank = way[rank]
        if rank in holders:
            return True
    return False


def _uses(src: int, dst: int, topology: Topology) -> list[Resource]:
    """Returns what a byte between two ranks keeps busy."""
    a, b = topology.domains[src], topology.domains[dst]
    if a == b:
        return [("out of rank", src), ("into rank", dst)]
    return [("out of domain", a), ("into domain", b)]


def _rate(resource: Resource, topology: Topology) -> float:
    kind, number = resource
    if kind.endswith("rank"):
        return topology.link_bytes_per_second
    zipped = zip(topology.hosts, topology.domains, strict=True)
    hosts = {host for host, domain in zipped if domain == number}
    return len(hosts) * topology.nics_per_host * topology.nic_bytes_per_second


def busy_seconds(plan: Plan, topology: Topology) -> float:
    """Returns how long the busiest resource is busy with a plan."""
    busy: Counter[Resource] = Counter()
    for transfer in plan.transfers():
        if transfer.src_rank != transfer.dst_rank:
            for resource in _uses(transfer.src_rank, transfer.dst_rank, topology):
                busy[resource] += plan.nbytes(transfer)
    return max((n / _rate(resource, topology) for resource, n in busy.items()), default=0.0)


def best_seconds(plan: Plan, topology: Topology) -> float:
    """Returns the optimum over all ways to deliver the same elements."""
    columns: list[tuple[int, Counter[Resource]]] = []
    classes = list(element_classes(plan).items())
    for number, ((holders, takers), nbytes) in enumerate(classes):
        for way in _ways(holders, takers):
            used: Counter[Resource] = Counter()
            for taker, parent in way.items():
                for resource in _uses(parent, taker, topology):
                    used[resource] += nbytes / _rate(resource, topology)
            columns.append((number, used))
    if not columns:
        return 0.0
    resources = sorted({resource for _, used in columns for resource in used})
    busy = np.array([[used[resource] for _, used in columns] + [-1.0] for resource in resources])
    whole = np.array(
        [[float(c == number) for c, _ in columns] + [0.0] for number in range(len(classes))]
    )
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    scale = float(busy.max())
    found = linprog(
        cost,
        A_ub=busy / scale if scale else busy,
        b_ub=np.zeros(len(resources)),
        A_eq=whole,
        b_eq=np.ones(len(classes)),
    )
    return float(found.x[-1])
