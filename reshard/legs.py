"""One transfer of a geometry, from one rank's point of view."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import sub
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Leg", "Taken", "Turning"]

LegsT = TypeVar("LegsT")


class Leg(NamedTuple):
    """A box that goes to or comes from a peer.

    The order of legs as tuples is the canonical one: alike on both ends of every pair of ranks.

    Attributes:
        start: first index per logical dim.
        copy: which of the destination rank's pieces it fills, where several store the same
            elements; else 0.
        peer: position of the other end in the layout of its side; a local copy has the own rank
            there.
        stop: one past the last index per logical dim.
        hop: 0 if it is read from what a source holds; else how many transfers must have brought it
            to the destination rank that sends it on.
        src_copy: which of the pieces of that rank it is read from, where several store the same
            elements; else 0.
    """

    start: tuple[int, ...]
    copy: int
    peer: int
    stop: tuple[int, ...]
    hop: int = 0
    src_copy: int = 0

    @property
    def num_elements(self) -> int:
        """Elements of the box."""
        return math.prod(map(sub, self.stop, self.start))


class Taken(NamedTuple):
    """What a destination rank has to do with tensors of one geometry and rotation.

    Attributes:
        receives: what it receives from source ranks; peers are positions of the source.
        arrivals: what it receives from destination ranks that have it by then.
        forwards: what it sends on to destination ranks.
    """

    receives: tuple[Leg, ...] = ()
    arrivals: tuple[Leg, ...] = ()
    forwards: tuple[Leg, ...] = ()


class Turning(Generic[LegsT]):
    """Legs of one rank for tensors of any rotation; equal ones are one object.

    Args:
        period: rotations that differ by it have the same legs; an attribute as well.
        make: makes the legs of a rotation below the period.
    """

    def __init__(self, period: int, make: Callable[[int], LegsT]) -> None:
        self.period = period
        self._make = make
        self._found: dict[int, LegsT] = {}

    def of(self, rotation: int) -> LegsT:
        """Returns the legs of tensors of a rotation."""
        turn = rotation % self.period
        legs = self._found.get(turn)
        if legs is None:
            legs = self._found[turn] = self._make(turn)
        return legs
