"""How one box reaches every rank that wants it, where ranks are in several domains.

Ranks that want a box and have a holder of it in their own domain get it from the holders there: a
copy each, or, where they are more than the holders, one copy cut into stripes, which they exchange.
All others are *far*: each far domain gets the box once, cut into stripes over those who want it
there, and they exchange their stripes inside the domain. Only the first `num_direct` far domains
get it from the holders; the next ones get it from them, stripe by stripe (a *relay*), and so on.
Where holders can serve some domains and a part of one more, the box goes in two *lanes*: its first
indices with that domain as a direct one, the others without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from reshard.delivery import Delivery, Part, Supply, make_plain_delivery
from reshard.holders import Weights, turn_of
from reshard.lines import Line, make_line

__all__ = ["DomainDelivery", "Grouped", "Inflow", "group_by_domain", "make_delivery"]


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


class Inflow(NamedTuple):
    """Indices `start` to `stop` that one of a group receives from outside, at a hop.

    Attributes:
        taker: who receives them, for the whole group.
        peer: index of a holder at hop 0, of a taker of another group after that.
    """

    taker: int
    peer: int
    start: int
    stop: int
    hop: int


class _Way(NamedTuple):
    """How the takers of one domain get a box.

    Attributes:
        line: its number.
        place: of the first of them in the line.
        is_shared: True if they get one copy together, at that place; else one each, at the places
            from there on.
    """

    line: int
    place: int
    is_shared: bool


class _Route:
    """How all takers of a box get it, whatever its turn and rotation.

    Attributes:
        lines: of all takers.
        period: of all lines.
        num_hops: how many transfers, one after the other, bring it to the last taker.
        edges: of each line, from `relay_edges`.

    Args:
        lines: an attribute as well.
        takers: by domain.
        way: of each domain of the takers.
    """

    def __init__(self, lines: tuple[Line, ...], takers: Grouped, way: list[_Way]) -> None:
        self.lines = lines
        self._takers, self._way = takers, way
        self.period = math.lcm(*[line.period for line in lines])
        self.num_hops = max([line.num_hops for line in lines])
        self.edges = [line.relay_edges() for line in lines]

    def place_of(self, taker: int) -> tuple[int, int]:
        """Returns the number of a taker's line, and its place there."""
        group, index = self._takers.places[taker]
        way = self._way[group]
        return way.line, way.place if way.is_shared else way.place + index


class DomainDelivery(Delivery):
    """The box goes to several domains, or is exchanged in one, by some turn and rotation.

    What flows into a group goes on in the same pieces, so that whoever sends it on is never ahead
    of what it has received (`reshard.rounds`).

    Args:
        route: how all takers get it.
        turn, rotation: as in `based` and `turned`.
    """

    def __init__(self, route: _Route, *, turn: int = 0, rotation: int = 0) -> None:
        lines = route.lines
        super().__init__(lines[0].striping, route.period, route.num_hops)
        self._route, self._lines = route, lines
        self._turn, self._rotation = turn, rotation
        self._stripings = [line.striping.based(turn).turned(rotation) for line in lines]
        self._inflows: dict[tuple[int, int], list[Inflow]] = {}

    def supplied(self) -> list[Supply]:
        """Returns what groups of holders send together."""
        return [Supply(line.holders, line.striping.line, line.is_near) for line in self._lines]

    def groups(self) -> Iterator[tuple[tuple[int, ...], bool, list[Inflow]]]:
        """Yields the groups of takers that get one copy together.

        Each is told by their indices, whether their holders are in their domain, and what flows
        into the group from outside.
        """
        for number, line in enumerate(self._lines):
            for place, members in enumerate(line.groups):
                yield members, line.is_near, self._inflow(number, place)

    def _moved(self, turn: int, rotation: int) -> Delivery:
        return DomainDelivery(
            self._route, turn=self._turn + turn, rotation=self._rotation + rotation
        )

    def _find_sent(self, holder: int) -> list[Part]:
        parts = []
        for number, line in enumerate(self._lines):
            if holder in line.holders:
                striping = self._stripings[number]
                shares = striping.shares_of_holder(line.holders.index(holder))
                for place in dict.fromkeys([share.peer for share in shares]):
                    parts += [
                        Part(each.taker, each.start, each.stop, 0)
                        for each in self._inflow(number, place)
                        if each.hop == 0 and each.peer == holder
                    ]
        return parts

    def _find_received(self, taker: int) -> list[Part]:
        return [
            Part(peer, start, stop, hop) if first == taker else Part(first, start, stop, hop + 1)
            for first, peer, start, stop, hop in self._inflow(*self._route.place_of(taker))
        ]

    def _find_forwarded(self, taker: int) -> list[Part]:
        number, place = self._route.place_of(taker)
        line = self._lines[number]
        others = [each for each in line.groups[place] if each != taker]
        parts = [
            Part(other, each.start, each.stop, each.hop + 1)
            for each in self._inflow(number, place)
            if each.taker == taker
            for other in others
        ]
        for child in line.children(place):
            parts += [
                Part(each.taker, each.start, each.stop, each.hop)
                for each in self._inflow(number, child)
                if each.hop and each.peer == taker
            ]
        return parts

    def _inflow(self, number: int, place: int) -> list[Inflow]:
        """Returns what the group at a place of a line receives from outside, in order."""
        found = self._inflows.get((number, place))
        if found is None:
            found = self._inflows[number, place] = self._find_inflow(number, place)
        return found

    def _find_inflow(self, number: int, place: int) -> list[Inflow]:
        line, edges = self._lines[number], self._route.edges[number]
        stripes = self._stripes(line, place)
        flows: list[Inflow] = []
        for start, stop, parent in line.origins(place):
            if parent is None:
                shares = self._stripings[number].shares_of_copy(place)
                given = [(line.holders[holder], a, b, 0) for holder, a, b in shares]
            else:
                given = [(who, a, b, hop + 1) for who, _, a, b, hop in self._inflow(number, parent)]
            for taker, first, last in stripes:
                for peer, a, b, hop in given:
                    low = max(first, start, a)
                    high = min(last, stop, b)
                    if low >= high:
                        continue
                    if not edges:
                        flows.append(Inflow(taker, peer, low, high, hop))
                        continue
                    inside = [edge for edge in edges if low < edge < high]
                    for bounds in pairwise((low, *inside, high)):
                        flows.append(Inflow(taker, peer, *bounds, hop))
        return flows

    def _stripes(self, line: Line, place: int) -> list[tuple[int, int, int]]:
        """Returns (who receives it from outside, start, stop) of each stripe of a group."""
        members, edges = line.groups[place], line.stripe_edges(place)
        size, number = len(members), len(edges) - 1
        turn = self._turn + turn_of(self._rotation, size) if number < size else 0
        return [
            (members[(index + turn) % size], start, stop)
            for index, (start, stop) in enumerate(pairwise(edges))
        ]


def make_delivery(
    shape: tuple[int, ...],
    takers: Grouped,
    holders: Grouped,
    itemsize: int,
    direct: tuple[int, int] = (1, 1),
    weights: Mapping[tuple[int, ...], Weights] = MappingProxyType({}),
) -> Delivery:
    """Returns the delivery of a box of turn and rotation 0.

    Args:
        shape: of the box, in elements per dim; not empty.
        takers: those who want it and do not hold it; at least one.
        holders: those who hold it; at least one.
        itemsize: bytes per element.
        direct: numerator and denominator of the share of far domains that holders serve
            themselves; at least one domain is.
        weights: of groups of holders that do not share evenly, by their indices.
    """
    num_takers, num_holders = len(takers.places), len(holders.places)
    by_domain = dict(zip(holders.domains, holders.groups, strict=True))
    is_one_domain = takers.domains == holders.domains and len(takers.groups) == 1
    is_apart = takers.are_apart and by_domain.keys().isdisjoint(takers.domains)
    if (is_one_domain and num_takers <= num_holders) or (is_apart and direct[0] == direct[1]):
        of_all = weights.get(tuple(range(num_holders)), ())
        return make_plain_delivery(
            shape, num_takers, num_holders, itemsize, of_all, is_near=is_one_domain
        )
    lines: list[Line] = []
    far: list[tuple[int, ...]] = []
    way: list[_Way] = []
    num_near = len(by_domain.keys() & takers.domains)
    for domain, members in zip(takers.domains, takers.groups, strict=True):
        own = by_domain.get(domain)
        if own is None:
            way.append(_Way(num_near, len(far), is_shared=True))
            far.append(members)
            continue
        # Where takers are more, each holder would send more than a taker receives; so they send
        # one copy.
        is_one_copy = len(members) > len(own)
        groups = (members,) if is_one_copy else tuple([(m,) for m in members])
        way.append(_Way(len(lines), 0, is_shared=is_one_copy))
        near = make_line(shape, own, groups, itemsize, (1, 1), weights.get(own, ()))
        lines.append(near._replace(is_near=True))
    if far:
        own = tuple(range(num_holders))
        lines.append(make_line(shape, own, tuple(far), itemsize, direct, weights.get(own, ())))
    return DomainDelivery(_Route(tuple(lines), takers, way))
