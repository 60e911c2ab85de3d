"""One transfer of a geometry, from one rank's point of view."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["GeometryPlan", "Leg"]


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
    """

    start: tuple[int, ...]
    copy: int
    peer: int
    stop: tuple[int, ...]


class GeometryPlan(Protocol):
    """What planners of one geometry answer, by position of a rank in its side's layout.

    Legs come in canonical order.
    """

    def sends(self, position: int, rotation: int) -> tuple[Leg, ...]:
        """Returns what a source rank sends."""

    def receives(self, position: int, rotation: int) -> tuple[Leg, ...]:
        """Returns what a destination rank receives."""
