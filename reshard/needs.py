"""What has to move at least once, whatever the plan: bytes that ranks and domains want and lack.

Bytes count as on the wire. Elements that several destination tensors read from one source tensor
count once per rank or domain: for each of these, the tensor that wants most of them there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from reshard.box_sets import disjoint_volume
from reshard.geometry_plan import GeometryPlan
from reshard.kinds import Kind
from reshard.matching import TensorPair
from reshard.planner import Planner
from reshard.shipment import Shipment
from reshard.topology import Topology
from reshard.transfer import BoxKey

__all__ = ["Needs", "find_needs"]

Group = tuple[int, ...]
Partition = tuple[tuple[int, ...], tuple[int, ...]]


class Needs(NamedTuple):
    """Bytes that have to move at least once, per ascending group of ranks or of domains.

    Attributes:
        into_ranks: of one rank each: bytes that it wants and does not hold.
        into_domains: of one domain each: bytes that its ranks want and none of them holds.
        only_on_ranks: bytes that only these ranks hold and another rank wants.
        only_in_domains: bytes that only these domains hold and another domain wants.
    """

    into_ranks: Counter[Group]
    into_domains: Counter[Group]
    only_on_ranks: Counter[Group]
    only_in_domains: Counter[Group]


def find_needs(planner: Planner, topology: Topology) -> Needs:
    """Returns what has to move.

    Args:
        planner: of a plan; only which boxes there are matters, not who serves whom.
        topology: where all ranks are.

    Raises:
        PlanError: if a source layout does not hold what a destination wants.
    """
    partitions = _Partitions(topology)
    found: dict[tuple[int, Partition], Needs] = {}
    per_kind: list[Needs] = []
    for kind in planner.kinds:
        plan = planner.plan_of(kind)
        key = id(plan), partitions.of(kind)
        if key not in found:
            found[key] = _by_position(plan, key[1])
        per_kind.append(_of_kind(kind, found[key], topology))
    total = _nothing()
    for numbers, count in _readers(planner).items():
        for sums, each in zip(total, _union([per_kind[n] for n in numbers]), strict=True):
            for group, nbytes in each.items():
                sums[group] += nbytes * count
    return total


def _nothing() -> Needs:
    return Needs(Counter(), Counter(), Counter(), Counter())


class _Partitions:
    """Which ranks of kinds share a domain: numbers by position, alike where ranks lie alike."""

    def __init__(self, topology: Topology) -> None:
        self._domains = topology.domains
        self._found: dict[tuple[int, int], Partition] = {}

    def of(self, kind: Kind) -> Partition:
        """Returns the domain of each rank of both sides."""
        key = id(kind.src_ranks), id(kind.dst_ranks)
        if key not in self._found:
            numbers: dict[int, int] = {}
            src, dst = (
                tuple([numbers.setdefault(self._domains[rank], len(numbers)) for rank in ranks])
                for ranks in (kind.src_ranks, kind.dst_ranks)
            )
            self._found[key] = src, dst
        return self._found[key]


def _by_position(plan: GeometryPlan, partition: Partition) -> Needs:
    """Returns elements of one tensor; a domain is named by a position of its side that is in it."""
    needs = _nothing()
    firsts: tuple[dict[int, int], dict[int, int]] = {}, {}
    for first, domains in zip(firsts, partition, strict=True):
        for position, domain in enumerate(domains):
            first.setdefault(domain, position)
    boxes: defaultdict[tuple[int, Group], list[BoxKey]] = defaultdict(list)
    for shipment in plan.shipments():
        volume = shipment.num_elements
        for number, group in _groups(shipment, partition, *firsts):
            needs[number][group] += volume
            if not plan.are_apart:
                boxes[number, group].append(shipment.box)
    for (number, group), each in boxes.items():
        needs[number][group] = disjoint_volume(each)
    return needs


def _groups(
    shipment: Shipment,
    partition: Partition,
    first_src: Mapping[int, int],
    first_dst: Mapping[int, int],
) -> Iterator[tuple[int, Group]]:
    """Yields who needs a box and who alone has it: (number of a field of `Needs`, positions)."""
    takers = {taker for taker, _ in shipment.takers}
    if not takers:
        return
    yield from [(0, (taker,)) for taker in takers]
    yield 2, shipment.holders
    src, dst = partition
    held = {src[holder] for holder in shipment.holders}
    far = {dst[taker] for taker in takers} - held
    yield from [(1, (first_dst[domain],)) for domain in far]
    if far:
        yield 3, tuple(sorted([first_src[domain] for domain in held]))


def _of_kind(kind: Kind, elements: Needs, topology: Topology) -> Needs:
    """Returns bytes of one tensor of a kind."""
    itemsize = kind.first.wire_dtype.itemsize
    domains = topology.domains
    needs = _nothing()
    for sums, positions, ranks, is_domain in zip(
        needs,
        elements,
        (kind.dst_ranks, kind.dst_ranks, kind.src_ranks, kind.src_ranks),
        (False, True, False, True),
        strict=True,
    ):
        for group, volume in positions.items():
            members = [ranks[position] for position in group]
            key = tuple(sorted({domains[rank] for rank in members} if is_domain else members))
            sums[key] += volume * itemsize
    return needs


def _readers(planner: Planner) -> Counter[Group]:
    """Returns, for tensors that read one source tensor, their kinds; and how many of such sets."""
    kind_of = {number: k for k, kind in enumerate(planner.kinds) for number in kind.numbers}
    readers: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for number, pair in enumerate(planner.pairs):
        readers[id(pair.src), _source_part(pair)].append(kind_of[number])
    return Counter([tuple(sorted(kinds)) for kinds in readers.values()])


def _source_part(pair: TensorPair) -> str:
    """Returns the canonical name of what a pair reads of its source tensor."""
    if len(pair.src.parts) == 1:
        return pair.src.parts[0].name
    names = {name for part in pair.dst.parts if part.name == pair.name for name in part.names}
    return next(part.name for part in pair.src.parts if names.intersection(part.names))


def _union(needs: Iterable[Needs]) -> Needs:
    """Returns what is needed by one tensor or the other, for each group the larger number."""
    total = _nothing()
    for each in needs:
        for sums, other in zip(total, each, strict=True):
            sums |= other
    return total
