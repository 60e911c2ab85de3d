"""Rounds of a plan whose bytes pass through several ranks: each tensor moves in its own time.

Every group of source ranks (a pipeline stage) goes through its tensors in order, all groups side by
side, so each tensor has a *span* of the whole time, as long as its share of the bytes that one
destination rank stores of its group: memory under way then stays the same all the time. A
leg moves evenly over the span of its tensor, cut into *rounds*. What is sent on goes in the pieces
in which it came (`reshard.delivery`), so whoever passes a round on has received it a round before:
hop h of round k is in *slot* k + h. While holders send round k over the network, round k - 1 is
exchanged inside the domains and unpacked, and round k + 1 is packed.

All that ranks have to agree on is the number of rounds, a maximum over all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from reshard.errors import PlanError
from reshard.holders import MIN_STRIPE_BYTES
from reshard.logical_space import pieces_of_rank
from reshard.matching import TensorPair
from reshard.planner import RankPlan

__all__ = ["MAX_GROUP_OPERATIONS", "Pace", "Rounds", "Span", "agreed", "pace_of", "spans_of"]

MAX_GROUP_OPERATIONS = 256
"""Sends and receives that one rank posts together at most."""

_BUFFERS = 2  # One that is packed or unpacked while the other is on the wire.
_BINS = 4  # per round, in which bytes are counted
_MIN_ROUNDS = 16
_MIN_ROUND_BYTES = 4 << 20  # of a rank; less takes no longer than what a round costs by itself
_MAX_ROUNDS = 1 << 16


class Span(NamedTuple):
    """When a tensor moves: from `start / total` to `stop / total` of the whole time."""

    start: int
    stop: int
    total: int


class Pace(NamedTuple):
    """What all ranks agree on.

    Attributes:
        num_rounds: into how many rounds the whole time is cut.
        num_groups: so many groups of sends and receives are posted one after the other in each
            slot; a power of two.
    """

    num_rounds: int
    num_groups: int


def spans_of(pairs: Sequence[TensorPair]) -> list[Span]:
    """Returns the span of each pair."""
    groups: dict[tuple[int, ...], int] = {}
    group_of_layout: dict[int, int] = {}
    local: dict[int, int] = {}
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    moved: list[tuple[int, int]] = []  # number of the group, bytes
    for pair in pairs:
        layout, itemsize = pair.src.layout, pair.wire_dtype.itemsize
        key = id(layout), id(pair.geometry), itemsize
        entry = found.get(key)
        if entry is None:
            if id(layout) not in group_of_layout:
                ranks = tuple(sorted(layout.ranks))
                group_of_layout[id(layout)] = groups.setdefault(ranks, len(groups))
            if id(pair.geometry) not in local:
                local[id(pair.geometry)] = _stored_on_one_rank(pair)
            nbytes = local[id(pair.geometry)] * itemsize
            entry = found[key] = group_of_layout[id(layout)], nbytes
        moved.append(entry)
    totals, done = [0] * len(groups), [0] * len(groups)
    for group, nbytes in moved:
        totals[group] += nbytes
    spans = []
    for group, nbytes in moved:
        start = done[group]
        done[group] = start + nbytes
        spans.append(Span(start, start + nbytes, totals[group]))
    return spans


def _stored_on_one_rank(pair: TensorPair) -> int:
    """Returns how many elements a destination rank stores: the more of two, at least 1."""
    side, ndim = pair.geometry.dst, len(pair.geometry.space.shape)
    ranks = side.layout.ranks
    return max(
        1,
        pair.num_elements // len(ranks),
        *[
            sum([piece.num_elements for piece in pieces_of_rank(side, ndim, rank)])
            for rank in {ranks[0], ranks[len(ranks) // 2]}
        ],
    )


@dataclass(frozen=True, slots=True)
class Rounds:
    """When which elements move.

    Attributes:
        pace: agreed by all ranks.
        num_hops: of the plan.
        spans: of each pair.
    """

    pace: Pace
    num_hops: int
    spans: tuple[Span, ...]

    @property
    def num_slots(self) -> int:
        """Slots from the first send to the last receive."""
        return self.pace.num_rounds + self.num_hops - 1

    def chunk(self, pair: int, num_elements: int, hop: int, slot: int) -> tuple[int, int]:
        """Returns which elements of a leg move in a slot, in row-major order of its box.

        Args:
            pair: number of the pair.
            num_elements: of the leg.
            hop: of the leg.
            slot: from 0 to below `num_slots`.

        Returns:
            (start, stop), equal where none do.
        """
        number = slot - hop
        return self._edge(pair, num_elements, number), self._edge(pair, num_elements, number + 1)

    def slots(self, pair: int, hop: int) -> range:
        """Returns the slots in which legs of a pair may move at a hop."""
        start, stop, total = self.spans[pair]
        num_rounds = self.pace.num_rounds
        return range(start * num_rounds // total + hop, -(-stop * num_rounds // total) + hop)

    def group(self, src_rank: int, dst_rank: int) -> int:
        """Returns in which group of a slot two ranks post what they send to each other."""
        return (dst_rank - src_rank) % self.pace.num_groups

    def _edge(self, pair: int, num_elements: int, number: int) -> int:
        start, stop, total = self.spans[pair]
        passed = number * total - start * self.pace.num_rounds
        whole = (stop - start) * self.pace.num_rounds
        return min(max(num_elements * passed // whole, 0), num_elements)


def pace_of(
    plan: RankPlan, pairs: Sequence[TensorPair], spans: Sequence[Span], staging_bytes: int
) -> Pace:
    """Returns the pace that one rank needs; a faster one, with more rounds, suits it as well.

    Args:
        plan: of the rank.
        pairs: all pairs of the plan.
        spans: of the pairs.
        staging_bytes: memory for chunks under way; two rounds of what the rank sends and receives
            have to fit.

    Raises:
        PlanError: if the budget is too small for 65,536 rounds.
    """
    peers = {(peer, is_sent) for peer, _, is_sent in plan.messages}
    if not peers:
        return Pace(1, 1)
    num_groups = 1
    while _largest_group(plan.rank, peers, num_groups) > MAX_GROUP_OPERATIONS:
        num_groups *= 2
    moved = _bytes_per_pair(plan, pairs)
    total = sum([sum(nbytes.values()) for nbytes in moved.per_hop.values()])
    # Chunks are whole elements, so each leg may have one more than its share.
    budget = staging_bytes // _BUFFERS - moved.rounding
    if budget <= 0 or total // budget >= _MAX_ROUNDS:
        raise _too_small(plan.rank, staging_bytes, moved.rounding + -(-total // _MAX_ROUNDS))
    num_rounds = max(1, -(-total // budget))
    if len(moved.per_hop) > 1:
        # What is passed on waits for a round, so rounds are short where messages stay large.
        smallest = max(len(peers) * MIN_STRIPE_BYTES, _MIN_ROUND_BYTES)
        wanted = _MIN_ROUNDS * max(moved.per_hop)  # each further hop waits for one more
        num_rounds = max(num_rounds, min(wanted, total // smallest))
    while True:
        # A slot holds some round of each hop, whichever.
        most = sum([_most_per_round(each, spans, num_rounds) for each in moved.per_hop.values()])
        if most <= budget:
            return Pace(num_rounds, num_groups)
        num_rounds = max(num_rounds + 1, num_rounds * most // budget)
        if num_rounds > _MAX_ROUNDS:
            raise _too_small(plan.rank, staging_bytes, moved.rounding + most)


def _too_small(rank: int, staging_bytes: int, per_round: int) -> PlanError:
    return PlanError(
        f"staging_bytes={staging_bytes} is too small for rank {rank} even in {_MAX_ROUNDS} rounds: "
        f"give at least {_BUFFERS * per_round}."
    )


def agreed(paces: Iterable[Pace]) -> Pace:
    """Returns the pace that suits all ranks."""
    rounds, groups = zip(*paces, strict=True)
    return Pace(max(rounds), max(groups))


class _Moved(NamedTuple):
    """What a rank sends and receives, without copies within it.

    Attributes:
        per_hop: hop -> pair number -> bytes.
        rounding: bytes that whole elements may add to a round.
    """

    per_hop: dict[int, dict[int, int]]
    rounding: int


def _bytes_per_pair(plan: RankPlan, pairs: Sequence[TensorPair]) -> _Moved:
    per_hop: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    elements: defaultdict[int, int] = defaultdict(int)  # pair -> bytes of one element of each leg
    found: dict[tuple[int, int], tuple[list[tuple[int, int]], int]] = {}
    for number, legs, ranks in (*plan.sends, *plan.forwards, *plan.receives, *plan.arrivals):
        key = id(legs), id(ranks)
        entry = found.get(key)
        if entry is None:
            volumes: Counter[int] = Counter()
            others = [leg for leg in legs if ranks[leg.peer] != plan.rank]
            for leg in others:
                volumes[leg.hop] += leg.num_elements
            entry = found[key] = list(volumes.items()), len(others)
        pair = pairs[number]
        sent, stored = pair.wire_dtype.itemsize, pair.dst.dtype.itemsize
        for hop, volume in entry[0]:
            per_hop[hop][number] += volume * (stored if hop else sent)
        elements[number] += entry[1] * stored
    # Of each group of holders, two tensors may move in one round.
    widest: defaultdict[int, int] = defaultdict(int)
    for number, nbytes in elements.items():
        layout = id(pairs[number].src.layout)
        if nbytes > widest[layout]:
            widest[layout] = nbytes
    return _Moved({hop: dict(each) for hop, each in per_hop.items()}, 2 * sum(widest.values()))


def _largest_group(rank: int, peers: Iterable[tuple[int, bool]], num_groups: int) -> int:
    signed = [(peer - rank if is_out else rank - peer) % num_groups for peer, is_out in peers]
    return max(Counter(signed).values())


def _most_per_round(nbytes: dict[int, int], spans: Sequence[Span], num_rounds: int) -> int:
    """Returns a number of bytes that no stretch of time as long as a round exceeds."""
    num_bins = num_rounds * _BINS
    whole = [0.0] * (num_bins + 1)
    slopes = [0.0] * (num_bins + 1)
    for number, amount in nbytes.items():
        start, stop, total = spans[number]
        first, last = start * num_bins // total, -(-stop * num_bins // total)
        if last - first <= 1:
            whole[first] += amount
            continue
        per_bin = min(amount, amount * total / ((stop - start) * num_bins))
        slopes[first] += per_bin
        slopes[last] -= per_bin
    bins = [a + b for a, b in zip(whole, accumulate(slopes), strict=True)]
    sums = [0.0, *accumulate(bins)]
    width = _BINS + 1
    return int(max([b - a for a, b in zip(sums, sums[width:], strict=False)], default=sums[-1])) + 1
