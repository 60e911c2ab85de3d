"""How one dim is cut into parts, and what a chain of cuts leaves to each part.

A *run* is a half-open interval of global indices. What one rank holds of one dim is a tuple of
runs, stored one after the other; an unsharded dim is one run, an empty shard is none.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Literal, get_args

from reshard.errors import LayoutError

__all__ = ["Cut", "Division", "Run", "check_division", "cut_dim", "divide"]

Division = Literal["chunk", "balanced", "even"]
Run = tuple[int, int]
Cut = tuple[int, int]
"""One axis that cuts a dim: (number of parts, number of blocks)."""


def check_division(division: str) -> None:
    """Raises LayoutError unless `division` is one of the named rules."""
    if division not in get_args(Division):
        raise LayoutError(f"division {division!r} is unknown; use one of {get_args(Division)}.")


def divide(length: int, parts: int, division: Division) -> list[Run]:
    """Returns the interval of each of `parts` parts of `range(length)`, in order.

    `chunk` gives ceil(length / parts) to each until nothing is left (10 over 4: 3, 3, 3, 1);
    `balanced` gives one more to the first length % parts (3, 3, 2, 2); `even` refuses a remainder.

    Raises:
        LayoutError: if `division` is `even` and `length` is not a multiple of `parts`.

    Source: torch 2.13 `torch.chunk` and `DTensor.Shard`; NumPy `array_split`.
    """
    if division == "balanced":
        size, extra = divmod(length, parts)
        starts = [i * size + min(i, extra) for i in range(parts + 1)]
        return list(pairwise(starts))
    if division == "even" and length % parts:
        raise LayoutError(
            f"{length} elements do not divide evenly over {parts} parts; pad the dim, or choose "
            "division='chunk' (as torch) or 'balanced'."
        )
    size = -(-length // parts)
    return [(min(i * size, length), min((i + 1) * size, length)) for i in range(parts)]


@lru_cache(maxsize=4096)
def cut_dim(length: int, cuts: tuple[Cut, ...], division: Division) -> tuple[tuple[Run, ...], ...]:
    """Returns the runs of each part after cutting `range(length)` by every cut in turn.

    Part number = mixed-radix number of the part indices, first cut major. Each cut works on what
    the cuts before it left, as DTensor applies its placements.

    Example:
        >>> cut_dim(5, ((2, 2), (2, 1)), "chunk")
        (((0, 2),), ((3, 4),), ((2, 3),), ((4, 5),))
    """
    parts: list[tuple[Run, ...]] = [((0, length),) if length else ()]
    for num_parts, num_blocks in cuts:
        parts = [
            part for runs in parts for part in _cut_runs(runs, num_parts, num_blocks, division)
        ]
    return tuple(parts)


def _cut_runs(
    runs: tuple[Run, ...], num_parts: int, num_blocks: int, division: Division
) -> list[tuple[Run, ...]]:
    length = sum(stop - start for start, stop in runs)
    if num_blocks == 1:
        if len(runs) == 1:
            start = runs[0][0]
            return [
                ((start + a, start + b),) if a < b else ()
                for a, b in divide(length, num_parts, division)
            ]
        return [_select(runs, a, b) for a, b in divide(length, num_parts, division)]
    parts: list[list[Run]] = [[] for _ in range(num_parts)]
    for first, last in divide(length, num_blocks, "even" if division == "even" else "chunk"):
        for part, (a, b) in zip(parts, divide(last - first, num_parts, division), strict=True):
            part.extend(_select(runs, first + a, first + b))
    return [_merge(part) for part in parts]


def _select(runs: tuple[Run, ...], first: int, last: int) -> tuple[Run, ...]:
    """Returns elements first..last of the concatenation of `runs`."""
    selected, position = [], 0
    for start, stop in runs:
        low = max(first, position)
        high = min(last, position + stop - start)
        if low < high:
            selected.append((start + low - position, start + high - position))
        position += stop - start
    return tuple(selected)


def _merge(runs: list[Run]) -> tuple[Run, ...]:
    merged: list[Run] = []
    for start, stop in runs:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
