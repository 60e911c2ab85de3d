"""How many bytes one rank has under way at most, and how many rounds that takes.

Within a group of source ranks tensors move one by one, each at a rate of its own. So nothing that
lasts as long as a round moves more bytes than the fastest tensors that fill that time, and that is
found without a look at the order of the tensors. Where it is far above what the rank moves in the
mean, the order is looked at as well (`reshard.timeline`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import sub

from reshard.legs import Leg
from reshard.rank_plan import Batch, RankPlan
from reshard.spans import Spans
from reshard.timeline import Timeline

__all__ = ["MAX_ROUNDS", "Traffic"]

MAX_ROUNDS = 1 << 20

_LOOSE = 1.5
"""From this ratio on to the rounds that the mean needs, the order of the tensors is looked at."""

_STEP = 1.02
"""By so much each step goes farther than the last one called for."""


class Traffic:
    """What a rank sends and receives, without copies within it.

    Attributes:
        nbytes: in all.
        last_hop: of what it sends and receives.
        rounding: bytes that whole elements may add to a round.

    Args:
        plan: of the rank.
        spans: of all tensors of the plan.
    """

    def __init__(self, plan: RankPlan, spans: Spans) -> None:
        self._plan, self._spans = plan, spans
        self._sums: dict[int, list[tuple[int, int, int]]] = {}
        self.nbytes = 0
        flows: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        widest: dict[tuple[int, int, int], int] = {}
        for side, batches in enumerate(_sides(plan)):
            for batch in batches:
                kind, count = batch.kind, len(batch.numbers)
                group, length, whole = spans.share_of(kind)
                for hop, volume, num_legs in self._sums_of(side, batch):
                    itemsize = kind.itemsizes[hop > 0]
                    nbytes = volume * itemsize
                    self.nbytes += nbytes * count
                    key = side, hop, group
                    entry = nbytes * whole / length, count * length / whole
                    flows.setdefault(key, []).append(entry)
                    # Chunks are whole elements, so each leg may have one more than its share.
                    if num_legs * itemsize > widest.get(key, 0):
                        widest[key] = num_legs * itemsize
        # Of each group and hop, two tensors may move in one round.
        self.rounding = 2 * sum(widest.values())
        self.last_hop = max([hop for _, hop, _ in flows], default=0)
        self._changes = _changes(list(flows.values()))

    def most_within(self, time: float) -> int:
        """Returns a number of bytes that no stretch of time of this length exceeds.

        Args:
            time: the whole time is 1.
        """
        for start, moved, rate, stop in self._steps():
            if time <= stop:
                return min(self.nbytes, math.ceil(moved + rate * (time - start)) + 1)
        return self.nbytes

    def num_rounds(self, budget: int) -> int | None:
        """Returns how many rounds of at most so many bytes there have to be.

        Returns:
            None if even `MAX_ROUNDS` are too few.
        """
        if budget >= self.nbytes:
            return 1
        if budget <= 0:
            return None
        found = self._rounds_by_rates(budget)
        mean = -(-self.nbytes // budget)
        if found is not None and found <= mean * _LOOSE:
            return found
        return self._rounds_in_order(budget, mean)

    def least_budget(self) -> int:
        """Returns the least number of bytes for which there are enough rounds."""
        return min(self.nbytes, self._most_in_order(MAX_ROUNDS))

    def _rounds_by_rates(self, budget: int) -> int | None:
        if self.most_within(1 / MAX_ROUNDS) > budget:
            return None
        for start, moved, rate, stop in self._steps():
            if moved + rate * (stop - start) + 1 > budget:
                time = start + (budget - 1 - moved) / rate
                number = min(MAX_ROUNDS, math.ceil(1 / time)) if time > 0 else MAX_ROUNDS
                while self.most_within(1 / number) > budget:  # by one byte, as that rounds up
                    number += 1
                return number
        return 1

    def _rounds_in_order(self, budget: int, mean: int) -> int | None:
        """Returns enough rounds by a look at the order of the tensors.

        What a shorter time moves at most falls more slowly than that time, so each step comes
        nearer from the same side.
        """
        number = float(mean)
        while number < MAX_ROUNDS:
            most = self._most_in_order(number)
            if most <= budget:
                return math.ceil(number)
            number *= _STEP * most / budget
        return MAX_ROUNDS if self._most_in_order(MAX_ROUNDS) <= budget else None

    def _most_in_order(self, num_rounds: float) -> int:
        return math.ceil(self._timeline.most_within(1 / num_rounds)) + 1

    @cached_property
    def _timeline(self) -> Timeline:
        moved = []
        for side, batches in enumerate(_sides(self._plan)):
            for batch in batches:
                for hop, volume, _ in self._sums_of(side, batch):
                    nbytes = volume * batch.kind.itemsizes[hop > 0]
                    moved += [(hop, number, nbytes) for number in batch.numbers]
        return Timeline(moved, self._spans)

    def _sums_of(self, side: int, batch: Batch) -> list[tuple[int, int, int]]:
        """Returns (hop, elements, number of legs) to or from other ranks, of each hop."""
        legs, ranks = batch.legs, batch.ranks
        # Between ranks that are on one side only, nothing that holders send stays where it is.
        is_apart = side < _NUM_FIRST and batch.kind.first.geometry.is_disjoint
        found = self._sums.get(id(legs))  # legs are shared by tensors to which our rank is alike
        if found is None:
            others = legs if is_apart else _to_others(self._plan.rank, legs, ranks)
            found = self._sums[id(legs)] = _sums_per_hop(others)
        return found

    def _steps(self) -> Iterator[tuple[float, float, float, float]]:
        """Yields stretches of time, the fastest first: start, bytes until then, rate, stop."""
        start = moved = rate = 0.0
        for time, change in self._changes:
            if time > start:
                yield start, moved, rate, time
                moved += rate * (time - start)
                start = time
            rate += change


_NUM_FIRST = 2
"""So many of the sides are what holders send."""


def _sides(plan: RankPlan) -> tuple[tuple[Batch, ...], ...]:
    return plan.sends, plan.receives, plan.arrivals, plan.forwards


def _to_others(rank: int, legs: Sequence[Leg], ranks: tuple[int, ...]) -> list[Leg]:
    return [leg for leg in legs if ranks[leg.peer] != rank]


def _sums_per_hop(legs: Sequence[Leg]) -> list[tuple[int, int, int]]:
    sums: dict[int, list[int]] = {}
    for start, _, _, stop, hop, _ in legs:
        entry = sums.get(hop)
        if entry is None:
            entry = sums[hop] = [0, 0]
        entry[0] += math.prod(map(sub, stop, start))
        entry[1] += 1
    return [(hop, volume, count) for hop, (volume, count) in sums.items()]


def _changes(flows: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Returns (time, change of the rate) where each flow has its fastest tensors first.

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
