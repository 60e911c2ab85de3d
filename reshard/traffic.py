"""How many bytes one rank has under way at most, for how long a time.

Within a group of source ranks tensors move one by one, each at a rate of its own. So nothing that
lasts as long as a round moves more bytes than the fastest tensors that fill that time, and that is
found without a look at the order of the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from reshard.rank_plan import Batch, RankPlan
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
    legs_of = _LegSums(plan.rank)
    for side, batches in enumerate((plan.sends, plan.receives, plan.arrivals, plan.forwards)):
        for batch in batches:
            kind, count = batch.kind, len(batch.numbers)
            group, length, whole = spans.share_of(kind)
            volumes, num_legs = legs_of(batch)
            for hop, volume in volumes:
                nbytes = volume * kind.itemsizes[hop > 0]
                total += nbytes * count
                flow = flows.setdefault((side, hop, group), [])
                flow.append((nbytes * whole / length, count * length / whole))
            # Chunks are whole elements, so each leg may have one more than its share.
            width = num_legs * kind.itemsizes[1]
            if width > widest.get((side, group), 0):
                widest[side, group] = width
    # Of each group, two tensors may move in one round.
    rounding = 2 * sum(widest.values())
    last_hop = max([hop for _, hop, _ in flows], default=0)
    return Traffic(total, last_hop, rounding, _changes(list(flows.values())))


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


class _LegSums:
    """Sums over legs to and from other ranks; batches that share their legs share them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._found: dict[tuple[int, int], tuple[list[tuple[int, int]], int]] = {}

    def __call__(self, batch: Batch) -> tuple[list[tuple[int, int]], int]:
        """Returns (hop, elements) of each hop, and the number of legs."""
        kind, _, legs, ranks = batch
        is_apart = kind.first.geometry.is_disjoint  # no leg stays on our rank
        key = id(legs), 0 if is_apart else id(ranks)
        found = self._found.get(key)
        if found is None:
            others = [leg for leg in legs if is_apart or ranks[leg.peer] != self._rank]
            volumes: dict[int, int] = {}
            for leg in others:
                volumes[leg.hop] = volumes.get(leg.hop, 0) + leg.num_elements
            found = self._found[key] = list(volumes.items()), len(others)
        return found
