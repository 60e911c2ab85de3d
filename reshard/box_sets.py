"""Sets of boxes: whether two of them meet, their disjoint parts, how much they hold at least."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from operator import sub

from reshard.transfer import BoxKey

__all__ = ["common_box", "disjoint_parts", "disjoint_volume", "some_meet", "volume_of"]


def volume_of(box: BoxKey) -> int:
    """Returns the number of elements of a box."""
    start, stop = box
    return math.prod(map(sub, stop, start))


def some_meet(boxes: Sequence[BoxKey]) -> bool:
    """True if two of the boxes share an element; sweeps along the dim that is cut most."""
    if len(boxes) < 2:
        return False
    ndim = len(boxes[0][0])
    if ndim == 0:
        return True
    sweep = max(range(ndim), key=lambda dim: len({start[dim] for start, _ in boxes}))
    ordered = sorted(boxes, key=lambda each: each[0][sweep])
    if all([one[1][sweep] <= other[0][sweep] for one, other in pairwise(ordered)]):
        return False
    active: list[BoxKey] = []
    for box in ordered:
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


def common_box(a: BoxKey, b: BoxKey) -> BoxKey | None:
    """Returns what two boxes have in common; None for nothing."""
    start = tuple(map(max, a[0], b[0]))
    stop = tuple(map(min, a[1], b[1]))
    if any(low >= high for low, high in zip(start, stop, strict=True)):
        return None
    return start, stop


def disjoint_parts(
    boxes: Sequence[BoxKey], max_parts: int | None = None
) -> tuple[dict[BoxKey, list[int]], bool]:
    """Returns parts of distinct boxes, each with the numbers of the boxes that it is a part of.

    Boxes that meet, over one step or many, are cut along all edges of each other.

    Args:
        boxes: no two of them equal.
        max_parts: boxes that would fall into more parts each, on average, are left whole.

    Returns:
        The parts, and whether no two of them meet.
    """
    if not some_meet(boxes):
        return {box: [number] for number, box in enumerate(boxes)}, True
    limit = math.inf if max_parts is None else max_parts
    parts: dict[BoxKey, list[int]] = {}
    are_apart = True
    for numbers in _clusters(boxes):
        cells = _Cells([boxes[n] for n in numbers]) if len(numbers) > 1 else None
        if cells is None or cells.count > limit * len(numbers):
            parts.update({boxes[n]: [n] for n in numbers})
            are_apart = are_apart and cells is None
            continue
        for n in numbers:
            for cell in cells.of(boxes[n]):
                parts.setdefault(cell, []).append(n)
    return parts, are_apart


def _clusters(boxes: Sequence[BoxKey]) -> list[list[int]]:
    """Returns the numbers of boxes that meet, over one step or many, ascending."""
    clusters: list[list[int]] = []
    left = list(range(len(boxes)))
    while left:
        cluster, left = [left[0]], left[1:]
        for number in cluster:
            meeting = [other for other in left if _meet(boxes[number], boxes[other])]
            cluster += meeting
            left = [other for other in left if other not in meeting] if meeting else left
        clusters.append(sorted(cluster))
    return clusters


class _Cells:
    """Boxes that are cut along all edges of each other."""

    def __init__(self, boxes: Sequence[BoxKey]) -> None:
        self._edges = [
            sorted({edge for start, stop in boxes for edge in (start[dim], stop[dim])})
            for dim in range(len(boxes[0][0]))
        ]
        self.count = sum(math.prod(map(len, self._ranges(box))) for box in boxes)

    def of(self, box: BoxKey) -> Iterator[BoxKey]:
        """Yields the cells of one of the boxes."""
        for cell in product(*self._ranges(box)):
            bounds = list(zip(self._edges, cell, strict=True))
            start = tuple([edges[i] for edges, i in bounds])
            yield start, tuple([edges[i + 1] for edges, i in bounds])

    def _ranges(self, box: BoxKey) -> list[range]:
        return [
            range(bisect_left(edges, low), bisect_left(edges, high))
            for edges, low, high in zip(self._edges, *box, strict=True)
        ]


def _meet(a: BoxKey, b: BoxKey) -> bool:
    return all(
        low < other_high and other_low < high
        for low, high, other_low, other_high in zip(*a, *b, strict=True)
    )
