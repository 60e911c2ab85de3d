"""The boxes of one rank with their places in its local array, as callers give them and as kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reshard.box import Box, whole_numbers
from reshard.errors import LayoutError

__all__ = ["BoxesLike", "LocalBox", "check_places", "read_boxes", "read_rank"]


class LocalBox(NamedTuple):
    """A box that a rank holds, and the index in its local array at which the box begins."""

    box: Box
    local_offset: tuple[int, ...]


BoxesLike = Box | Iterable[Box | LocalBox | tuple[Box, Iterable[int]]]
"""One `Box` of a rank, whose local array is that box, or its boxes with their places."""


def read_rank(given: int) -> int:
    """Returns a rank as a plain number.

    Raises:
        LayoutError: if it is no whole number from 0.
    """
    try:
        (rank,) = whole_numbers((given,))
    except TypeError:
        rank = -1
    if rank < 0:
        raise LayoutError(
            f"BoxLayout has boxes of rank {given!r}, which is no whole number from 0. Give the "
            "boxes of each rank, as in BoxLayout({0: Box((0, 0), (2, 4))})."
        )
    return rank


def read_boxes(rank: int, given: BoxesLike) -> tuple[LocalBox, ...]:
    """Returns the boxes of a rank with their places.

    Raises:
        LayoutError: if something else than boxes is given, or several boxes have no places.
    """
    boxes = _items(given)
    placed = []
    for box in boxes:
        if isinstance(box, Box) and len(boxes) > 1:
            raise LayoutError(
                f"rank {rank}: its {len(boxes)} boxes have no places in the local array. Use "
                f"BoxLayout.concatenated({{{rank}: [Box(...), Box(...)]}}, dim=0) for boxes stored "
                "one after the other; else give LocalBox(box, local_offset) each."
            )
        found = _local_box(box)
        if found is None:
            raise LayoutError(
                f"rank {rank}: {given!r} is no Box, and no list of LocalBox(box, local_offset). "
                "A Box is the first index and the number of elements along each dim: "
                "Box((2, 0), (3, 4))."
            )
        placed.append(found)
    return tuple(placed)


def _items(given: object) -> tuple[object, ...]:
    return tuple(given) if isinstance(given, Iterable) else (given,)


def _local_box(given: object) -> LocalBox | None:
    """Returns a box with its place; None for what is neither a box nor a box with an index."""
    if isinstance(given, Box):
        return LocalBox(given, (0,) * given.ndim)
    match given:
        case (Box() as box, at) if isinstance(at, Iterable):
            try:
                return LocalBox(box, whole_numbers(at))
            except TypeError:
                return None
    return None


def check_places(rank: int, local_boxes: tuple[LocalBox, ...]) -> None:
    """Raises LayoutError if boxes have no place in the local array of a rank, or share one."""
    try:
        placed = [Box(at, box.shape) for box, at in local_boxes]
    except LayoutError as error:
        raise LayoutError(
            f"rank {rank}: a box has no place in the local array ({error}) Give the index at which "
            "it begins there, one whole number from 0 per dim."
        ) from None
    for i, first in enumerate(placed):
        for second in placed[:i]:
            if first.intersect(second):
                raise LayoutError(
                    f"rank {rank}: two boxes share local elements {first} and {second}. "
                    "Give each box its own place in the local array."
                )
