"""Sends and receives of one rank by interval arithmetic, for layouts that are grids.

In a grid a rank's region is a product of per-dim intervals, so overlaps of two regions are products
of overlaps of intervals, and no rank looks at anybody else's work. Logical dims that a stored dim
merges are kept together in one *component*; within a component a region is a short list of boxes. A
mesh position is a sum of one number per component and one for the replicas, so the holders of a
region are found by addition.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from reshard.division import Cut, Division, Run, cut_dim
from reshard.layout import Layout
from reshard.logical_space import Bounds, LogicalRow, Side
from reshard.placement import Replicate

__all__ = ["CellTable", "GridSide", "NotAGrid", "Overlap", "components_of"]


class NotAGrid(Exception):
    """The two sides have no product structure; boxes have to be compared one by one."""


class Overlap(NamedTuple):
    """A cell of the other side that meets one of ours: its number, its box, the common box."""

    cell: int
    theirs: Bounds
    common: Bounds


def components_of(src: Side, dst: Side, ndim: int) -> list[tuple[int, ...]]:
    """Returns groups of logical dims that a stored dim of either side merges, in order.

    Stored dims without logical dims (one slice of a stack) need no group here; they only decide
    which ranks hold anything, and `GridSide` gives them cells of their own.
    """
    parent = list(range(ndim))

    def root(dim: int) -> int:
        while parent[dim] != dim:
            dim = parent[dim]
        return dim

    for row in (*src.rows, *dst.rows):
        for dim in row.dims[1:]:
            a, b = sorted((root(row.dims[0]), root(dim)))
            parent[b] = a
    groups: dict[int, list[int]] = {}
    for dim in range(ndim):
        groups.setdefault(root(dim), []).append(dim)
    return [tuple(group) for group in groups.values()]


class _StoredDim(NamedTuple):
    """A stored dim of one component: its row with dims counted within the component, and its cuts.

    Attributes:
        row: digits of the dim.
        length: number of stored indices.
        cuts: (parts, blocks) of each axis that cuts it, major first.
        axes: (mesh stride, size) of the same axes.
        division: how it divides.
    """

    row: LogicalRow
    length: int
    cuts: tuple[Cut, ...]
    axes: tuple[tuple[int, int], ...]
    division: Division


class CellTable:
    """The cells into which one side cuts one component, and how to find those that meet a box.

    Args:
        ndim: number of logical dims of the component.
        stored: the stored dims that are made of them.
    """

    def __init__(self, ndim: int, stored: tuple[_StoredDim, ...]) -> None:
        self._axes: list[tuple[int, int, int]] = []
        step = 1
        for stride, size in reversed([axis for each in stored for axis in each.axes]):
            self._axes.append((stride, size, step))
            step *= size
        self.cells: list[tuple[Bounds, ...]] = []
        self.positions: list[list[int]] = []
        self._cell_of_part: list[int] = []
        if len(stored) == 1 and _is_plain(stored[0]):
            self._add_runs(cut_dim(stored[0].length, stored[0].cuts, stored[0].division))
        else:
            self._add_products(ndim, stored)
        entries = [(box, cell) for cell, boxes in enumerate(self.cells) for box in boxes]
        entries.sort()
        self._entries = entries
        self._starts = [box[0][0] if box else 0 for box, _ in entries]

    def _add_runs(self, parts: tuple[tuple[Run, ...], ...]) -> None:
        """Adds the parts of a stored dim that is one whole logical dim."""
        for number, runs in enumerate(parts):
            if not runs:
                self._cell_of_part.append(-1)
                continue
            self._cell_of_part.append(len(self.cells))
            self.cells.append(tuple([(run,) for run in runs]))
            self.positions.append([self._position_of(number)])

    def _add_products(self, ndim: int, stored: tuple[_StoredDim, ...]) -> None:
        """Adds the products of the parts of all stored dims; equal ones become one cell."""
        has_repeat = any(
            digit.dim < 0 and digit.last - digit.first > 1
            for each in stored
            for digit in each.row.digits
        )
        per_dim = [
            _parts_of_row(each.row, cut_dim(each.length, each.cuts, each.division))
            for each in stored
        ]
        order = [dim for each in stored for dim in each.row.dims]
        permutation = [order.index(dim) for dim in range(ndim)]
        numbers: dict[tuple[Bounds, ...], int] = {}
        for number, parts in enumerate(product(*per_dim)):
            boxes = _product_boxes(parts, permutation)
            if not boxes:
                self._cell_of_part.append(-1)
                continue
            key = boxes if not has_repeat else tuple(sorted(boxes))
            cell = numbers.setdefault(key, len(numbers))
            if cell == len(self.positions):
                self.positions.append([])
            self.positions[cell].append(self._position_of(number))
            self._cell_of_part.append(cell)
        self.cells = list(numbers)
        if has_repeat:
            self._check_disjoint()

    def _position_of(self, part: int) -> int:
        if len(self._axes) == 1:
            return part * self._axes[0][0]
        return sum([part // step % size * stride for stride, size, step in self._axes])

    def cell_at(self, position: int) -> int:
        """Returns the cell that the rank at a mesh position holds, or -1 for none."""
        part = sum([position // stride % size * step for stride, size, step in self._axes])
        return self._cell_of_part[part]

    def _check_disjoint(self) -> None:
        boxes = [box for cell in self.cells for box in cell]
        for i, box in enumerate(boxes):
            if any(_intersect(box, other) is not None for other in boxes[:i]):
                raise NotAGrid

    def overlaps(self, box: Bounds) -> Iterator[Overlap]:
        """Yields the cells that meet a box of this component."""
        if len(box) == 1:
            low, high = box[0]
            index = max(bisect_right(self._starts, low) - 1, 0)
            for theirs, cell in self._entries[index:]:
                a, b = theirs[0]
                if a >= high:
                    return
                if b > low:
                    yield Overlap(cell, theirs, ((max(a, low), min(b, high)),))
            return
        for theirs, cell in self._entries:
            common = _intersect(box, theirs)
            if common is not None:
                yield Overlap(cell, theirs, common)


class GridSide:
    """One side of a geometry as a product of cell tables; ranks are positions in the mesh.

    Raises:
        NotAGrid: if the side's layout is not a mesh, or repeats overlap in part.
    """

    def __init__(self, side: Side, components: list[tuple[int, ...]]) -> None:
        layout = side.layout
        if not isinstance(layout, Layout):
            raise NotAGrid
        self.tables = [_table_of(dims, side, layout) for dims in components]
        self._stacks = _table_of((), side, layout)
        are_replicas = tuple([isinstance(each, Replicate) for each in layout.placements])
        self._replicas = _replica_offsets(layout.mesh.shape, are_replicas)
        self._positions: dict[tuple[int, ...], tuple[int, ...]] = {}

    @property
    def is_complete(self) -> bool:
        """True if some rank holds the slice of the stack; always, unless a stored dim is empty."""
        return bool(self._stacks.cells)

    @property
    def is_unshared(self) -> bool:
        """True if each element is on one rank."""
        tables = (self._stacks, *self.tables)
        return len(self._replicas) == 1 and all(
            [len(positions) == 1 for table in tables for positions in table.positions]
        )

    @property
    def first_position(self) -> int:
        """What to add to the positions of a region's cells to get that of its first rank."""
        return self._stacks.positions[0][0]

    def cells_at(self, position: int) -> tuple[int, ...] | None:
        """Returns the cell of each component that a rank holds, or None if it holds nothing."""
        if self._stacks.cell_at(position) < 0:
            return None
        cells = tuple(table.cell_at(position) for table in self.tables)
        return None if -1 in cells else cells

    def positions_of(self, cells: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the ranks that hold a region, ascending."""
        found = self._positions.get(cells)
        if found is None:
            positions = self._stacks.positions[0]
            for table, cell in zip(self.tables, cells, strict=True):
                own = table.positions[cell]
                positions = [a + b for a in positions for b in own] if own != [0] else positions
            if len(positions) == 1:
                first = positions[0]
                found = tuple([first + replica for replica in self._replicas])
            else:
                found = tuple(sorted([a + b for a in positions for b in self._replicas]))
            self._positions[cells] = found
        return found


def _table_of(dims: tuple[int, ...], side: Side, layout: Layout) -> CellTable:
    """Returns the table of a component; with no dims, that of the stored dims that have none."""
    strides, sizes = layout.mesh.strides, layout.mesh.shape
    stored = []
    for k, row in enumerate(side.rows):
        own = row.dims
        if own[0] in dims if own else not dims:
            axes = layout.axes_of_dim(k)
            stored.append(
                _StoredDim(
                    _relabelled(row, dims),
                    side.shape[k],
                    layout.cuts_of_dim(k) if axes else (),
                    tuple([(strides[axis], sizes[axis]) for axis in axes]),
                    layout.division,
                )
            )
    return _cell_table(len(dims), tuple(stored))


@lru_cache(maxsize=1024)
def _cell_table(ndim: int, stored: tuple[_StoredDim, ...]) -> CellTable:
    return CellTable(ndim, stored)


def _relabelled(row: LogicalRow, dims: tuple[int, ...]) -> LogicalRow:
    """Returns the row with logical dims counted within the component, so that tables are shared."""
    if dims == tuple(range(len(dims))):
        return row
    digits = [d if d.dim < 0 else d._replace(dim=dims.index(d.dim)) for d in row.digits]
    return LogicalRow(row.start, tuple(digits))


def _is_plain(stored: _StoredDim) -> bool:
    """True if a stored dim is exactly one whole logical dim: not a part of one, and not padded."""
    digits = stored.row.digits
    return len(digits) == 1 and digits[0].dim >= 0 and digits[0].size == stored.length


@lru_cache(maxsize=1024)
def _replica_offsets(shape: tuple[int, ...], are_replicas: tuple[bool, ...]) -> tuple[int, ...]:
    """Returns the positions of the replicas of position 0, ascending.

    Args:
        shape: of a mesh.
        are_replicas: which axes replicate.
    """
    offsets, stride = [0], math.prod(shape)
    for size, is_replica in zip(shape, are_replicas, strict=True):
        stride //= size
        if is_replica:
            offsets = [a + i * stride for a in offsets for i in range(size)]
    return tuple(offsets)


def _parts_of_row(
    row: LogicalRow, parts: tuple[tuple[tuple[int, int], ...], ...]
) -> list[list[Bounds]]:
    """Returns, per part of a stored dim, the boxes of the row's logical dims that it holds."""
    return [
        [bounds for low, high in runs for bounds, _ in row.preimage(low, high)] for runs in parts
    ]


def _product_boxes(parts: tuple[list[Bounds], ...], permutation: list[int]) -> tuple[Bounds, ...]:
    boxes = [tuple(bound for bounds in chosen for bound in bounds) for chosen in product(*parts)]
    if len(set(boxes)) != len(boxes):
        raise NotAGrid
    if permutation != sorted(permutation):
        return tuple(tuple(box[i] for i in permutation) for box in boxes)
    return tuple(boxes)


def _intersect(a: Bounds, b: Bounds) -> Bounds | None:
    common = []
    for (low, high), (other_low, other_high) in zip(a, b, strict=True):
        start, stop = max(low, other_low), min(high, other_high)
        if start >= stop:
            return None
        common.append((start, stop))
    return tuple(common)
