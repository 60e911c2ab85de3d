"""What one mesh axis does to one tensor: cut a dim, or hold copies."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from reshard.errors import LayoutError, UnsupportedError

__all__ = ["Placement", "Replicate", "Shard", "check_placement", "is_foreign"]


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank along the axis holds the same elements."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Shard:
    """The ranks along the axis hold different parts of one dim.

    Args:
        dim: the tensor dim that is cut.
        blocks: the dim is first cut into this many pieces, each piece is cut over the axis, and a
            rank holds its part of every piece, one after the other. 2 is a fused gate and up
            projection under tensor parallelism; torch calls it `_StridedShard(dim, split_factor)`.

    Raises:
        LayoutError: if `dim` is negative or `blocks` is less than 1.
    """

    dim: int
    blocks: int = 1

    def __post_init__(self) -> None:
        for name, first in (("dim", 0), ("blocks", 1)):
            value = getattr(self, name)
            try:
                number = operator.index(value)
            except TypeError:
                number = first - 1
            if number < first or isinstance(value, bool):
                raise LayoutError(f"{self!r}: {name} is not a whole number from {first}.")
            object.__setattr__(self, name, int(number))

    def __str__(self) -> str:
        return f"S({self.dim})" if self.blocks == 1 else f"S({self.dim}, blocks={self.blocks})"


Placement = Replicate | Shard


_FOREIGN = ("Partial", "Replicate", "Shard", "_StridedShard")


def is_foreign(placement: object) -> bool:
    """True for a placement of another library, which may print as one of ours: torch's."""
    return type(placement).__name__ in _FOREIGN and type(placement).__module__ != __name__


def check_placement(placement: object) -> None:
    """Raises LayoutError or UnsupportedError for what is no placement.

    Raises:
        LayoutError: for another library's way to write one.
        UnsupportedError: for anything else, such as a partial sum.
    """
    if isinstance(placement, Replicate | Shard):
        return
    if is_foreign(placement) and type(placement).__name__ != "Partial":
        raise LayoutError(
            f"placement {type(placement).__module__}.{placement!r} is of another library. Give "
            "reshard.Shard(dim), reshard.Shard(dim, blocks=split_factor) or reshard.Replicate()."
        )
    raise UnsupportedError(
        f"placement {placement!r} is not Replicate or Shard. Partial sums (torch Partial, JAX "
        "unreduced) are not a copy of the tensor: reduce first, with DTensor.redistribute to "
        "Replicate or Shard, or jax.sharding.reshard to a spec without unreduced axes."
    )
