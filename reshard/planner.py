"""One rank's sends and receives of all tensors, without looking at any other rank's work.

Pairs of equal geometry and rotation share one list of legs, so the cost is that of the distinct
geometries (9 to 19 in a model of 1,000 parameters), not of the parameters or the ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.errors import PlanError
from reshard.geometry_plan import make_geometry_plan
from reshard.legs import GeometryPlan, Leg
from reshard.logical_space import pieces_of_rank
from reshard.matching import TensorPair
from reshard.transfer import Transfer

__all__ = ["Planner", "RankPlan"]

Legs = tuple[Leg, ...]
PairLegs = tuple[int, Legs, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank sends and receives.

    Attributes:
        rank: the rank.
        sends, receives: per tensor pair with something to do, (pair number, legs, ranks by
            position).
    """

    rank: int
    sends: tuple[PairLegs, ...]
    receives: tuple[PairLegs, ...]

    def transfers_out(self) -> Iterator[Transfer]:
        """Yields every send, copies within the rank included."""
        for pair, legs, ranks in self.sends:
            for start, copy, peer, stop in legs:
                yield Transfer(pair, self.rank, ranks[peer], start, stop, copy)

    def transfers_in(self) -> Iterator[Transfer]:
        """Yields every receive, copies within the rank included."""
        for pair, legs, ranks in self.receives:
            for start, copy, peer, stop in legs:
                yield Transfer(pair, ranks[peer], self.rank, start, stop, copy)

    def volumes_in(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields (pair number, number of pairs, source rank, elements of one) per receive.

        Pairs that share their legs come as one, under the number of the first of them, so that sums
        over a model cost as much as its distinct geometries.
        """
        alike = Counter((id(legs), id(ranks)) for _, legs, ranks in self.receives)
        for pair, legs, ranks in self.receives:
            count = alike.pop((id(legs), id(ranks)), 0)
            for start, _, peer, stop in legs if count else ():
                yield pair, count, ranks[peer], _volume_between(start, stop)


def _volume_between(start: tuple[int, ...], stop: tuple[int, ...]) -> int:
    return math.prod([b - a for a, b in zip(start, stop, strict=True)])


def _interned_ranks(pairs: Sequence[TensorPair]) -> dict[int, tuple[int, ...]]:
    """Returns the ranks of each layout, told by its id; equal ones are one object."""
    layouts = {id(spec.layout): spec.layout for pair in pairs for spec in (pair.src, pair.dst)}
    ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
    return {key: ranks.setdefault(found := layout.ranks, found) for key, layout in layouts.items()}


class Planner:
    """Plans ranks of one list of pairs; keeps what geometries have in common."""

    def __init__(self, pairs: Sequence[TensorPair]) -> None:
        self._pairs = pairs
        self._plans: dict[int, GeometryPlan] = {}
        self._volumes: dict[tuple[int, int], int] = {}
        self._proven: dict[int, Legs] = {}
        self._ranks = _interned_ranks(pairs)

    def plan_rank(self, rank: int) -> RankPlan:
        """Returns one rank's part of the plan.

        Raises:
            PlanError: if a source layout does not hold what a destination wants; if the legs of a
                tensor do not cover the rank's elements exactly once.
        """
        sends: list[PairLegs] = []
        receives: list[PairLegs] = []
        positions: dict[int, int | None] = {}
        for number, pair in enumerate(self._pairs):
            src_layout, dst_layout = pair.src.layout, pair.dst.layout
            if id(src_layout) not in positions:
                positions[id(src_layout)] = src_layout.position(rank)
            if id(dst_layout) not in positions:
                positions[id(dst_layout)] = dst_layout.position(rank)
            position = positions[id(src_layout)]
            if position is not None:
                legs = self._plan(pair).sends(position, pair.rotation)
                if legs:
                    sends.append((number, legs, self._ranks[id(dst_layout)]))
            position = positions[id(dst_layout)]
            if position is not None:
                legs = self._plan(pair).receives(position, pair.rotation)
                if id(legs) not in self._proven:
                    self._prove(pair, position, legs)
                if legs:
                    receives.append((number, legs, self._ranks[id(src_layout)]))
        return RankPlan(rank, tuple(sends), tuple(receives))

    def _prove(self, pair: TensorPair, position: int, legs: Legs) -> None:
        """Checks legs once; the planner keeps them, so that their identity stands for them."""
        _check_exact_cover(pair, position, self._volume(pair, position), legs)
        self._proven[id(legs)] = legs

    def stored_bytes(self, rank: int) -> int:
        """Returns the wire bytes of all that a destination rank stores, repeats counted.

        They follow from the rank's layouts, not from what it receives.
        """
        nbytes = 0
        layouts = {id(pair.dst.layout): pair.dst.layout for pair in self._pairs}
        positions = {key: layout.position(rank) for key, layout in layouts.items()}
        for pair in self._pairs:
            position = positions[id(pair.dst.layout)]
            if position is not None:
                nbytes += self._volume(pair, position) * pair.wire_dtype.itemsize
        return nbytes

    def _volume(self, pair: TensorPair, position: int) -> int:
        """Returns how many elements a destination rank stores of a tensor."""
        key = id(pair.geometry), position
        volume = self._volumes.get(key)
        if volume is None:
            volume = self._volumes[key] = _stored_volume(pair, position)
        return volume

    def _plan(self, pair: TensorPair) -> GeometryPlan:
        plan = self._plans.get(id(pair.geometry))
        if plan is None:
            try:
                plan = make_geometry_plan(pair.geometry)
            except PlanError as error:
                raise PlanError(f"{pair.name}: {error}") from None
            self._plans[id(pair.geometry)] = plan
        return plan


def _stored_volume(pair: TensorPair, position: int) -> int:
    """Returns how many logical elements a destination rank stores, repeats counted."""
    side, ndim = pair.geometry.dst, len(pair.geometry.space.shape)
    if pair.num_elements == 0:
        return 0
    rank = side.layout.ranks[position]
    return sum(piece.num_elements for piece in pieces_of_rank(side, ndim, rank))


def _check_exact_cover(pair: TensorPair, position: int, expected: int, receives: Legs) -> None:
    """Proves that the legs write each element that the rank stores exactly once.

    Legs of one copy are disjoint if no two of them meet; together with equal volumes that leaves
    no element out.
    """
    volume = sum(_volume_between(leg.start, leg.stop) for leg in receives)
    if volume != expected or _some_meet(receives):
        raise PlanError(
            f"{pair.name}: destination rank {pair.dst.layout.ranks[position]} stores {expected} "
            f"elements but the plan writes {volume}, or writes one of them twice. This is a defect "
            "of the planner; please report the specs."
        )


def _some_meet(legs: Legs) -> bool:
    """True if two legs of one copy share an element; sweeps along the first dim."""
    active: list[Leg] = []
    for leg in legs:
        if not leg.start:
            if any(other.copy == leg.copy for other in active):
                return True
            active.append(leg)
            continue
        low = leg.start[0]
        active = [other for other in active if other.stop[0] > low]
        for other in active:
            if other.copy == leg.copy and all(
                a < d and c < b
                for a, b, c, d in zip(leg.start, leg.stop, other.start, other.stop, strict=True)
            ):
                return True
        active.append(leg)
    return False
