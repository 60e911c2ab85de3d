"""The transfers of one geometry, seen from one rank; what all pairs of that geometry share.

`GridPlan` computes a rank's own share by arithmetic. `SweepPlan` compares boxes of all ranks, for
layouts without product structure. Both give the same transfers where both apply.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from operator import sub
from typing import NamedTuple, Protocol

from reshard.delivery import Delivery, Part
from reshard.errors import PlanError
from reshard.grid import NotAGrid
from reshard.grid_pair import GridPair, Meeting
from reshard.legs import Leg, Taken, Turning
from reshard.matching import Geometry
from reshard.places import DeliveryTable
from reshard.shipment import Shipment
from reshard.sweep import SweepPlan
from reshard.transfer import BoxKey

__all__ = ["GeometryPlan", "GridPlan", "make_geometry_plan"]


class GeometryPlan(Protocol):
    """What planners of one geometry answer, by position of a rank in its side's layout.

    Legs come in canonical order.

    Attributes:
        are_apart: True if no two shipments that one domain receives have common elements.
    """

    are_apart: bool

    def sends(self, position: int) -> Turning[tuple[Leg, ...]]:
        """Returns what a source rank sends; peers are positions of the destination."""

    def takes(self, position: int) -> Turning[Taken]:
        """Returns what a destination rank receives and sends on."""

    def shipments(self) -> list[Shipment]:
        """Returns every box that moves between any two ranks."""


def make_geometry_plan(
    geometry: Geometry, table: DeliveryTable | None = None, grids: GridPair | None = None
) -> GeometryPlan:
    """Returns the planner that fits a geometry.

    Args:
        geometry: what all pairs of this kind have in common.
        table: deliveries between its ranks; None means that holders serve everybody, evenly.
        grids: of the geometry; None means that they have to be found, if there are any.

    Raises:
        PlanError: if the source does not hold every element that the destination wants.
    """
    try:
        return GridPlan(geometry, table, grids)
    except NotAGrid:
        return SweepPlan(geometry, table)


class GridPlan:
    """Rank-local planner of two grids.

    Args:
        geometry: what all pairs of this kind have in common.
        table: deliveries between its ranks; None means that holders serve everybody, evenly.
        grids: of the geometry; None means that they have to be found.

    Raises:
        NotAGrid: if a side has no product structure.
        PlanError: if no source rank holds a slice of a stack.

    Attributes:
        grids: for other planners of the same geometry.
    """

    def __init__(
        self,
        geometry: Geometry,
        table: DeliveryTable | None = None,
        grids: GridPair | None = None,
    ) -> None:
        self.grids = GridPair(geometry) if grids is None else grids
        if not self.grids.is_complete:
            raise PlanError("no source rank holds this slice of the stored stack.")
        self._table = table or DeliveryTable(None, geometry.counted_bytes)
        # Each box comes whole from its only holder, whoever else wants it.
        self._is_simple = not self._table.has_domains and self.grids.has_lone_holders
        self._sending: dict[int, Turning[tuple[Leg, ...]]] = {}
        self._taking: dict[int, Turning[Taken]] = {}
        self._shipments: list[Shipment] | None = None
        self.are_apart = True

    def sends(self, position: int) -> Turning[tuple[Leg, ...]]:
        """Returns what a source rank sends."""
        found = self._sending.get(position)
        if found is None:
            boxes = list(self._sent(position))

            def make(turn: int) -> tuple[Leg, ...]:
                return tuple(sorted([leg for each in boxes for leg in each.sends(turn)]))

            found = self._sending[position] = Turning(_period_of(boxes), make)
        return found

    def takes(self, position: int) -> Turning[Taken]:
        """Returns what a destination rank receives and sends on."""
        found = self._taking.get(position)
        if found is None:
            if self._is_simple:
                receives = tuple(sorted(self.grids.received(position)))
                found = self._taking[position] = Turning(1, lambda turn: Taken(receives))
                return found
            boxes = list(self._taken(position))

            def make(turn: int) -> Taken:
                kinds: tuple[list[Leg], list[Leg], list[Leg]] = [], [], []
                for each in boxes:
                    each.add_taken(turn, *kinds)
                return Taken(*[tuple(sorted(legs)) for legs in kinds])

            found = self._taking[position] = Turning(_period_of(boxes), make)
        return found

    def shipments(self) -> list[Shipment]:
        """Returns every box that moves between any two ranks."""
        if self._shipments is None:
            self._shipments = [
                Shipment(
                    each.box,
                    tuple([(holder, taker, 0) for taker, holder in each.local.items()]),
                    each.holders,
                    tuple([(taker, 0) for taker in each.takers]),
                    self._delivery(each) if each.takers else None,
                )
                for each in self.grids.meetings()
            ]
        return self._shipments

    def _taken(self, position: int) -> Iterator[_Moved]:
        for meeting in self.grids.taken(position):
            box, _, holders, takers, local = meeting
            if position in local:
                yield _Moved(box, None, (local[position],), (), 0)
                continue
            own = bisect_left(takers, position)
            yield _Moved(box, self._delivery(meeting), holders, takers, own)

    def _sent(self, position: int) -> Iterator[_Moved]:
        index = None
        for meeting in self.grids.sent(position):
            box, _, holders, takers, local = meeting
            for taker, holder in local.items():
                if holder == position:
                    yield _Moved(box, None, (taker,), (), 0)
            if takers:
                index = bisect_left(holders, position) if index is None else index
                yield _Moved(box, self._delivery(meeting), holders, takers, index)

    def _delivery(self, meeting: Meeting) -> Delivery:
        start, stop = meeting.box
        shape = tuple(map(sub, stop, start))
        return self._table.delivery(shape, meeting.takers, meeting.holders, meeting.turn)


class _Moved(NamedTuple):
    """A box that we send or take, for tensors of any rotation.

    Attributes:
        box: the common box.
        delivery: how it gets to all who want it; None for a copy within one rank.
        holders: positions of those who hold it; of a copy within one rank, its other end.
        takers: positions of those who want it and do not hold it.
        own: our own index among the holders (of a source rank) or the takers.
    """

    box: BoxKey
    delivery: Delivery | None
    holders: tuple[int, ...]
    takers: tuple[int, ...]
    own: int

    def sends(self, rotation: int) -> list[Leg]:
        """Returns what we send of a tensor of some rotation; we are a source rank."""
        if self.delivery is None:
            return [Leg(self.box[0], 0, self.holders[0], self.box[1])]
        delivery = self.delivery.turned(rotation)
        return self._legs(delivery, delivery.sent(self.own), self.takers)

    def add_taken(
        self, rotation: int, receives: list[Leg], arrivals: list[Leg], forwards: list[Leg]
    ) -> None:
        """Adds what we receive and send on; we are a destination rank."""
        if self.delivery is None:
            receives.append(Leg(self.box[0], 0, self.holders[0], self.box[1]))
            return
        delivery = self.delivery.turned(rotation)
        parts = delivery.received(self.own)
        first = [part for part in parts if part.hop == 0]
        receives += self._legs(delivery, first, self.holders)
        if len(first) < len(parts):
            later = [part for part in parts if part.hop]
            arrivals += self._legs(delivery, later, self.takers)
        onward = delivery.forwarded(self.own)
        if onward:
            forwards += self._legs(delivery, onward, self.takers)

    def _legs(self, delivery: Delivery, parts: list[Part], peers: tuple[int, ...]) -> list[Leg]:
        boxes = delivery.striping.cuts(self.box, [(first, last) for _, first, last, _ in parts])
        return [
            Leg(low, 0, peers[peer], high, hop)
            for (peer, _, _, hop), (low, high) in zip(parts, boxes, strict=True)
        ]


def _period_of(boxes: list[_Moved]) -> int:
    """Returns the number of rotations after which legs repeat."""
    return math.lcm(*{each.delivery.period for each in boxes if each.delivery is not None})
