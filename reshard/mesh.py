"""Named axes laid over ranks; nothing about tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from reshard.box import whole_numbers
from reshard.errors import LayoutError

__all__ = ["Mesh"]


@dataclass(frozen=True, slots=True, init=False)
class Mesh:
    """Ranks arranged row-major over named axes; the last axis varies fastest.

    Args:
        axis_names: one name per axis, all different.
        shape: number of ranks along each axis.
        ranks: the rank at each position, row-major; empty means 0, 1, 2, ... Any order and any
            numbers from 0 are allowed, each at most once.

    Raises:
        LayoutError: if names repeat, lengths differ, or a rank repeats or is negative.

    Example:
        >>> mesh = Mesh(("fsdp", "tp"), (2, 2), ranks=(0, 2, 1, 3))
        >>> mesh.coordinate(1)
        (1, 0)
    """

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    _positions: dict[int, int] = field(init=False, repr=False, compare=False, hash=False)

    def __init__(
        self, axis_names: Iterable[str], shape: Iterable[int], ranks: Iterable[int] = ()
    ) -> None:
        try:
            names = (axis_names,) if isinstance(axis_names, str) else axis_names
            object.__setattr__(self, "axis_names", tuple(map(str.__str__, names)))
            numbers = whole_numbers(shape), whole_numbers(ranks)
        except TypeError:
            raise LayoutError(
                f"mesh has axis names {axis_names!r}, shape {shape!r} and ranks {ranks!r}. Give "
                'names and whole numbers, as in Mesh(("tp",), (2,)) or Mesh.of(tp=2).'
            ) from None
        size = math.prod(numbers[0])
        object.__setattr__(self, "shape", numbers[0])
        object.__setattr__(self, "ranks", numbers[1] or tuple(range(size)))
        object.__setattr__(self, "_positions", {rank: i for i, rank in enumerate(self.ranks)})
        if len(self.axis_names) != len(self.shape):
            raise LayoutError(
                f"mesh has axis names {self.axis_names} and shape {self.shape}. "
                "Give one size per name."
            )
        if len(set(self.axis_names)) != len(self.axis_names):
            raise LayoutError(f"mesh axis names {self.axis_names} repeat a name.")
        if min(self.shape, default=1) < 1 or len(self.ranks) != size:
            raise LayoutError(
                f"mesh of shape {self.shape} needs {size} ranks, got {len(self.ranks)}: "
                f"{self.ranks}."
            )
        if len(self._positions) != size:
            raise LayoutError(f"mesh ranks {self.ranks} hold a rank twice.")
        if min(self.ranks) < 0:
            raise LayoutError(f"mesh ranks {self.ranks} hold a negative number. Count from 0.")

    @classmethod
    def of(cls, **sizes: int) -> Mesh:
        """Returns a mesh over ranks 0, 1, ... from axis sizes: `Mesh.of(fsdp=2, tp=4)`."""
        return cls(tuple(sizes), tuple(sizes.values()))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def strides(self) -> tuple[int, ...]:
        """Positions between neighbours along each axis."""
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    def position(self, rank: int) -> int | None:
        """Returns the row-major position of a rank, or None if it is not in the mesh."""
        return self._positions.get(rank)

    def coordinate(self, rank: int) -> tuple[int, ...] | None:
        """Returns the index of a rank along each axis, or None if it is not in the mesh."""
        position = self._positions.get(rank)
        if position is None:
            return None
        return tuple(
            position // stride % size for stride, size in zip(self.strides, self.shape, strict=True)
        )

    def shifted(self, offset: int) -> Mesh:
        """Returns the same mesh with `offset` added to every rank."""
        return Mesh(self.axis_names, self.shape, tuple(rank + offset for rank in self.ranks))

    def __str__(self) -> str:
        axes = ",".join(
            f"{name}={size}" for name, size in zip(self.axis_names, self.shape, strict=True)
        )
        return f"({axes})"

    def __reduce__(self) -> tuple[type[Mesh], tuple[object, ...]]:
        return Mesh, (self.axis_names, self.shape, self.ranks)
