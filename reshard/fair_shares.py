"""How much each holder of a box serves, where some of them have much else to send.

Ranks that hold the same tensors share each box evenly. Ranks that hold other tensors besides do
not: which of their bytes they send is chosen for all tensors together, so that the busiest rank is
as idle as possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from reshard.holders import RING_TURNS, Weights

__all__ = ["Ranks", "components", "fair_shares"]

Ranks = tuple[int, ...]

_TOLERANCE = 1e-2
"""Shares that differ from even ones by no more than this part stay even."""

_MAX_SWEEPS = 200
_PRECISION = 1e-4


def components(groups: Iterable[Collection[int]]) -> list[set[frozenset[int]]]:
    """Returns the distinct groups of ranks, those together that have ranks in common, over steps.

    Args:
        groups: ranks of the layouts of a side.
    """
    found: list[tuple[frozenset[int], set[frozenset[int]]]] = []
    distinct = {frozenset(group) for group in groups}
    if sum(map(len, distinct)) == len(frozenset().union(*distinct)):
        return [{group} for group in distinct]
    for group in distinct:
        touching = [each for each in found if not each[0].isdisjoint(group)]
        found = [each for each in found if each[0].isdisjoint(group)]
        ranks = group.union(*[each[0] for each in touching])
        found.append((ranks, {group}.union(*[each[1] for each in touching])))
    return [each for _, each in found]


def fair_shares(supplies: Mapping[Ranks, int]) -> dict[Ranks, Weights]:
    """Returns how much of the bytes of a group of holders each of them sends.

    Loads with the least sum of squares are also those whose greatest is least, so each group in
    turn pours its bytes onto those of its ranks that have least to send of other groups, until
    nothing changes any more.

    Args:
        supplies: bytes that each group of ranks has to send, by the ranks ascending.

    Returns:
        Weights in the order of the ranks, whose sum is a multiple of `RING_TURNS`; groups that
        share evenly are left out.
    """
    shares = {
        ranks: [nbytes / len(ranks)] * len(ranks) for ranks, nbytes in sorted(supplies.items())
    }
    loads: defaultdict[int, float] = defaultdict(float)
    for ranks, given in shares.items():
        for rank, nbytes in zip(ranks, given, strict=True):
            loads[rank] += nbytes
    _balance(supplies, shares, loads)
    weights = {
        ranks: _whole(given, supplies[ranks]) for ranks, given in shares.items() if len(ranks) > 1
    }
    return {ranks: each for ranks, each in weights.items() if each}


def _balance(
    supplies: Mapping[Ranks, int], shares: Mapping[Ranks, list[float]], loads: dict[int, float]
) -> None:
    """Moves bytes from busy ranks to idle ones until no group can do more.

    All ranks have to find the same, whatever their Python: so no `sum` of floats, which rounds in
    another way since Python 3.12.
    """
    movable = {ranks: given for ranks, given in shares.items() if len(ranks) > 1}
    limit = max(loads.values(), default=0) * _PRECISION
    for _ in range(_MAX_SWEEPS):
        moved = 0.0
        for ranks, given in movable.items():
            others = [loads[rank] - own for rank, own in zip(ranks, given, strict=True)]
            level = _level(others, float(supplies[ranks]))
            for index, rank in enumerate(ranks):
                own = max(0.0, level - others[index])
                moved = max(moved, abs(own - given[index]))
                given[index] = own
                loads[rank] = others[index] + own
        if moved <= limit:
            return


def _level(heights: list[float], volume: float) -> float:
    """Returns how high a volume stands that is poured onto ground of these heights."""
    ordered = sorted(heights)
    below = 0.0
    for count, (height, above) in enumerate(pairwise([*ordered, float("inf")]), 1):
        below += height
        level = (volume + below) / count
        if level <= above:
            return level
    return ordered[-1]


def _whole(given: list[float], nbytes: int) -> Weights:
    """Returns whole numbers in the ratio of shares; empty if they are even."""
    number = len(given)
    even = nbytes / number
    if all(abs(each - even) <= _TOLERANCE * even for each in given):
        return ()
    total = RING_TURNS * number
    parts = [each * total / nbytes for each in given]
    weights = [int(part) for part in parts]
    by_rest = sorted(range(number), key=lambda index: weights[index] - parts[index])
    for index in by_rest[: max(0, total - sum(weights))]:
        weights[index] += 1
    # Numbers above 2^53 are not exact, and leave something over.
    weights[max(range(number), key=weights.__getitem__)] += total - sum(weights)
    return tuple(weights)
