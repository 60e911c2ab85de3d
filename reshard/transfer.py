"""One box of one tensor from one source rank to one destination rank."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["BoxKey", "Transfer"]

BoxKey = tuple[tuple[int, ...], tuple[int, ...]]
"""A box as (start, stop) bounds per logical dim."""


class Transfer(NamedTuple):
    """A transfer, in the logical dims of its pair.

    Attributes:
        pair: number of the tensor pair in the plan.
        src_rank, dst_rank: the two ends; equal for a copy within one rank.
        start, stop: bounds per logical dim, in elements.
        copy: which of the destination rank's pieces it fills, where several store the same
            elements; else 0.
        hop: 0 if it is read from what a source holds; else it is read from what the destination
            rank `src_rank` received at hops before.
        src_copy: which of that rank's pieces it is read from then.
    """

    pair: int
    src_rank: int
    dst_rank: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    copy: int
    hop: int = 0
    src_copy: int = 0

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(b - a for a, b in zip(self.start, self.stop, strict=True))

    def __str__(self) -> str:
        box = ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))
        return f"[{box}] {self.src_rank} -> {self.dst_rank}"
