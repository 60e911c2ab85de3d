"""The transfers of one geometry, seen from one rank; what all pairs of that geometry share.

`GridPlan` computes a rank's own share by arithmetic. `SweepPlan` compares boxes of all ranks, for
layouts without product structure. Both give the same transfers where both apply.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, Protocol

from reshard.delivery import Delivery, Part
from reshard.errors import PlanError
from reshard.grid import GridSide, NotAGrid, components_of
from reshard.holders import Shares, rotation_of_box
from reshard.legs import Leg, Taken, Turning
from reshard.logical_space import Bounds, LogicalRow, Side
from reshard.matching import Geometry
from reshard.places import DeliveryTable, Places
from reshard.segmented_layout import SegmentedLayout
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
    geometry: Geometry, places: Places | None = None, shares: Shares = ()
) -> GeometryPlan:
    """Returns the planner that fits a geometry.

    Args:
        geometry: what all pairs of this kind have in common.
        places: where the ranks of both sides are; None means that holders serve everybody.
        shares: of holders that do not share evenly.

    Raises:
        PlanError: if the source does not hold every element that the destination wants.
    """
    try:
        return GridPlan(geometry, places, shares)
    except NotAGrid:
        return SweepPlan(geometry, places, shares)


def _plain_side(side: Side) -> Side:
    """Returns the side of the one segment in which all rows lie, if the layout is segmented."""
    layout = side.layout
    if not isinstance(layout, SegmentedLayout):
        return side
    row = side.rows[layout.dim]
    extent = 1
    for digit in row.digits:
        extent *= digit.size
    for index, start in enumerate(layout.starts):
        if start <= row.start and row.start + extent <= start + layout.lengths[index]:
            moved = LogicalRow(row.start - start, row.digits)
            rows = (*side.rows[: layout.dim], moved, *side.rows[layout.dim + 1 :])
            shape = layout.segment_shape(index, side.shape)
            return _plain_side(Side(shape, layout.layouts[index], rows))
    raise NotAGrid


class GridPlan:
    """Rank-local planner of two grids.

    Args:
        geometry: what all pairs of this kind have in common.
        places: where the ranks of both sides are; None means that holders serve everybody.
        shares: of holders that do not share evenly.

    Raises:
        NotAGrid: if a side has no product structure.
        PlanError: if no source rank holds a slice of a stack.
    """

    def __init__(
        self, geometry: Geometry, places: Places | None = None, shares: Shares = ()
    ) -> None:
        src, dst = _plain_side(geometry.src), _plain_side(geometry.dst)
        ndim = len(geometry.space.shape)
        components = components_of(src, dst, ndim)
        dims = [dim for component in components for dim in component]
        self._order = None if dims == sorted(dims) else [dims.index(dim) for dim in range(ndim)]
        self._src = GridSide(src, components)
        self._dst = GridSide(dst, components)
        self._is_empty = geometry.space.num_elements == 0
        if not (self._is_empty or self._src.is_complete):
            raise PlanError("no source rank holds this slice of the stored stack.")
        self._ranks = None
        if not geometry.is_disjoint:
            self._ranks = geometry.src.layout.ranks, geometry.dst.layout.ranks
        self._groups = DeliveryTable(places, geometry.counted_bytes, shares)
        # Each box comes whole from its only holder, whoever else wants it.
        self._is_simple = places is None and self._ranks is None and self._src.is_unshared
        self._sending: dict[int, Turning[tuple[Leg, ...]]] = {}
        self._taking: dict[int, Turning[Taken]] = {}
        self._shipments: list[Shipment] | None = None
        self.are_apart = True

    def sends(self, position: int) -> Turning[tuple[Leg, ...]]:
        """Returns what a source rank sends."""
        found = self._sending.get(position)
        if found is None:
            cells = None if self._is_empty else self._src.cells_at(position)
            meetings = [] if cells is None else list(self._sends(position, cells))

            def make(turn: int) -> tuple[Leg, ...]:
                return tuple(sorted([leg for each in meetings for leg in each.sends(turn)]))

            found = self._sending[position] = Turning(_period_of(meetings), make)
        return found

    def takes(self, position: int) -> Turning[Taken]:
        """Returns what a destination rank receives and sends on."""
        found = self._taking.get(position)
        if found is None:
            cells = None if self._is_empty else self._dst.cells_at(position)
            if self._is_simple and cells is not None:
                receives = tuple(sorted(self._receives(cells)))
                found = self._taking[position] = Turning(1, lambda turn: Taken(receives))
                return found
            meetings = [] if cells is None else list(self._takes(position, cells))

            def make(turn: int) -> Taken:
                kinds: tuple[list[Leg], list[Leg], list[Leg]] = [], [], []
                for meeting in meetings:
                    meeting.add_taken(turn, *kinds)
                return Taken(*[tuple(sorted(legs)) for legs in kinds])

            found = self._taking[position] = Turning(_period_of(meetings), make)
        return found

    def shipments(self) -> list[Shipment]:
        """Returns every box that moves between any two ranks."""
        if self._shipments is None:
            self._shipments = [] if self._is_empty else self._find_shipments()
        return self._shipments

    def _find_shipments(self) -> list[Shipment]:
        found = []
        for cells in product(*[range(len(table.cells)) for table in self._dst.tables]):
            copies = self._dst.positions_of(cells)
            for src_cells, wanted, common in self._meetings(cells, self._dst, self._src):
                holders = self._src.positions_of(src_cells)
                remote, local = self._split_local(copies, holders)
                delivery = self._delivery(wanted, common, remote, holders) if remote else None
                inside = tuple([(holder, taker, 0) for taker, holder in local.items()])
                takers = tuple([(taker, 0) for taker in remote])
                found.append(Shipment(common, inside, holders, takers, delivery))
        return found

    def _receives(self, cells: tuple[int, ...]) -> Iterator[Leg]:
        """Yields what the only holders of each box send: as `_takes`, in a third of the time."""
        per_component = [
            [
                (far_table.positions[overlap.cell][0], overlap.common)
                for ours in near_table.cells[cell]
                for overlap in far_table.overlaps(ours)
            ]
            for near_table, far_table, cell in zip(
                self._dst.tables, self._src.tables, cells, strict=True
            )
        ]
        first = self._src.first_position
        for meeting in product(*per_component):
            start, stop = self._bounds([common for _, common in meeting])
            yield Leg(start, 0, sum([offset for offset, _ in meeting], first), stop)

    def _takes(self, position: int, cells: tuple[int, ...]) -> Iterator[_Meeting]:
        copies = self._dst.positions_of(cells)
        for src_cells, wanted, common in self._meetings(cells, self._dst, self._src):
            holders = self._src.positions_of(src_cells)
            remote, local = self._split_local(copies, holders)
            if position in local:
                yield _Meeting(common, None, (local[position],), (), 0)
                continue
            delivery = self._delivery(wanted, common, remote, holders)
            yield _Meeting(common, delivery, holders, remote, bisect_left(remote, position))

    def _sends(self, position: int, cells: tuple[int, ...]) -> Iterator[_Meeting]:
        holders = self._src.positions_of(cells)
        index = bisect_left(holders, position)
        for dst_cells, wanted, common in self._meetings(cells, self._src, self._dst):
            remote, local = self._split_local(self._dst.positions_of(dst_cells), holders)
            for taker, holder in local.items():
                if holder == position:
                    yield _Meeting(common, None, (taker,), (), 0)
            if remote:
                delivery = self._delivery(wanted, common, remote, holders)
                yield _Meeting(common, delivery, holders, remote, index)

    def _delivery(
        self,
        wanted: BoxKey,
        common: BoxKey,
        takers: tuple[int, ...],
        holders: tuple[int, ...],
    ) -> Delivery:
        shape = tuple([b - a for a, b in zip(*common, strict=True)])
        return self._groups.delivery(shape, takers, holders, rotation_of_box(*wanted))

    def _split_local(
        self, copies: tuple[int, ...], holders: tuple[int, ...]
    ) -> tuple[tuple[int, ...], dict[int, int]]:
        """Returns the copies on ranks that hold nothing, and {copy: holder} of those that do."""
        if self._ranks is None:
            return copies, {}
        src_ranks, dst_ranks = self._ranks
        holding = {src_ranks[holder]: holder for holder in holders}
        local = {copy: holding[rank] for copy in copies if (rank := dst_ranks[copy]) in holding}
        return tuple(copy for copy in copies if copy not in local), local

    def _meetings(
        self, cells: tuple[int, ...], near: GridSide, far: GridSide
    ) -> Iterator[tuple[tuple[int, ...], BoxKey, BoxKey]]:
        """Yields (far cells, whole destination box, common box) of each meeting of our region."""
        is_near = near is self._dst
        per_component = [
            [
                (overlap.cell, ours if is_near else overlap.theirs, overlap.common)
                for ours in near_table.cells[cell]
                for overlap in far_table.overlaps(ours)
            ]
            for near_table, far_table, cell in zip(near.tables, far.tables, cells, strict=True)
        ]
        for meeting in product(*per_component):
            yield (
                tuple([cell for cell, _, _ in meeting]),
                self._bounds([wanted for _, wanted, _ in meeting]),
                self._bounds([common for _, _, common in meeting]),
            )

    def _bounds(self, parts: list[Bounds]) -> BoxKey:
        flat = [bound for part in parts for bound in part]
        if self._order is not None:
            flat = [flat[i] for i in self._order]
        return tuple([a for a, _ in flat]), tuple([b for _, b in flat])


class _Meeting(NamedTuple):
    """A box that our region has in common with one of the other side, for any rotation.

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


def _period_of(meetings: list[_Meeting]) -> int:
    """Returns the number of rotations after which legs repeat."""
    return math.lcm(*{each.delivery.period for each in meetings if each.delivery is not None})
