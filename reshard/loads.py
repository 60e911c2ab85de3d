"""How many bytes each rank sends and receives, by kind of link: sums over a whole plan.

Sums are made per distinct geometry, by position, and then added up over the tensors that share it.
So they cost as much as the geometries and the ranks, not as the tensors or the transfers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reshard.delivery import Delivery
from reshard.domain_delivery import DomainDelivery
from reshard.geometry_plan import GeometryPlan
from reshard.kinds import Kind
from reshard.place_table import PlaceTable
from reshard.places import Places
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


class _Volumes:
    """What a group of ranks sends and receives, by their index; pairs are (within, across domains).

    Attributes:
        sent: per holder.
        received: per taker, of what holders send.
        forwarded, arrived: per taker, of what takers send on.
        copied: per taker, of what it has received and stores several times.
    """

    def __init__(self, num_holders: int, num_takers: int) -> None:
        self.sent = [0] * num_holders, [0] * num_holders
        self.received = [0] * num_takers, [0] * num_takers
        self.forwarded = [0] * num_takers, [0] * num_takers
        self.arrived = [0] * num_takers, [0] * num_takers
        self.copied = [0] * num_takers


class _PositionLoads(_Volumes):
    """Elements that move for one tensor of a geometry, by position of both sides.

    Attributes:
        in_place: per destination position, of what it holds as a source.
    """

    def __init__(self, num_src: int, num_dst: int) -> None:
        super().__init__(num_src, num_dst)
        self.in_place = [0] * num_dst

    def add(self, shipment: Shipment, volumes: _Volumes, per_index: int) -> None:
        """Adds what a shipment moves between ranks."""
        takers = [position for position, _ in shipment.takers]
        for link in (0, 1):
            _add_at(self.sent[link], shipment.holders, volumes.sent[link], per_index)
            _add_at(self.received[link], takers, volumes.received[link], per_index)
            _add_at(self.forwarded[link], takers, volumes.forwarded[link], per_index)
            _add_at(self.arrived[link], takers, volumes.arrived[link], per_index)
        _add_at(self.copied, takers, volumes.copied, per_index)


def _add_at(sums: list[int], positions: Sequence[int], volumes: list[int], factor: int) -> None:
    if any(volumes):
        for position, volume in zip(positions, volumes, strict=True):
            sums[position] += volume * factor


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
                self.always.in_place[taker] += shipment.num_elements
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
            if is_alike and self._is_planned_here and isinstance(delivery, DomainDelivery):
                volumes = _volumes_by_group(delivery, len(shipment.holders), len(takers))
            else:
                domains = _domains_of(takers, shipment.holders, self._places)
                volumes = _volumes_of(delivery, takers, *domains)
            found = delivery, volumes
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
    """Returns what each part of a delivery adds up to, wherever its ranks are."""
    volumes = _Volumes(len(holder_domains), len(taker_domains))
    for taker, domain in enumerate(taker_domains):
        for peer, start, stop, hop in delivery.received(taker):
            volume = stop - start
            if hop == 0:
                is_far = holder_domains[peer] != domain
                volumes.sent[is_far][peer] += volume
                volumes.received[is_far][taker] += volume
            elif takers[peer] == takers[taker]:
                volumes.copied[taker] += volume
            else:
                is_far = taker_domains[peer] != domain
                volumes.forwarded[is_far][peer] += volume
                volumes.arrived[is_far][taker] += volume
    return volumes


def _volumes_by_group(delivery: DomainDelivery, num_holders: int, num_takers: int) -> _Volumes:
    """Returns the same of ranks that are where they were planned for, each once among the takers.

    What a group receives from outside, all of its others receive from those who did.
    """
    volumes = _Volumes(num_holders, num_takers)
    for members, is_near, inflows in delivery.groups():
        own = dict.fromkeys(members, 0)
        for taker, peer, start, stop, hop in inflows:
            volume = stop - start
            own[taker] += volume
            if hop == 0:
                volumes.sent[not is_near][peer] += volume
                volumes.received[not is_near][taker] += volume
            else:
                volumes.forwarded[True][peer] += volume
                volumes.arrived[True][taker] += volume
        whole = sum(own.values())
        for taker, volume in own.items():
            volumes.arrived[False][taker] += whole - volume
            volumes.forwarded[False][taker] += volume * (len(members) - 1)
    return volumes


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
        _add_all(self._sums["copied"], dst, loads.in_place, first)
        _add_all(self._sums["copied"], dst, loads.copied, later)

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
    places = PlaceTable(topology, planner.kinds)
    found: dict[tuple[int, int], _GeometryLoads] = {}
    total = _RankLoads(planner.ranks)
    for kind in planner.kinds if kinds is None else kinds:
        number, where = places.of(kind)
        plan = planner.plan_of(kind)
        loads = found.get((id(plan), number))
        if loads is None:
            sizes = len(kind.src_ranks), len(kind.dst_ranks)
            loads = found[id(plan), number] = _GeometryLoads(
                plan, where, sizes, is_planned_here=planner.topology is topology
            )
        _add_kind(total, kind, loads)
    return total.sums()


def _add_kind(total: _RankLoads, kind: Kind, loads: _GeometryLoads) -> None:
    first, later = kind.itemsizes
    count = len(kind.numbers)
    total.add(kind, loads.always, first * count, later * count)
    for turn, numbers in kind.turns(loads.period).items():
        moving = loads.of_turn(turn)
        if moving is not None:
            total.add(kind, moving, first * len(numbers), later * len(numbers))
