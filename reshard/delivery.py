"""How one box reaches every rank that wants it: arithmetic that all ends evaluate alike.

Ranks that want a box and have a holder of it in their own domain get it from the holders there. All
others are *far*: each far domain gets the box once, cut into stripes over those who want it there,
and they exchange their stripes inside the domain. Only the first `num_direct` far domains get it
from the holders; the next ones get it from them, stripe by stripe (a *relay*), and so on.

A part of hop 0 is read from a holder. A part of hop h is read from a rank that wants the box too
and has received that part at a hop before h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from reshard.holders import MIN_STRIPE_BYTES, Striping, make_striping, period_of, turn_of

__all__ = ["Delivery", "Grouped", "Part", "group_by_domain", "make_delivery"]


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


class Grouped(NamedTuple):
    """Ranks by domain, as indices into the list that was grouped.

    Attributes:
        groups: per domain, in order of first appearance, the indices of its ranks.
        domains: the domain of each group.
        places: per index, its group and its place in that.
        are_apart: True if no two ranks are in one domain.
    """

    groups: tuple[tuple[int, ...], ...]
    domains: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    are_apart: bool


@lru_cache(maxsize=4096)
def group_by_domain(domains: tuple[int, ...]) -> Grouped:
    """Returns the groups of ranks whose domains these are."""
    groups: dict[int, list[int]] = {}
    for index, domain in enumerate(domains):
        groups.setdefault(domain, []).append(index)
    places: list[tuple[int, int]] = [(0, 0)] * len(domains)
    for number, members in enumerate(groups.values()):
        for place, index in enumerate(members):
            places[index] = number, place
    are_apart = len(groups) == len(domains)
    return Grouped(tuple(map(tuple, groups.values())), tuple(groups), tuple(places), are_apart)


class Delivery:
    """How a box of one shape gets to all who want it; stripes are counted from the box's start.

    Deliveries of equal boxes are one object, and so are the parts that one rank has of them.

    Attributes:
        striping: how the copies that holders send are shared out; all others cut the same dim.
        period: rotations that differ by it give the same parts.
    """

    def __init__(self, striping: Striping, period: int) -> None:
        self.striping = striping
        self.period = period
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

    So it is where all ranks are in one domain, and where each of those who want it is in a domain
    of its own, away from all holders.
    """

    def __init__(self, striping: Striping) -> None:
        super().__init__(striping, striping.period)

    def _moved(self, turn: int, rotation: int) -> Delivery:
        return _PlainDelivery(self.striping.based(turn).turned(rotation))

    def _find_sent(self, holder: int) -> list[Part]:
        return [Part(peer, a, b, 0) for peer, a, b in self.striping.shares_of_holder(holder)]

    def _find_received(self, taker: int) -> list[Part]:
        return [Part(peer, a, b, 0) for peer, a, b in self.striping.shares_of_copy(taker)]

    def _find_forwarded(self, taker: int) -> list[Part]:
        return []


class _Domains(NamedTuple):
    """Where a box of one shape goes, for any turn.

    Attributes:
        takers: those who want it, grouped.
        near: group -> (holders of its domain, how copies are shared out over them).
        far: the other groups, in order.
        places: group -> place in `far`.
        num_stripes: per far group, how many of its members receive a stripe from outside.
        line: how the copies of the direct far groups are shared out over all holders; None without
            far groups.
    """

    takers: Grouped
    near: dict[int, tuple[tuple[int, ...], Striping]]
    far: tuple[int, ...]
    places: dict[int, int]
    num_stripes: tuple[int, ...]
    line: Striping | None

    @property
    def any_striping(self) -> Striping:
        """One of the stripings."""
        return self.line or next(iter(self.near.values()))[1]

    @property
    def period(self) -> int:
        """Rotations that differ by it give the same parts."""
        periods = {striping.period for _, striping in self.near.values()}
        periods.add(1 if self.line is None else self.line.period)
        for group, number in zip(self.far, self.num_stripes, strict=True):
            size = len(self.takers.groups[group])
            periods.add(period_of(size) if number < size else 1)
        return math.lcm(*periods)


class _DomainDelivery(Delivery):
    """The box goes to several domains, by some turn and rotation."""

    def __init__(self, domains: _Domains, period: int, *, turn: int = 0, rotation: int = 0) -> None:
        super().__init__(domains.any_striping, period)
        self._domains, self._turn, self._rotation = domains, turn, rotation
        line = domains.line
        self._line = None if line is None else line.based(turn).turned(rotation)
        self._num_direct = 1 if line is None else line.num_copies
        self._cuts: dict[int, list[tuple[int, int, int]]] = {}

    def _moved(self, turn: int, rotation: int) -> Delivery:
        return _DomainDelivery(
            self._domains,
            self.period,
            turn=self._turn + turn,
            rotation=self._rotation + rotation,
        )

    def _find_sent(self, holder: int) -> list[Part]:
        parts = []
        for group, (holders, striping) in self._domains.near.items():
            if holder in holders:
                members = self._domains.takers.groups[group]
                shares = self._now(striping).shares_of_holder(holders.index(holder))
                parts += [Part(members[peer], a, b, 0) for peer, a, b in shares]
        if self._line is not None:
            for place, start, stop in self._line.shares_of_holder(holder):
                parts += _meeting(self._cut(place), start, stop, 0)
        return parts

    def _find_received(self, taker: int) -> list[Part]:
        group, place = self._domains.takers.places[taker]
        if group in self._domains.near:
            holders, striping = self._domains.near[group]
            shares = self._now(striping).shares_of_copy(place)
            return [Part(holders[peer], a, b, 0) for peer, a, b in shares]
        far_place = self._domains.places[group]
        hop = far_place // self._num_direct
        parts: list[Part] = []
        for member, start, stop in self._cut(far_place):
            if member != taker:
                parts.append(Part(member, start, stop, hop + 1))
            elif self._line is not None and hop == 0:
                parts += _meeting(self._line.shares_of_copy(far_place), start, stop, 0)
            else:
                parts += _meeting(self._cut(far_place - self._num_direct), start, stop, hop)
        return parts

    def _find_forwarded(self, taker: int) -> list[Part]:
        group, _ = self._domains.takers.places[taker]
        if group in self._domains.near:
            return []
        far_place = self._domains.places[group]
        hop, child = far_place // self._num_direct + 1, far_place + self._num_direct
        parts: list[Part] = []
        for member, start, stop in self._cut(far_place):
            if member == taker:
                others = [each for each in self._domains.takers.groups[group] if each != taker]
                parts += [Part(other, start, stop, hop) for other in others]
                if child < len(self._domains.far):
                    parts += _meeting(self._cut(child), start, stop, hop)
        return parts

    def _now(self, striping: Striping) -> Striping:
        return striping.based(self._turn).turned(self._rotation)

    def _cut(self, far_place: int) -> list[tuple[int, int, int]]:
        """Returns (who receives it from outside, start, stop) of each stripe of a far domain."""
        found = self._cuts.get(far_place)
        if found is None:
            members = self._domains.takers.groups[self._domains.far[far_place]]
            found = self._find_cut(members, self._domains.num_stripes[far_place])
            self._cuts[far_place] = found
        return found

    def _find_cut(self, members: tuple[int, ...], number: int) -> list[tuple[int, int, int]]:
        size, length = len(members), self.striping.length
        turn = self._turn + turn_of(self._rotation, size) if number < size else 0
        edges = [-(-index * length // number) for index in range(number + 1)]
        return [
            (members[(index + turn) % size], edges[index], edges[index + 1])
            for index in range(number)
        ]


def _meeting(cut: Sequence[tuple[int, int, int]], start: int, stop: int, hop: int) -> list[Part]:
    """Returns the parts of a cut line that lie between two bounds."""
    return [
        Part(peer, max(a, start), min(b, stop), hop) for peer, a, b in cut if a < stop and start < b
    ]


def make_delivery(
    shape: tuple[int, ...],
    takers: Grouped,
    holders: Grouped,
    itemsize: int,
    direct: tuple[int, int] = (1, 1),
) -> Delivery:
    """Returns the delivery of a box of turn and rotation 0.

    Args:
        shape: of the box, in elements per dim; not empty.
        takers: those who want it and do not hold it; at least one.
        holders: those who hold it; at least one.
        itemsize: bytes per element.
        direct: numerator and denominator of the share of far domains that holders serve
            themselves; at least one domain is.
    """
    num_holders = len(holders.places)
    by_domain = dict(zip(holders.domains, holders.groups, strict=True))
    is_one_domain = takers.domains == holders.domains and len(takers.groups) == 1
    is_apart = takers.are_apart and by_domain.keys().isdisjoint(takers.domains)
    if is_one_domain or (is_apart and direct[0] == direct[1]):
        return _PlainDelivery(make_striping(shape, len(takers.places), num_holders, itemsize))
    near: dict[int, tuple[tuple[int, ...], Striping]] = {}
    far: list[int] = []
    for group, (domain, members) in enumerate(zip(takers.domains, takers.groups, strict=True)):
        own = by_domain.get(domain)
        if own is None:
            far.append(group)
        else:
            near[group] = own, make_striping(shape, len(members), len(own), itemsize)
    line = None
    if far:
        num_direct = max(1, -(-len(far) * direct[0] // direct[1]))
        line = make_striping(shape, num_direct, num_holders, itemsize)
    most = max(1, min(math.prod(shape) * itemsize // MIN_STRIPE_BYTES, max(shape, default=1)))
    domains = _Domains(
        takers,
        near,
        tuple(far),
        {group: place for place, group in enumerate(far)},
        tuple([min(most, len(takers.groups[group])) for group in far]),
        line,
    )
    return _DomainDelivery(domains, domains.period)
