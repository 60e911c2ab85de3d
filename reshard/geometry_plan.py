"""The transfers of one geometry, seen from one rank; what all pairs of that geometry share.

`GridPlan` computes a rank's own share by arithmetic. `SweepPlan` compares boxes of all ranks, for
layouts without product structure. Both give the same transfers where both apply.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import product

from reshard.errors import PlanError
from reshard.grid import GridSide, NotAGrid, components_of
from reshard.holders import Striping, make_striping, rotation_of_box
from reshard.legs import GeometryPlan, Leg, canonical_order
from reshard.logical_space import Bounds, LogicalRow, Side
from reshard.matching import Geometry
from reshard.segmented_layout import SegmentedLayout
from reshard.sweep import SweepPlan

__all__ = ["GridPlan", "make_geometry_plan"]


StartStop = tuple[tuple[int, ...], tuple[int, ...]]


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
        self._turns = False
        self._legs: dict[tuple[bool, int, int], tuple[Leg, ...]] = {}

    def sends(self, position: int, rotation: int) -> tuple[Leg, ...]:
        """Returns what a source rank sends."""
        return self._known(True, position, rotation)

    def receives(self, position: int, rotation: int) -> tuple[Leg, ...]:
        """Returns what a destination rank receives."""
        return self._known(False, position, rotation)

    def _known(self, is_send: bool, position: int, rotation: int) -> tuple[Leg, ...]:
        """Computes legs once per rotation, or once if no box of this rank depends on it."""
        legs = self._legs.get((is_send, position, -1))
        if legs is None:
            legs = self._legs.get((is_send, position, rotation))
        if legs is None:
            self._turns = False
            side, compute = (self._src, self._sends) if is_send else (self._dst, self._receives)
            cells = None if self._is_empty else side.cells_at(position)
            found = [] if cells is None else compute(position, cells, rotation)
            legs = tuple(sorted(found, key=canonical_order))
            self._legs[is_send, position, rotation if self._turns else -1] = legs
        return legs

    def _receives(self, position: int, cells: tuple[int, ...], rotation: int) -> list[Leg]:
        copies = self._dst.positions_of(cells)
        legs: list[Leg] = []
        for src_cells, wanted, _, common in self._meetings(cells, self._dst, self._src):
            holders = self._src.positions_of(src_cells)
            remote, local = self._split_local(copies, holders)
            if position in local:
                legs.append(Leg(local[position], *common, 0))
                continue
            striping = self._striping(wanted, common, len(remote), len(holders), rotation)
            for share in striping.shares_of_copy(bisect_left(remote, position)):
                legs.append(Leg(holders[share.peer], *striping.narrowed(common, share), 0))
        return legs

    def _sends(self, position: int, cells: tuple[int, ...], rotation: int) -> list[Leg]:
        holders = self._src.positions_of(cells)
        index = bisect_left(holders, position)
        legs: list[Leg] = []
        for dst_cells, _, wanted, common in self._meetings(cells, self._src, self._dst):
            remote, local = self._split_local(self._dst.positions_of(dst_cells), holders)
            legs += [
                Leg(taker, *common, 0) for taker, holder in local.items() if holder == position
            ]
            if not remote:
                continue
            striping = self._striping(wanted, common, len(remote), len(holders), rotation)
            for share in striping.shares_of_holder(index):
                legs.append(Leg(remote[share.peer], *striping.narrowed(common, share), 0))
        return legs

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
    ) -> Iterator[tuple[tuple[int, ...], StartStop, StartStop, StartStop]]:
        """Yields (far cells, near box, far box, common box) of each meeting of our region."""
        per_component = [
            [
                (overlap.cell, ours, overlap.theirs, overlap.common)
                for ours in near_table.cells[cell]
                for overlap in far_table.overlaps(ours)
            ]
            for near_table, far_table, cell in zip(near.tables, far.tables, cells, strict=True)
        ]
        for meeting in product(*per_component):
            yield (
                tuple(entry[0] for entry in meeting),
                self._bounds([entry[1] for entry in meeting]),
                self._bounds([entry[2] for entry in meeting]),
                self._bounds([entry[3] for entry in meeting]),
            )

    def _bounds(self, parts: list[Bounds]) -> StartStop:
        flat = [bound for part in parts for bound in part]
        if self._order is not None:
            flat = [flat[i] for i in self._order]
        return tuple(a for a, _ in flat), tuple(b for _, b in flat)

    def _striping(
        self, wanted: StartStop, common: StartStop, copies: int, holders: int, rotation: int
    ) -> Striping:
        turn = rotation + rotation_of_box(*wanted)
        striping = make_striping(*common, copies, holders, self._itemsize, turn)
        self._turns |= striping.num_segments < holders
        return striping
