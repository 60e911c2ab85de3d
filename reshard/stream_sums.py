"""Bytes of every stream between two ranks, added up per kind of tensors.

Tensors of one kind and turn have the same legs, so sums cost as much as the kinds, the turns and
the ranks, not as the tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reshard.legs import Taken
from reshard.planner import Planner

__all__ = ["stream_bytes"]


def stream_bytes(planner: Planner, ranks: Iterable[int]) -> dict[tuple[int, int], int]:
    """Returns bytes per (source rank, destination rank), without copies within a rank.

    Args:
        planner: of the plan.
        ranks: destination ranks to look at.

    Raises:
        PlanError: if a source layout does not hold what a rank stores; if the legs of a tensor do
            not cover the rank's elements exactly once.
    """
    wanted = set(ranks)
    streams: Counter[tuple[int, int]] = Counter()
    found: dict[int, list[tuple[int, int, int]]] = {}
    for kind in planner.kinds:
        per_side = kind.src_ranks, kind.dst_ranks
        itemsizes = kind.itemsizes
        for position, rank in enumerate(kind.dst_ranks):
            if rank not in wanted:
                continue
            period = planner.plan_of(kind).takes(position).period
            for turn, numbers in kind.turns(period).items():
                taken = planner.taken(kind, position, turn)
                if id(taken) not in found:  # the planner keeps it, so its identity stands for it
                    found[id(taken)] = _volumes(taken)
                for side, peer, volume in found[id(taken)]:
                    src = per_side[side][peer]
                    if src != rank:
                        streams[src, rank] += len(numbers) * volume * itemsizes[side]
    return dict(streams)


def _volumes(taken: Taken) -> list[tuple[int, int, int]]:
    """Returns (side of the peer, its position, elements): what comes from each peer in all."""
    sums: Counter[tuple[int, int]] = Counter()
    for side, legs in enumerate((taken.receives, taken.arrivals)):
        for leg in legs:
            sums[side, leg.peer] += leg.num_elements
    return [(side, peer, volume) for (side, peer), volume in sums.items()]
