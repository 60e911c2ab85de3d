"""Sets of boxes: whether two of them meet, and how much they hold together at least."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshard.transfer import BoxKey

__all__ = ["disjoint_volume", "some_meet", "volume_of"]


def volume_of(box: BoxKey) -> int:
    """Returns the number of elements of a box."""
    return math.prod([b - a for a, b in zip(*box, strict=True)])


def some_meet(boxes: Sequence[BoxKey]) -> bool:
    """True if two of the boxes share an element; sweeps along the dim that is cut most."""
    if len(boxes) < 2:
        return False
    ndim = len(boxes[0][0])
    if ndim == 0:
        return True
    sweep = max(range(ndim), key=lambda dim: len({start[dim] for start, _ in boxes}))
    active: list[BoxKey] = []
    for box in sorted(boxes, key=lambda each: each[0][sweep]):
        low = box[0][sweep]
        active = [other for other in active if other[1][sweep] > low]
        if any(_meet(box, other) for other in active):
            return True
        active.append(box)
    return False


def disjoint_volume(boxes: Sequence[BoxKey]) -> int:
    """Returns a number of elements that the boxes hold at least; exact if no two of them meet."""
    if not some_meet(boxes):
        return sum(map(volume_of, boxes))
    chosen: list[BoxKey] = []
    for box in sorted(set(boxes), key=volume_of, reverse=True):
        if not any(_meet(box, other) for other in chosen):
            chosen.append(box)
    return sum(map(volume_of, chosen))


def _meet(a: BoxKey, b: BoxKey) -> bool:
    return all(
        low < other_high and other_low < high
        for low, high, other_low, other_high in zip(*a, *b, strict=True)
    )
