"""How one box reaches every rank that wants it: arithmetic that all ends evaluate alike.

A part of hop 0 is read from a holder. A part of hop h is read from a rank that wants the box too
and has received that part at a hop before h.
"""

from __future__ import annotations

from typing import NamedTuple

from reshard.holders import Striping, Weights, make_striping

__all__ = ["Delivery", "Part", "Supply", "make_plain_delivery"]


class Part(NamedTuple):
    """Indices `start` to `stop` of the striped dim, to or from a peer.

    Attributes:
        peer: index of a holder at hop 0 where this is received; else of a rank that wants the box.
        start, stop: bounds along the striped dim.
        hop: how many transfers they have behind them when this one begins.
    """

    peer: int
    start: int
    stop: int
    hop: int


class Supply(NamedTuple):
    """What a group of holders sends together.

    Attributes:
        holders: indices of the group.
        num_indices: of the striped dim.
        is_near: True if all of it stays in the domain of the holders.
    """

    holders: tuple[int, ...]
    num_indices: int
    is_near: bool


class Delivery:
    """How a box of one shape gets to all who want it; stripes are counted from the box's start.

    Deliveries of equal boxes are one object, and so are the parts that one rank has of them.

    Attributes:
        striping: how the copies that holders send are shared out; all others cut the same dim.
        period: rotations that differ by it give the same parts.
        num_hops: how many transfers, one after the other, bring it to the last taker.
    """

    def __init__(self, striping: Striping, period: int, num_hops: int) -> None:
        self.striping = striping
        self.period = period
        self.num_hops = num_hops
        self._based: dict[int, Delivery] = {}
        self._turned: dict[int, Delivery] = {}
        self._sent: dict[int, list[Part]] = {}
        self._received: dict[int, list[Part]] = {}
        self._forwarded: dict[int, list[Part]] = {}

    def based(self, turn: int) -> Delivery:
        """Returns the delivery of a box of this turn; this one must be of turn 0."""
        if turn == 0 or self.period == 1:
            return self
        if turn not in self._based:
            self._based[turn] = self._moved(turn, 0)
        return self._based[turn]

    def turned(self, rotation: int) -> Delivery:
        """Returns the delivery of a tensor of this rotation; this one must be of rotation 0."""
        by = rotation % self.period
        if by == 0:
            return self
        if by not in self._turned:
            self._turned[by] = self._moved(0, by)
        return self._turned[by]

    def sent(self, holder: int) -> list[Part]:
        """Returns what a holder sends."""
        if holder not in self._sent:
            self._sent[holder] = self._find_sent(holder)
        return self._sent[holder]

    def received(self, taker: int) -> list[Part]:
        """Returns what one of those who want it receives; together exactly the box."""
        if taker not in self._received:
            self._received[taker] = self._find_received(taker)
        return self._received[taker]

    def forwarded(self, taker: int) -> list[Part]:
        """Returns what one of those who want it sends on of what it received."""
        if taker not in self._forwarded:
            self._forwarded[taker] = self._find_forwarded(taker)
        return self._forwarded[taker]

    def supplied(self) -> list[Supply]:
        """Returns what groups of holders send together."""
        raise NotImplementedError

    def _moved(self, turn: int, rotation: int) -> Delivery:
        raise NotImplementedError

    def _find_sent(self, holder: int) -> list[Part]:
        raise NotImplementedError

    def _find_received(self, taker: int) -> list[Part]:
        raise NotImplementedError

    def _find_forwarded(self, taker: int) -> list[Part]:
        raise NotImplementedError


class _PlainDelivery(Delivery):
    """Copies are shared out evenly over all holders; nobody passes anything on.

    So it is where all ranks are in one domain and holders are many, and where each of those who
    want it is in a domain of its own, away from all holders.
    """

    def __init__(self, striping: Striping, *, is_near: bool) -> None:
        super().__init__(striping, striping.period, 1)
        self._is_near = is_near

    def supplied(self) -> list[Supply]:
        everyone = tuple(range(self.striping.num_holders))
        return [Supply(everyone, self.striping.line, self._is_near)]

    def _moved(self, turn: int, rotation: int) -> Delivery:
        return _PlainDelivery(self.striping.based(turn).turned(rotation), is_near=self._is_near)

    def _find_sent(self, holder: int) -> list[Part]:
        return [Part(peer, a, b, 0) for peer, a, b in self.striping.shares_of_holder(holder)]

    def _find_received(self, taker: int) -> list[Part]:
        return [Part(peer, a, b, 0) for peer, a, b in self.striping.shares_of_copy(taker)]

    def _find_forwarded(self, taker: int) -> list[Part]:
        return []


def make_plain_delivery(
    shape: tuple[int, ...],
    num_takers: int,
    num_holders: int,
    itemsize: int,
    weights: Weights = (),
    *,
    is_near: bool = False,
) -> Delivery:
    """Returns the delivery of a box of turn and rotation 0 where nobody passes anything on.

    Args:
        shape: of the box, in elements per dim; not empty.
        num_takers: those who want it and do not hold it; at least one.
        num_holders: those who hold it; at least one.
        itemsize: bytes per element.
        weights: of the holders.
        is_near: True if all of them are in one domain.
    """
    striping = make_striping(shape, num_takers, num_holders, itemsize, weights=weights)
    return _PlainDelivery(striping, is_near=is_near)
