"""The index space that a source and a destination tensor share, and where its elements lie.

Both sides' forms cut the canonical dims into factors; their common refinement gives the logical
dims. In them, what a rank stores is a list of `Piece`s: a box, and for each stored dim the local
index of an element as `base + sum(stride * logical index)`. Nothing below this module knows forms
or fusions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from reshard.errors import PlanError
from reshard.form import Digit, ResolvedForm
from reshard.layout import AnyLayout

__all__ = [
    "LogicalDigit",
    "LogicalRow",
    "LogicalSpace",
    "Piece",
    "Side",
    "copy_numbers",
    "make_logical_space",
    "pieces_of_rank",
]

Bounds = tuple[tuple[int, int], ...]


class LogicalDigit(NamedTuple):
    """One digit of a stored dim: a logical dim (`dim` >= 0), or a fixed or repeated one (-1).

    `first` and `last` bound the digit's indices: the fixed one, or all.
    """

    dim: int
    size: int
    first: int
    last: int


class LogicalRow(NamedTuple):
    """A stored dim in terms of logical dims: `start` plus the mixed-radix number of its digits."""

    start: int
    digits: tuple[LogicalDigit, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Stored indices between neighbours along each digit."""
        strides, step = [], 1
        for digit in reversed(self.digits):
            strides.append(step)
            step *= digit.size
        return tuple(reversed(strides))

    @property
    def dims(self) -> tuple[int, ...]:
        """The logical dims of this row, major first."""
        return tuple(digit.dim for digit in self.digits if digit.dim >= 0)

    def preimage(self, low: int, high: int) -> list[tuple[Bounds, int]]:
        """Returns what a run of stored indices holds.

        Args:
            low, high: half-open interval of stored indices.

        Returns:
            (bounds of the row's logical dims, constant): stored index of a logical element is the
            constant plus the sum of stride * logical index.
        """
        digits = self.digits
        if len(digits) == 1 and digits[0].dim >= 0:
            a, b = max(low - self.start, 0), min(high - self.start, digits[0].size)
            return [(((a, b),), self.start)] if a < b else []
        radices = tuple(digit.size for digit in digits)
        extent = math.prod(radices)
        a, b = max(low - self.start, 0), min(high - self.start, extent)
        found: list[tuple[Bounds, int]] = []
        if a >= b:
            return found
        strides = self.strides
        for bounds in _decompose(a, b, radices):
            found.extend(self._preimages_of_box(bounds, strides))
        return found

    def _preimages_of_box(
        self, bounds: Bounds, strides: tuple[int, ...]
    ) -> Iterator[tuple[Bounds, int]]:
        kept: list[tuple[int, int]] = []
        fixed: list[range] = []
        for digit, (a, b) in zip(self.digits, bounds, strict=True):
            a, b = max(a, digit.first), min(b, digit.last)
            if a >= b:
                return
            if digit.dim >= 0:
                kept.append((a, b))
                fixed.append(range(1))
            else:
                fixed.append(range(a, b))
        for indices in product(*fixed):
            constant = sum(i * stride for i, stride in zip(indices, strides, strict=True))
            yield tuple(kept), self.start + constant


def _decompose(a: int, b: int, radices: tuple[int, ...]) -> list[Bounds]:
    """Returns boxes of mixed-radix digits that cover the numbers a <= n < b; at most 2m - 1."""
    if not radices:
        return [()]
    inner = math.prod(radices[1:])
    if len(radices) == 1:
        return [((a, b),)]
    first, low = divmod(a, inner)
    last, high = divmod(b, inner)
    rest = radices[1:]
    if first == last:
        return [((first, first + 1), *box) for box in _decompose(low, high, rest)]
    boxes: list[Bounds] = []
    if low:
        boxes += [((first, first + 1), *box) for box in _decompose(low, inner, rest)]
        first += 1
    if first < last:
        boxes.append(((first, last), *((0, size) for size in rest)))
    if high:
        boxes += [((last, last + 1), *box) for box in _decompose(0, high, rest)]
    return boxes


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pair: its stored shape and layout, and its rows in the logical space."""

    shape: tuple[int, ...]
    layout: AnyLayout
    rows: tuple[LogicalRow, ...]


@dataclass(frozen=True, slots=True)
class LogicalSpace:
    """The logical dims of a pair, and the rows of both sides in them.

    Attributes:
        shape: size per logical dim.
        canonical_dims: per canonical dim, its logical dims, major first.
        names: a readable name per logical dim.
        src_rows, dst_rows: one row per stored dim of each side.
    """

    shape: tuple[int, ...]
    canonical_dims: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    src_rows: tuple[LogicalRow, ...]
    dst_rows: tuple[LogicalRow, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements of the canonical tensor."""
        return math.prod(self.shape)

    @property
    def index_strides(self) -> tuple[int, ...]:
        """Row-major strides of the canonical index, per logical dim."""
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def make_logical_space(src: ResolvedForm, dst: ResolvedForm) -> LogicalSpace:
    """Returns the space that two forms share.

    Raises:
        PlanError: if the canonical shapes differ or the factors of a dim have no common refinement.
    """
    if src.canonical_shape != dst.canonical_shape:
        raise PlanError(
            f"source has canonical shape {src.canonical_shape}, destination {dst.canonical_shape}. "
            "A refit moves a tensor without changing it: check the forms, padding and "
            "tensor-parallel folding of this name."
        )
    shape: list[int] = []
    names: list[str] = []
    canonical_dims = []
    src_dims: dict[str, tuple[int, ...]] = {}
    dst_dims: dict[str, tuple[int, ...]] = {}
    for dim, (a, b) in enumerate(zip(src.canonical, dst.canonical, strict=True)):
        sizes = _refine(dim, [size for _, size in a], [size for _, size in b])
        first = len(shape)
        shape += sizes
        canonical_dims.append(tuple(range(first, first + len(sizes))))
        src_dims |= _assign(a, sizes, first)
        dst_dims |= _assign(b, sizes, first)
        names += _names(a if len(a) >= len(b) else b, sizes, dim)
    return LogicalSpace(
        tuple(shape),
        tuple(canonical_dims),
        tuple(names),
        _logical_rows(src, src_dims, shape),
        _logical_rows(dst, dst_dims, shape),
    )


def _refine(dim: int, a: list[int], b: list[int]) -> list[int]:
    """Returns the sizes of the common refinement of two factorings, without factors of size 1.

    A dim without elements is not cut: nothing of it is ever moved.
    """
    if 0 in a or 0 in b:
        return [0]
    boundaries = sorted(_suffix_products(a) | _suffix_products(b))
    sizes = []
    for inner, outer in pairwise(boundaries):
        if outer % inner:
            raise PlanError(
                f"canonical dim {dim} is cut into factors {a} by the source and {b} by the "
                "destination, which have no common refinement. Use the same factors in both forms."
            )
        sizes.append(outer // inner)
    return list(reversed(sizes))


def _suffix_products(sizes: list[int]) -> set[int]:
    products, step = {1}, 1
    for size in reversed(sizes):
        step *= size
        products.add(step)
    return products


def _assign(
    factors: tuple[tuple[str, int], ...], sizes: list[int], first: int
) -> dict[str, tuple[int, ...]]:
    """Returns the refined dims of each factor, taken from the minor end; none for size 1."""
    if sizes == [0]:
        return {name: (first,) if index == 0 else () for index, (name, _) in enumerate(factors)}
    dims: dict[str, tuple[int, ...]] = {}
    position = len(sizes)
    for name, size in reversed(factors):
        end, step = position, 1
        while step < size:
            position -= 1
            step *= sizes[position]
        dims[name] = tuple(range(first + position, first + end))
    return dims


def _names(factors: tuple[tuple[str, int], ...], sizes: list[int], dim: int) -> list[str]:
    named = [(name, size) for name, size in factors if size != 1]
    if [size for _, size in named] == sizes:
        return [name for name, _ in named]
    return [f"d{dim}.{i}" for i in range(len(sizes))]


def _logical_rows(
    form: ResolvedForm, dims: dict[str, tuple[int, ...]], shape: list[int]
) -> tuple[LogicalRow, ...]:
    rows = []
    for row in form.rows:
        digits: list[LogicalDigit] = []
        for digit in row.digits:
            digits += _logical_digits(digit, dims, shape)
        rows.append(LogicalRow(row.start, tuple(digits)))
    return tuple(rows)


def _logical_digits(
    digit: Digit, dims: dict[str, tuple[int, ...]], shape: list[int]
) -> list[LogicalDigit]:
    if digit.kind == "index":
        return [LogicalDigit(-1, digit.size, digit.value, digit.value + 1)]
    if digit.kind == "repeat":
        return [LogicalDigit(-1, digit.size, 0, digit.size)]
    return [LogicalDigit(dim, shape[dim], 0, shape[dim]) for dim in dims[digit.name]]


class Piece(NamedTuple):
    """A box of logical elements that a rank stores, and where.

    Attributes:
        start, stop: bounds per logical dim.
        base: per stored dim, the local index is `base` plus the sum of stride * logical index.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    base: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(b - a for a, b in zip(self.start, self.stop, strict=True))


def pieces_of_rank(side: Side, ndim: int, rank: int) -> list[Piece]:
    """Returns the pieces that a rank stores of one tensor, in local memory order of its boxes."""
    pieces = []
    for box, at in side.layout.local_boxes(rank, side.shape):
        per_dim = []
        for row, low, count, local in zip(side.rows, box.offset, box.shape, at, strict=True):
            preimages = row.preimage(low, low + count)
            per_dim.append(
                [(row.dims, bounds, constant - low + local) for bounds, constant in preimages]
            )
        for entries in product(*per_dim):
            start, stop = [0] * ndim, [0] * ndim
            for dims, bounds, _ in entries:
                for dim, (a, b) in zip(dims, bounds, strict=True):
                    start[dim], stop[dim] = a, b
            pieces.append(Piece(tuple(start), tuple(stop), tuple(entry[2] for entry in entries)))
    return pieces


def copy_numbers(pieces: Sequence[Piece]) -> list[int]:
    """Returns, per piece of one rank, a number that pieces with common elements never share.

    It is 0 for a rank that stores each element once. Together with a box it names one piece.
    """
    numbers: list[int] = []
    for piece in pieces:
        taken = {
            number
            for number, other in zip(numbers, pieces, strict=False)
            if all(
                a < d and c < b
                for a, b, c, d in zip(piece.start, piece.stop, other.start, other.stop, strict=True)
            )
        }
        numbers.append(next(number for number in range(len(taken) + 1) if number not in taken))
    return numbers
