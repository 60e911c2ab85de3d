"""When one rank moves how many bytes, from tensor to tensor; exact where `traffic` gives a bound.

Costs as much as the tensors, not as their kinds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise

from reshard.spans import Span, Spans

__all__ = ["Timeline"]


class Timeline:
    """What a rank sends and receives over time, all of it side by side; the whole time is 1.

    Args:
        moved: (hop, number of a pair, bytes) of what moves evenly over the span of the pair.
        spans: of all tensors of the plan.
    """

    def __init__(self, moved: Iterable[tuple[int, int, int]], spans: Spans) -> None:
        per_hop: dict[int, list[tuple[Span, int]]] = {}
        for hop, pair, nbytes in moved:
            per_hop.setdefault(hop, []).append((spans.of(pair), nbytes))
        self._curves = [_Curve(entries) for entries in per_hop.values()]

    def most_within(self, time: float) -> float:
        """Returns the most bytes of any stretch of time of this length, of each hop the most.

        A slot holds some round of each hop, whichever.
        """
        return sum([curve.most_within(time) for curve in self._curves])


class _Curve:
    """Bytes until a time: straight between the edges of spans."""

    def __init__(self, entries: list[tuple[Span, int]]) -> None:
        rates: dict[float, float] = {0.0: 0.0, 1.0: 0.0}
        for (start, stop, total), nbytes in entries:
            rate = nbytes * total / (stop - start)
            first, last = start / total, stop / total
            rates[first] = rates.get(first, 0.0) + rate
            rates[last] = rates.get(last, 0.0) - rate
        self._times = sorted(rates)
        self._rates = list(accumulate([rates[time] for time in self._times]))
        lengths = [b - a for a, b in pairwise(self._times)]
        steps = [rate * length for rate, length in zip(self._rates[:-1], lengths, strict=True)]
        self._moved = [0.0, *accumulate(steps)]

    def most_within(self, time: float) -> float:
        """Returns the most bytes of any stretch of time of this length.

        The one that has them begins or ends at the edge of a span.
        """
        most = 0.0
        for at, moved in zip(self._times, self._moved, strict=True):
            most = max(most, self._until(at + time) - moved, moved - self._until(at - time))
        return most

    def _until(self, time: float) -> float:
        if time <= 0.0:
            return 0.0
        if time >= 1.0:
            return self._moved[-1]
        index = bisect_right(self._times, time) - 1
        return self._moved[index] + self._rates[index] * (time - self._times[index])
