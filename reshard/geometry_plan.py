"""The transfers of one geometry, seen from one rank; what all pairs of that geometry share.

`GridPlan` computes a rank's own share by arithmetic. `SweepPlan` compares boxes of all ranks, for
layouts without product structure. Both give the same transfers where both apply.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from reshard.errors import PlanError
from reshard.grid import GridSide, NotAGrid, components_of
from reshard.holders import Striping, make_striping, rotation_of_box
from reshard.legs import GeometryPlan, Leg
from reshard.logical_space import Bounds, LogicalRow, Side
from reshard.matching import Geometry
from reshard.segmented_layout import SegmentedLayout
from reshard.sweep import SweepPlan
from reshard.transfer import BoxKey

__all__ = ["GridPlan", "make_geometry_plan"]


def make_geometry_plan(geometry: Geometry) -> GeometryPlan:
    """Returns the planner that fits a geometry.

    Raises:
        PlanError: if the source does not hold every element that the destination wants.
    """
    try:
        return GridPlan(geometry)
    except NotAGrid:
        return SweepPlan(geometry)


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

    Raises:
        NotAGrid: if a side has no product structure.
        PlanError: if no source rank holds a slice of a stack.
    """

    def __init__(self, geometry: Geometry) -> None:
        src, dst = _plain_side(geometry.src), _plain_side(geometry.dst)
        ndim = len(geometry.space.shape)
        components = components_of(src, dst, ndim)
        dims = [dim for component in components for dim in component]
        self._order = None if dims == sorted(dims) else [dims.index(dim) for dim in range(ndim)]
        self._src = GridSide(src, components)
        self._dst = GridSide(dst, components)
        self._itemsize = geometry.itemsize
        self._is_empty = geometry.space.num_elements == 0
        if not (self._is_empty or self._src.is_complete):
            raise PlanError("no source rank holds this slice of the stored stack.")
        self._ranks = None
        if not geometry.is_disjoint:
            self._ranks = geometry.src.layout.ranks, geometry.dst.layout.ranks
        self._prepared: dict[tuple[bool, int], _Prepared] = {}

    def sends(self, position: int, rotation: int) -> tuple[Leg, ...]:
        """Returns what a source rank sends."""
        return self._prepare(True, position).legs(rotation)

    def receives(self, position: int, rotation: int) -> tuple[Leg, ...]:
        """Returns what a destination rank receives."""
        return self._prepare(False, position).legs(rotation)

    def _prepare(self, is_send: bool, position: int) -> _Prepared:
        prepared = self._prepared.get((is_send, position))
        if prepared is None:
            side, find = (self._src, self._sends) if is_send else (self._dst, self._receives)
            cells = None if self._is_empty else side.cells_at(position)
            meetings = [] if cells is None else list(find(position, cells))
            prepared = self._prepared[is_send, position] = _Prepared(meetings)
        return prepared

    def _receives(self, position: int, cells: tuple[int, ...]) -> Iterator[_Meeting]:
        copies = self._dst.positions_of(cells)
        for src_cells, wanted, common in self._meetings(cells, self._dst, self._src):
            holders = self._src.positions_of(src_cells)
            remote, local = self._split_local(copies, holders)
            if position in local:
                yield _Meeting(common, None, (local[position],), 0, False)
                continue
            striping = self._striping(wanted, common, len(remote), len(holders))
            yield _Meeting(common, striping, holders, bisect_left(remote, position), False)

    def _sends(self, position: int, cells: tuple[int, ...]) -> Iterator[_Meeting]:
        holders = self._src.positions_of(cells)
        index = bisect_left(holders, position)
        for dst_cells, wanted, common in self._meetings(cells, self._src, self._dst):
            remote, local = self._split_local(self._dst.positions_of(dst_cells), holders)
            for taker, holder in local.items():
                if holder == position:
                    yield _Meeting(common, None, (taker,), 0, True)
            if remote:
                striping = self._striping(wanted, common, len(remote), len(holders))
                yield _Meeting(common, striping, remote, index, True)

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

    def _striping(self, wanted: BoxKey, common: BoxKey, copies: int, holders: int) -> Striping:
        return make_striping(*common, copies, holders, self._itemsize, rotation_of_box(*wanted))


class _Meeting(NamedTuple):
    """A box that our region has in common with one of the other side, for any rotation.

    Attributes:
        box: the common box.
        striping: how its copies are shared out; None for a copy within one rank.
        peers: positions at the other end, by share.
        own: our own index among the holders (of a send) or the copies (of a receive).
        is_send: which of the two.
    """

    box: BoxKey
    striping: Striping | None
    peers: tuple[int, ...]
    own: int
    is_send: bool

    def legs(self, rotation: int) -> list[Leg]:
        """Returns our legs for a tensor of some rotation."""
        start, stop = self.box
        if self.striping is None:
            return [Leg(start, 0, self.peers[0], stop)]
        striping = self.striping.turned(rotation)
        shares = striping.shares_of_holder if self.is_send else striping.shares_of_copy
        legs = []
        for peer, first, last in shares(self.own):
            low, high = start, stop
            if last - first < striping.length:
                low, high = striping.narrowed(self.box, first, last)
            legs.append(Leg(low, 0, self.peers[peer], high))
        return legs


class _Prepared:
    """The meetings of one rank, and its legs for every rotation that was asked for."""

    def __init__(self, meetings: list[_Meeting]) -> None:
        self._meetings = meetings
        turning = {m.striping.num_holders for m in meetings if m.striping and m.striping.is_partial}
        self._period = math.lcm(*turning)
        self._legs: dict[int, tuple[Leg, ...]] = {}

    def legs(self, rotation: int) -> tuple[Leg, ...]:
        """Returns the legs in canonical order."""
        turn = rotation % self._period
        legs = self._legs.get(turn)
        if legs is None:
            found = [leg for meeting in self._meetings for leg in meeting.legs(turn)]
            legs = self._legs[turn] = tuple(sorted(found))
        return legs
