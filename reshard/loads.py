"""How many bytes each rank sends and receives, by kind of link: sums over a whole plan.

Sums are made per distinct geometry, by position, and then added up over the tensors that share it.
So they cost as much as the geometries and the ranks, not as the tensors or the transfers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reshard.delivery import Delivery
from reshard.geometry_plan import GeometryPlan
from reshard.kinds import Kind
from reshard.places import Places, PlaceTable
from reshard.planner import Planner
from reshard.shipment import Shipment
from reshard.topology import Topology

__all__ = ["Loads", "find_loads"]


@dataclass(frozen=True, slots=True)
class Loads:
    """Bytes on the wire per rank; all tuples are in the order of `ranks`.

    Attributes:
        ranks: ranks of both sides, ascending.
        network_sent, network_received: bytes to and from other domains.
        link_sent, link_received: bytes to and from other ranks of the own domain.
        forwarded: the part of what is sent that was received before.
        network_forwarded: of that, what goes to other domains.
        copied: bytes that a rank has already, or stores several times, and copies in place.
    """

    ranks: tuple[int, ...]
    network_sent: tuple[int, ...]
    network_received: tuple[int, ...]
    link_sent: tuple[int, ...]
    link_received: tuple[int, ...]
    forwarded: tuple[int, ...]
    network_forwarded: tuple[int, ...]
    copied: tuple[int, ...]

    @property
    def crossing(self) -> int:
        """Bytes that enter domains."""
        return sum(self.network_received)

    @property
    def delivered(self) -> int:
        """Bytes that reach destinations, copies in place included."""
        return sum(self.network_received) + sum(self.link_received) + sum(self.copied)

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends, over any link."""
        return tuple(map(sum, zip(self.network_sent, self.link_sent, strict=True)))

    @property
    def received(self) -> tuple[int, ...]:
        """Bytes that each rank receives, over any link."""
        return tuple(map(sum, zip(self.network_received, self.link_received, strict=True)))


class _Volumes(NamedTuple):
    """What one delivery has its ranks send and receive, in indices of the striped dim.

    Pairs are (within the domain, across). A list goes over the holders or over the takers.
    """

    sent: list[tuple[int, int]]
    received: list[tuple[int, int]]
    forwarded: list[tuple[int, int]]
    arrived: list[tuple[int, int]]
    copied: list[int]


class _PositionLoads:
    """Elements that move for one tensor of a geometry, by position; pairs as in `_Volumes`.

    Attributes:
        sent: per source position.
        received: per destination position, of what holders send.
        forwarded, arrived: per destination position, of what destination ranks send on.
        copied: per destination position, of what it holds as a source.
        copied_on: per destination position, of what it has received and stores several times.
    """

    def __init__(self, num_src: int, num_dst: int) -> None:
        self.sent = ([0] * num_src, [0] * num_src)
        self.received = ([0] * num_dst, [0] * num_dst)
        self.forwarded = ([0] * num_dst, [0] * num_dst)
        self.arrived = ([0] * num_dst, [0] * num_dst)
        self.copied = [0] * num_dst
        self.copied_on = [0] * num_dst

    def add(self, shipment: Shipment, volumes: _Volumes, per_index: int) -> None:
        """Adds what a shipment moves between ranks."""
        for index, position in enumerate(shipment.holders):
            _add_pair(self.sent, position, volumes.sent[index], per_index)
        for index, (position, _) in enumerate(shipment.takers):
            _add_pair(self.received, position, volumes.received[index], per_index)
            _add_pair(self.forwarded, position, volumes.forwarded[index], per_index)
            _add_pair(self.arrived, position, volumes.arrived[index], per_index)
            self.copied_on[position] += volumes.copied[index] * per_index


def _add_pair(
    lists: tuple[list[int], list[int]], position: int, pair: tuple[int, int], factor: int
) -> None:
    near, far = pair
    if near:
        lists[0][position] += near * factor
    if far:
        lists[1][position] += far * factor


class _GeometryLoads:
    """What tensors of one geometry move, by rotation."""

    def __init__(
        self,
        plan: GeometryPlan,
        places: Places | None,
        sizes: tuple[int, int],
        *,
        is_planned_here: bool,
    ) -> None:
        self._places, self._sizes, self._is_planned_here = places, sizes, is_planned_here
        self._volumes: dict[tuple[object, ...], tuple[Delivery, _Volumes]] = {}
        self._turning: list[Shipment] = []
        self._turns: dict[int, _PositionLoads] = {}
        self.period = 1
        self.always = _PositionLoads(*sizes)
        for shipment in plan.shipments():
            for _, taker, _ in shipment.local:
                self.always.copied[taker] += shipment.num_elements
            delivery = shipment.delivery
            if delivery is None:
                continue
            if delivery.period > 1:
                self._turning.append(shipment)
                self.period = math.lcm(self.period, delivery.period)
            else:
                self._add(self.always, shipment, delivery)

    def of_turn(self, rotation: int) -> _PositionLoads | None:
        """Returns what moves besides `always` for tensors of a rotation; None for nothing."""
        if not self._turning:
            return None
        if rotation not in self._turns:
            loads = self._turns[rotation] = _PositionLoads(*self._sizes)
            for shipment in self._turning:
                if shipment.delivery is not None:
                    self._add(loads, shipment, shipment.delivery.turned(rotation))
        return self._turns[rotation]

    def _add(self, loads: _PositionLoads, shipment: Shipment, delivery: Delivery) -> None:
        # Deliveries are shared by boxes whose ranks lie alike, so the first box speaks for all; but
        # they do not know which takers are one rank, nor places that they were not planned for.
        takers = [position for position, _ in shipment.takers]
        is_alike = len(set(takers)) == len(takers)
        key: tuple[object, ...] = (id(delivery),)
        if not self._is_planned_here:
            key += _domains_of(takers, shipment.holders, self._places)
        found = self._volumes.get(key) if is_alike else None
        if found is None:
            domains = _domains_of(takers, shipment.holders, self._places)
            found = delivery, _volumes_of(delivery, takers, *domains)
        if is_alike:
            self._volumes[key] = found
        loads.add(shipment, found[1], shipment.num_elements // delivery.striping.length)


def _domains_of(
    takers: list[int], holders: tuple[int, ...], places: Places | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the domain of each taker and of each holder; without places all are in one."""
    if places is None:
        return (0,) * len(takers), (0,) * len(holders)
    dst, src = places.dst, places.src
    return tuple([dst[position] for position in takers]), tuple([src[each] for each in holders])


def _volumes_of(
    delivery: Delivery,
    takers: list[int],
    taker_domains: tuple[int, ...],
    holder_domains: tuple[int, ...],
) -> _Volumes:
    sent = [[0, 0] for _ in holder_domains]
    received, forwarded, arrived = ([[0, 0] for _ in takers] for _ in range(3))
    copied = [0] * len(takers)
    for taker, domain in enumerate(taker_domains):
        for peer, start, stop, hop in delivery.received(taker):
            volume = stop - start
            if hop == 0:
                is_far = holder_domains[peer] != domain
                sent[peer][is_far] += volume
                received[taker][is_far] += volume
            elif takers[peer] == takers[taker]:
                copied[taker] += volume
            else:
                is_far = taker_domains[peer] != domain
                forwarded[peer][is_far] += volume
                arrived[taker][is_far] += volume
    return _Volumes(_pairs(sent), _pairs(received), _pairs(forwarded), _pairs(arrived), copied)


def _pairs(lists: list[list[int]]) -> list[tuple[int, int]]:
    return [(near, far) for near, far in lists]


class _RankLoads:
    """Bytes per rank, while they are added up."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ranks = ranks
        self._sums: dict[str, Counter[int]] = {name: Counter() for name in Loads.__slots__[1:]}

    def add(self, kind: Kind, loads: _PositionLoads, first: int, later: int) -> None:
        """Adds tensors of one kind.

        Args:
            kind: whose ranks the positions are.
            loads: in elements.
            first: bytes on the wire per element, times the number of tensors.
            later: the same for what is sent on.
        """
        src, dst = kind.src_ranks, kind.dst_ranks
        for link, prefix in enumerate(("link", "network")):
            sent, received = self._sums[f"{prefix}_sent"], self._sums[f"{prefix}_received"]
            _add_all(sent, src, loads.sent[link], first)
            _add_all(received, dst, loads.received[link], first)
            _add_all(sent, dst, loads.forwarded[link], later)
            _add_all(self._sums["forwarded"], dst, loads.forwarded[link], later)
            _add_all(received, dst, loads.arrived[link], later)
        _add_all(self._sums["network_forwarded"], dst, loads.forwarded[1], later)
        _add_all(self._sums["copied"], dst, loads.copied, first)
        _add_all(self._sums["copied"], dst, loads.copied_on, later)

    def sums(self) -> Loads:
        """Returns what was added."""
        columns = [tuple([sums[rank] for rank in self._ranks]) for sums in self._sums.values()]
        return Loads(self._ranks, *columns)


def _add_all(sums: Counter[int], ranks: tuple[int, ...], volumes: list[int], factor: int) -> None:
    if any(volumes):
        for rank, volume in zip(ranks, volumes, strict=True):
            if volume:
                sums[rank] += volume * factor


def find_loads(
    planner: Planner, topology: Topology | None, kinds: Iterable[Kind] | None = None
) -> Loads:
    """Returns the loads of all ranks.

    Args:
        planner: of the plan.
        topology: decides which transfers stay in a domain; the planner may know another or none.
        kinds: the planner's kinds of pairs to look at; None means all.

    Raises:
        PlanError: if a source layout does not hold what a destination wants.
    """
    places = PlaceTable(topology, planner.pairs)
    found: dict[tuple[int, int], _GeometryLoads] = {}
    total = _RankLoads(planner.ranks)
    for kind in planner.kinds if kinds is None else kinds:
        number, where = places.of(kind.first)
        plan = planner.plan_of(kind)
        loads = found.get((id(plan), number))
        if loads is None:
            sizes = len(kind.src_ranks), len(kind.dst_ranks)
            loads = found[id(plan), number] = _GeometryLoads(
                plan, where, sizes, is_planned_here=planner.topology is topology
            )
        _add_kind(total, planner, kind, loads)
    return total.sums()


def _add_kind(total: _RankLoads, planner: Planner, kind: Kind, loads: _GeometryLoads) -> None:
    turns: Counter[int] = Counter()
    first: Counter[int] = Counter()
    later: Counter[int] = Counter()
    for number, rotation in kind.members:
        pair, turn = planner.pairs[number], rotation % loads.period
        turns[turn] += 1
        first[turn] += pair.dtype_at(0).itemsize
        later[turn] += pair.dtype_at(1).itemsize
    total.add(kind, loads.always, first.total(), later.total())
    for turn in turns:
        moving = loads.of_turn(turn)
        if moving is not None:
            total.add(kind, moving, first[turn], later[turn])
