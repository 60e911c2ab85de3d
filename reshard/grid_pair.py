"""Both sides of a geometry as grids, and where their regions meet; nothing about domains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, TypeVar

from reshard.grid import GridSide, NotAGrid, components_of
from reshard.holders import rotation_of_box
from reshard.legs import Leg
from reshard.logical_space import Bounds, LogicalRow, Side
from reshard.matching import Geometry
from reshard.segmented_layout import SegmentedLayout
from reshard.transfer import BoxKey

__all__ = ["GridPair", "Meeting"]

Ranks = tuple[int, ...]
Index = tuple[int, ...]
T = TypeVar("T")


class Meeting(NamedTuple):
    """A box that a region of one side has in common with one of the other side.

    Attributes:
        box: the common box.
        turn: from `rotation_of_box` of the destination's whole box.
        holders: positions of those who hold it.
        takers: positions of those who want it and do not hold it.
        local: copy -> holder, positions of those who do both.
    """

    box: BoxKey
    turn: int
    holders: Ranks
    takers: Ranks
    local: dict[int, int]


class GridPair:
    """The regions of two sides, as products over common components.

    Args:
        geometry: what both sides have in common.

    Raises:
        NotAGrid: if a side has no product structure.
    """

    def __init__(self, geometry: Geometry) -> None:
        src, dst = _plain_side(geometry.src), _plain_side(geometry.dst)
        ndim = len(geometry.space.shape)
        components = components_of(src, dst, ndim)
        dims = [dim for component in components for dim in component]
        self._order = None if dims == sorted(dims) else [dims.index(dim) for dim in range(ndim)]
        self._src = GridSide(src, components)
        self._dst = GridSide(dst, components)
        self._is_empty = geometry.space.num_elements == 0
        self._ranks = None
        if not geometry.is_disjoint:
            self._ranks = geometry.src.layout.ranks, geometry.dst.layout.ranks
        self._sent: dict[int, list[Meeting]] = {}
        self._taken: dict[int, list[Meeting]] = {}

    @property
    def is_complete(self) -> bool:
        """True if source ranks hold all elements."""
        return self._is_empty or self._src.is_complete

    @property
    def has_lone_holders(self) -> bool:
        """True if each element is on one source rank, and no rank is on both sides."""
        return self._ranks is None and self._src.is_unshared

    def sent(self, position: int) -> list[Meeting]:
        """Returns the meetings of a source rank's region with those of the destination."""
        found = self._sent.get(position)
        if found is None:
            cells = None if self._is_empty else self._src.cells_at(position)
            found = self._sent[position] = [] if cells is None else list(self._sent_of(cells))
        return found

    def taken(self, position: int) -> list[Meeting]:
        """Returns the meetings of a destination rank's region with those of the source."""
        found = self._taken.get(position)
        if found is None:
            cells = None if self._is_empty else self._dst.cells_at(position)
            found = self._taken[position] = [] if cells is None else list(self._taken_of(cells))
        return found

    def meetings(self) -> Iterator[Meeting]:
        """Yields the meetings of all regions."""
        if not self._is_empty:
            for cells in product(*[range(len(table.cells)) for table in self._dst.tables]):
                yield from self._taken_of(cells)

    def received(self, position: int) -> list[Leg]:
        """Returns what the only holders of each box send: as `taken`, in a third of the time."""
        cells = None if self._is_empty else self._dst.cells_at(position)
        if cells is None:
            return []
        found: list[tuple[int, Index, Index]] = [(self._src.first_position, (), ())]
        for near_table, far_table, cell in zip(
            self._dst.tables, self._src.tables, cells, strict=True
        ):
            entries = [
                (far_table.positions[overlap.cell][0], *_edges(overlap.common))
                for ours in near_table.cells[cell]
                for overlap in far_table.overlaps(ours)
            ]
            found = [
                (holder + offset, (*low, *start), (*high, *stop))
                for holder, low, high in found
                for offset, start, stop in entries
            ]
        return [Leg(start, 0, holder, stop) for holder, (start, stop) in self._ordered(found)]

    def _taken_of(self, cells: tuple[int, ...]) -> Iterator[Meeting]:
        copies = self._dst.positions_of(cells)
        for (src_cells, turn), box in self._overlaps(cells, self._dst, self._src):
            yield self._meeting(box, turn, self._src.positions_of(src_cells), copies)

    def _sent_of(self, cells: tuple[int, ...]) -> Iterator[Meeting]:
        holders = self._src.positions_of(cells)
        for (dst_cells, turn), box in self._overlaps(cells, self._src, self._dst):
            yield self._meeting(box, turn, holders, self._dst.positions_of(dst_cells))

    def _meeting(self, box: BoxKey, turn: int, holders: Ranks, copies: Ranks) -> Meeting:
        if self._ranks is None:
            return Meeting(box, turn, holders, copies, {})
        src_ranks, dst_ranks = self._ranks
        holding = {src_ranks[holder]: holder for holder in holders}
        local = {copy: holding[rank] for copy in copies if (rank := dst_ranks[copy]) in holding}
        takers = tuple([copy for copy in copies if copy not in local])
        return Meeting(box, turn, holders, takers, local)

    def _overlaps(
        self, cells: Index, near: GridSide, far: GridSide
    ) -> Iterator[tuple[tuple[Index, int], BoxKey]]:
        """Yields far cells, turn and box of each meeting of our region.

        Turns of whole boxes (`rotation_of_box`) are sums over dims, so components add theirs.
        """
        is_near = near is self._dst
        found: list[tuple[tuple[Index, int], Index, Index]] = [(((), 0), (), ())]
        for near_table, far_table, cell in zip(near.tables, far.tables, cells, strict=True):
            entries = [
                (other, rotation_of_box(*_edges(ours if is_near else theirs)), *_edges(common))
                for ours in near_table.cells[cell]
                for other, theirs, common in far_table.overlaps(ours)
            ]
            found = [
                (((*others, other), total + turn), (*low, *start), (*high, *stop))
                for (others, total), low, high in found
                for other, turn, start, stop in entries
            ]
        return self._ordered(found)

    def _ordered(self, found: list[tuple[T, Index, Index]]) -> Iterator[tuple[T, BoxKey]]:
        """Yields bounds that were found component by component in the order of the dims."""
        order = self._order
        for what, start, stop in found:
            if order is None:
                yield what, (start, stop)
            else:
                yield what, (tuple([start[i] for i in order]), tuple([stop[i] for i in order]))


def _edges(bounds: Bounds) -> BoxKey:
    return tuple([a for a, _ in bounds]), tuple([b for _, b in bounds])


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
