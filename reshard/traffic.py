"""How many bytes one rank has under way at most, for how long a time.

Within a group of source ranks tensors move one by one, each at a rate of its own. So nothing that
lasts as long as a round moves more bytes than the fastest tensors that fill that time, and that is
found without a look at the order of the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

from reshard.legs import Leg
from reshard.rank_plan import RankPlan
from reshard.spans import Spans

__all__ = ["Traffic", "rank_traffic"]


class Traffic(NamedTuple):
    """What a rank sends and receives, without copies within it.

    Attributes:
        nbytes: in all.
        last_hop: of what it sends and receives.
        rounding: bytes that whole elements may add to a round.
        changes: (time, change of the rate) of the bytes that a stretch of time has at most, by how
            long it is; the whole time is 1.
    """

    nbytes: int
    last_hop: int
    rounding: int
    changes: list[tuple[float, float]]

    def most_within(self, time: float) -> int:
        """Returns a number of bytes that no stretch of time of this length exceeds."""
        for start, moved, rate, stop in self._steps():
            if time <= stop:
                return min(self.nbytes, math.ceil(moved + rate * (time - start)) + 1)
        return self.nbytes

    def num_rounds(self, budget: int) -> int:
        """Returns how many rounds of at most so many bytes there have to be.

        Args:
            budget: at least `most_within` of a time above 0.
        """
        for start, moved, rate, stop in self._steps():
            if moved + rate * (stop - start) + 1 > budget:
                return math.ceil(1 / (start + (budget - 1 - moved) / rate))
        return 1

    def _steps(self) -> Iterator[tuple[float, float, float, float]]:
        """Yields stretches of time: start, bytes until then, rate of bytes, stop."""
        start = moved = rate = 0.0
        for time, change in self.changes:
            if time > start:
                yield start, moved, rate, time
                moved += rate * (time - start)
                start = time
            rate += change


def rank_traffic(plan: RankPlan, spans: Spans) -> Traffic:
    """Returns the traffic of one rank.

    Args:
        plan: of the rank.
        spans: of all tensors of the plan.
    """
    flows: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    widest: dict[tuple[int, int], int] = {}
    total = 0
    sums: dict[tuple[int, int], tuple[list[tuple[int, int]], int]] = {}
    for side, batches in enumerate((plan.sends, plan.receives, plan.arrivals, plan.forwards)):
        for kind, numbers, legs, ranks in batches:
            # Of ranks that are on one side only, no leg stays where it is.
            apart = kind.first.geometry.is_disjoint
            key = id(legs), 0 if apart else id(ranks)
            if key not in sums:
                sums[key] = _sums_of(legs if apart else _to_others(plan.rank, legs, ranks))
            volumes, num_legs = sums[key]
            group, length, whole = spans.share_of(kind)
            count, itemsizes = len(numbers), kind.itemsizes
            for hop, volume in volumes:
                nbytes = volume * itemsizes[hop > 0]
                total += nbytes * count
                entry = nbytes * whole / length, count * length / whole
                flows.setdefault((side, hop, group), []).append(entry)
            # Chunks are whole elements, so each leg may have one more than its share.
            width = num_legs * itemsizes[1]
            if width > widest.get((side, group), 0):
                widest[side, group] = width
    # Of each group, two tensors may move in one round.
    rounding = 2 * sum(widest.values())
    last_hop = max([hop for _, hop, _ in flows], default=0)
    return Traffic(total, last_hop, rounding, _changes(list(flows.values())))


def _to_others(rank: int, legs: Sequence[Leg], ranks: tuple[int, ...]) -> list[Leg]:
    return [leg for leg in legs if ranks[leg.peer] != rank]


def _sums_of(legs: Sequence[Leg]) -> tuple[list[tuple[int, int]], int]:
    """Returns (hop, elements) of each hop, and the number of legs."""
    volumes: dict[int, int] = {}
    for start, _, _, stop, hop, _ in legs:
        volumes[hop] = volumes.get(hop, 0) + math.prod(map(sub, stop, start))
    return list(volumes.items()), len(legs)


def _changes(flows: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Returns the changes of the rate where each flow has its fastest tensors first.

    Args:
        flows: (rate, duration) of tensors that move one by one; flows move side by side.
    """
    changes: list[tuple[float, float]] = []
    for flow in flows:
        flow.sort(reverse=True)
        time = last = 0.0
        for rate, duration in flow:
            if rate != last:
                changes.append((time, rate - last))
                last = rate
            time += duration
        changes.append((time, -last))
    changes.sort()
    return changes
