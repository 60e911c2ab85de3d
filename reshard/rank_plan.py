"""What one rank sends and receives of all tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from reshard.kinds import Kind
from reshard.legs import Leg
from reshard.transfer import Transfer

__all__ = ["Batch", "RankPlan", "in_order"]

Legs = tuple[Leg, ...]


class Batch(NamedTuple):
    """Tensors of which a rank sends, or receives, the same boxes.

    Attributes:
        kind: of all of them.
        numbers: of their pairs, ascending.
        legs: of each one, in canonical order.
        ranks: those that the peers of the legs are positions of.
    """

    kind: Kind
    numbers: tuple[int, ...]
    legs: Legs
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank sends and receives; batches come in the order of their first pairs.

    Attributes:
        rank: the rank.
        sends: what it sends of what it holds.
        receives: what it receives from holders.
        arrivals: what it receives from ranks that received it.
        forwards: what it sends on of what it received.
    """

    rank: int
    sends: tuple[Batch, ...]
    receives: tuple[Batch, ...]
    arrivals: tuple[Batch, ...] = ()
    forwards: tuple[Batch, ...] = ()

    @property
    def messages(self) -> set[tuple[int, int, bool]]:
        """(peer, hop, whether it is sent) of all streams from and to other ranks."""
        found = set()
        for is_sent, batches in (
            (True, (*self.sends, *self.forwards)),
            (False, (*self.receives, *self.arrivals)),
        ):
            distinct = {(id(each.legs), id(each.ranks)): each for each in batches}
            for _, _, legs, ranks in distinct.values():
                found.update([(ranks[leg.peer], leg.hop, is_sent) for leg in legs])
        return {each for each in found if each[0] != self.rank}

    def transfers_out(self) -> Iterator[Transfer]:
        """Yields every send, copies within the rank included."""
        for pair, legs, ranks in (*in_order(self.sends), *in_order(self.forwards)):
            for start, copy, peer, stop, hop, src_copy in legs:
                yield Transfer(pair, self.rank, ranks[peer], start, stop, copy, hop, src_copy)

    def transfers_in(self) -> Iterator[Transfer]:
        """Yields every receive, copies within the rank included."""
        for pair, legs, ranks in (*in_order(self.receives), *in_order(self.arrivals)):
            for start, copy, peer, stop, hop, src_copy in legs:
                yield Transfer(pair, ranks[peer], self.rank, start, stop, copy, hop, src_copy)


def in_order(batches: Iterable[Batch]) -> list[tuple[int, Legs, tuple[int, ...]]]:
    """Returns (number, legs, ranks) of every pair of some batches, in the order of the pairs."""
    entries = [
        (number, place, legs, ranks)
        for place, (_, numbers, legs, ranks) in enumerate(batches)
        for number in numbers
    ]
    entries.sort()  # No number is in two batches.
    return [(number, legs, ranks) for number, _, legs, ranks in entries]
