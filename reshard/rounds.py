"""Rounds of a plan whose bytes pass through several ranks: each tensor moves in its own time.

A leg moves evenly over the span of its tensor (`reshard.spans`), cut into *rounds*. What is sent on
goes in the pieces in which it came (`reshard.delivery`), so whoever passes a round on has received
it a round before: hop h of round k is in *slot* k + h. While holders send round k over the network,
round k - 1 is exchanged inside the domains and unpacked, and round k + 1 is packed.

All that ranks have to agree on is the number of rounds, a maximum over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import NamedTuple

from reshard.errors import PlanError
from reshard.holders import MIN_STRIPE_BYTES
from reshard.rank_plan import RankPlan
from reshard.spans import Spans
from reshard.traffic import MAX_ROUNDS, Traffic

__all__ = [
    "MAX_GROUP_MESSAGES",
    "MAX_GROUP_OPERATIONS",
    "BudgetError",
    "Pace",
    "Rounds",
    "agreed",
    "pace_of",
    "pace_of_all",
]

MAX_GROUP_OPERATIONS = 256
"""Pairs of ranks whose messages one process posts together at most."""

MAX_GROUP_MESSAGES = 1024
"""Messages that one process posts together at most: NCCL takes 2,048."""

_BUFFERS = 2  # One that is packed or unpacked while the other is on the wire.
_MIN_ROUNDS = 16
_MIN_ROUND_BYTES = 4 << 20  # of a rank; less takes no longer than what a round costs by itself


class BudgetError(PlanError):
    """Memory for chunks under way does not suffice.

    Args:
        message: says whose it is.
        least: bytes that suit all ranks that were looked at; an attribute as well.
    """

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class Pace(NamedTuple):
    """What all ranks agree on.

    Attributes:
        num_rounds: into how many rounds the whole time is cut.
        num_groups: so many groups of sends and receives are posted one after the other in each
            slot; a power of two.
        messages_per_pair: so many messages of one rank to another are in a group at most.
    """

    num_rounds: int = 1
    num_groups: int = 1
    messages_per_pair: int = MAX_GROUP_MESSAGES


@dataclass(frozen=True, slots=True)
class Rounds:
    """When which elements move.

    Attributes:
        pace: agreed by all ranks.
        num_hops: of the plan.
        spans: when each tensor moves.
    """

    pace: Pace
    num_hops: int
    spans: Spans

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
        start, stop, total = self.spans.of(pair)
        num_rounds = self.pace.num_rounds
        return range(start * num_rounds // total + hop, -(-stop * num_rounds // total) + hop)

    def group(self, src_rank: int, dst_rank: int) -> int:
        """Returns in which group of a slot two ranks post what they send to each other."""
        return (dst_rank - src_rank) % self.pace.num_groups

    def _edge(self, pair: int, num_elements: int, number: int) -> int:
        start, stop, total = self.spans.of(pair)
        passed = number * total - start * self.pace.num_rounds
        whole = (stop - start) * self.pace.num_rounds
        return min(max(num_elements * passed // whole, 0), num_elements)


def pace_of(plan: RankPlan, spans: Spans, staging_bytes: int) -> Pace:
    """Returns the pace that one rank needs; a faster one, with more rounds, suits it as well.

    Args:
        plan: of the rank.
        spans: of all tensors of the plan.
        staging_bytes: memory for chunks under way; two rounds of what the rank sends and receives
            have to fit.

    Raises:
        BudgetError: if the budget is too small for any number of rounds.
    """
    return pace_of_all([plan], spans, staging_bytes)


def pace_of_all(
    plans: Iterable[RankPlan], spans: Spans, staging_bytes: int, num_local: int = 1
) -> Pace:
    """Returns the pace that suits several ranks.

    Args:
        plans: of the ranks.
        spans: of all tensors of the plans.
        staging_bytes: of each rank; see `pace_of`.
        num_local: ranks of one process, which posts the messages of all of them together.

    Raises:
        BudgetError: if the budget is too small for one of them.
    """
    pace = Pace()
    refused: dict[int, int] = {}
    for plan in plans:
        peers = {(peer, is_sent) for peer, _, is_sent in plan.messages}
        traffic = Traffic(plan, spans)
        if not peers:
            continue
        num_rounds = traffic.num_rounds(staging_bytes // _BUFFERS - traffic.rounding)
        if num_rounds is None:
            refused[plan.rank] = _BUFFERS * (traffic.rounding + traffic.least_budget())
            continue
        if traffic.last_hop:
            # What is passed on waits for a round, so rounds are short where messages stay large.
            least = max(len(peers) * MIN_STRIPE_BYTES, _MIN_ROUND_BYTES)
            wanted = _MIN_ROUNDS * traffic.last_hop  # each further hop waits for one more
            num_rounds = max(num_rounds, min(wanted, traffic.nbytes // least))
        pace = agreed([pace, Pace(num_rounds, *_groups(plan.rank, peers, num_local))])
    if refused:
        worst = max(refused, key=refused.__getitem__)
        raise BudgetError(
            f"staging_bytes={staging_bytes} is too small for rank {worst} even in {MAX_ROUNDS} "
            f"rounds: give at least {refused[worst]}.",
            refused[worst],
        )
    return pace


def _groups(rank: int, peers: Set[tuple[int, bool]], num_local: int) -> tuple[int, int]:
    """Returns how many groups there are, and how many messages a pair may have in one."""
    # Two peers stay together in any number of groups: one this far behind, one as far ahead.
    most = max(MAX_GROUP_OPERATIONS // num_local, 2)
    num_groups = 1
    while (largest := _largest_group(rank, peers, num_groups)) > most:
        num_groups *= 2
    return num_groups, max(MAX_GROUP_MESSAGES // (num_local * largest), 1)


def agreed(paces: Iterable[Pace]) -> Pace:
    """Returns the pace that suits all ranks."""
    rounds, groups, messages = zip(*paces, strict=True)
    return Pace(max(rounds), max(groups), min(messages))


def _largest_group(rank: int, peers: Iterable[tuple[int, bool]], num_groups: int) -> int:
    signed = [(peer - rank if is_out else rank - peer) % num_groups for peer, is_out in peers]
    return max(Counter(signed).values())
