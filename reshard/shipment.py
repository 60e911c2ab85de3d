"""A box of a tensor, everyone who holds it and everyone who wants it.

Ranks are positions in the layout of their side, as in `Leg`.
"""

from __future__ import annotations

from typing import NamedTuple

from reshard.box_sets import volume_of
from reshard.delivery import Delivery
from reshard.transfer import BoxKey

__all__ = ["Shipment"]


class Shipment(NamedTuple):
    """A box and how it gets to all who want it, for tensors of any rotation.

    Attributes:
        box: what moves.
        local: (holder, taker, copy) of copies within one rank.
        holders: source ranks that hold the whole box, ascending.
        takers: (destination rank, copy) of all that want it and do not hold it, ascending.
        delivery: how they get it, of rotation 0; None if there are none.
    """

    box: BoxKey
    local: tuple[tuple[int, int, int], ...]
    holders: tuple[int, ...]
    takers: tuple[tuple[int, int], ...]
    delivery: Delivery | None

    @property
    def num_elements(self) -> int:
        """Elements of the box."""
        return volume_of(self.box)
