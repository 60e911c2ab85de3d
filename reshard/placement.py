"""What one mesh axis does to one tensor: cut a dim, or hold copies."""

from __future__ import annotations

from dataclasses import dataclass

from reshard.errors import LayoutError

__all__ = ["Placement", "Replicate", "Shard"]


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
        if self.dim < 0 or self.blocks < 1:
            raise LayoutError(f"{self!r}: dim counts from 0 and blocks from 1.")

    def __str__(self) -> str:
        return f"S({self.dim})" if self.blocks == 1 else f"S({self.dim}, blocks={self.blocks})"


Placement = Replicate | Shard
