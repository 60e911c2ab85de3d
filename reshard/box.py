"""A half-open hyper-rectangle in the index space of one tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from reshard.errors import LayoutError

__all__ = ["Box", "whole_numbers"]


def whole_numbers(given: Iterable[int]) -> tuple[int, ...]:
    """Returns whole numbers of any kind, such as those of NumPy, as plain ones.

    Raises:
        TypeError: if one is no whole number, or `given` is no list of any.
    """
    return tuple(map(int, map(operator.index, given)))


@dataclass(frozen=True, slots=True, init=False)
class Box:
    """Elements `offset[d] <= index[d] < offset[d] + shape[d]` of every dim `d`.

    Args:
        offset: first index per dim, in elements.
        shape: number of elements per dim; a 0 anywhere makes the box empty.

    Raises:
        LayoutError: if the lengths differ, or a number is negative or not whole.

    Example:
        >>> Box((2, 0), (2, 4)).intersect(Box((3, 1), (5, 2)))
        Box(offset=(3, 1), shape=(1, 2))
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __init__(self, offset: Iterable[int], shape: Iterable[int]) -> None:
        if type(offset) is not tuple or type(shape) is not tuple or len(offset) != len(shape):
            offset, shape = _plain_bounds(offset, shape)
        for number in offset + shape:  # faster than `_plain_bounds`, and almost always enough
            if type(number) is not int or number < 0:
                offset, shape = _plain_bounds(offset, shape)
                break
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "shape", shape)

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def stop(self) -> tuple[int, ...]:
        """One past the last index, per dim."""
        return tuple(o + n for o, n in zip(self.offset, self.shape, strict=True))

    @property
    def num_elements(self) -> int:
        """Number of elements; 1 for a 0-d box."""
        return math.prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """True if the box holds no element."""
        return 0 in self.shape

    def intersect(self, other: Box) -> Box | None:
        """Returns the common part, or None if there is none."""
        bounds = [
            (max(a, b), min(a + n, b + m))
            for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        ]
        if any(low >= high for low, high in bounds):
            return None
        return Box.from_bounds([low for low, _ in bounds], [high for _, high in bounds])

    def contains(self, other: Box) -> bool:
        """True if every element of `other` is in this box."""
        return other.is_empty or all(
            a <= b and b + m <= a + n
            for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        )

    def subtract(self, other: Box) -> list[Box]:
        """Returns disjoint boxes that cover this box without `other` (at most two per dim)."""
        common = self.intersect(other)
        if common is None:
            return [] if self.is_empty else [self]
        rest: list[Box] = []
        low, high = list(self.offset), list(self.stop)
        for dim in range(self.ndim):
            for a, b in (
                (low[dim], common.offset[dim]),
                (common.offset[dim] + common.shape[dim], high[dim]),
            ):
                if a < b:
                    part = Box.from_bounds(
                        [*low[:dim], a, *low[dim + 1 :]], [*high[:dim], b, *high[dim + 1 :]]
                    )
                    rest.append(part)
            low[dim], high[dim] = common.offset[dim], common.offset[dim] + common.shape[dim]
        return rest

    @classmethod
    def from_bounds(
        cls, start: list[int] | tuple[int, ...], stop: list[int] | tuple[int, ...]
    ) -> Box:
        """Returns the box from `start` (first index per dim) to `stop` (one past the last)."""
        return cls(tuple(start), tuple(b - a for a, b in zip(start, stop, strict=True)))

    def __str__(self) -> str:
        parts = (f"{o}:{o + n}" for o, n in zip(self.offset, self.shape, strict=True))
        return f"[{', '.join(parts)}]"


def _plain_bounds(
    offset: Iterable[int], shape: Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns offset and shape in plain numbers.

    Raises:
        LayoutError: if they are not those of a box.
    """
    try:
        first, extents = whole_numbers(offset), whole_numbers(shape)
    except TypeError:
        raise LayoutError(
            f"box offset {offset!r}, shape {shape!r}: give one whole number per dim in both, "
            "as in Box((2, 0), (2, 4))."
        ) from None
    if len(first) != len(extents):
        raise LayoutError(
            f"box offset {first} has {len(first)} dims, shape {extents} has "
            f"{len(extents)}. Give one number per dim in both."
        )
    if min(*first, *extents, 0, 0) < 0:
        raise LayoutError(f"box offset {first}, shape {extents}: negative number.")
    return first, extents
