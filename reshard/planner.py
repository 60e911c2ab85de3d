"""One rank's sends and receives of all tensors, without looking at any other rank's work.

Pairs of equal geometry and rotation share one list of legs, so the cost is that of the distinct
geometries (9 to 19 in a model of 1,000 parameters), not of the parameters or the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from reshard.box_sets import some_meet, volume_of
from reshard.errors import PlanError
from reshard.geometry_plan import GeometryPlan, make_geometry_plan
from reshard.holders import Shares, Weights
from reshard.kinds import Kind, kinds_of
from reshard.layout import AnyLayout
from reshard.legs import Leg, Taken
from reshard.logical_space import pieces_of_rank
from reshard.matching import TensorPair
from reshard.places import PlaceTable
from reshard.supplies import SharesIndex, holder_shares
from reshard.topology import Topology
from reshard.transfer import BoxKey, Transfer

__all__ = ["PairLegs", "Planner", "RankPlan", "Volume"]

Ranks = tuple[int, ...]
Legs = tuple[Leg, ...]
PairLegs = tuple[int, Legs, tuple[int, ...]]


class Volume(NamedTuple):
    """What one leg moves, for all pairs that share it.

    Attributes:
        pair: number of the first of the pairs.
        num_pairs: how many pairs.
        peer: rank of the other end.
        num_elements: of one pair.
        hop: as in `Leg`.
    """

    pair: int
    num_pairs: int
    peer: int
    num_elements: int
    hop: int


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank sends and receives.

    Attributes:
        rank: the rank.
        sends: what it sends of what it holds, per tensor pair with something to do: (pair number,
            legs, ranks by position).
        receives: what it receives from holders.
        arrivals: what it receives from ranks that received it.
        forwards: what it sends on of what it received.
    """

    rank: int
    sends: tuple[PairLegs, ...]
    receives: tuple[PairLegs, ...]
    arrivals: tuple[PairLegs, ...] = ()
    forwards: tuple[PairLegs, ...] = ()

    @property
    def messages(self) -> set[tuple[int, int, bool]]:
        """(peer, hop, whether it is sent) of all streams from and to other ranks."""
        found = set()
        for is_sent, entries in (
            (True, (*self.sends, *self.forwards)),
            (False, (*self.receives, *self.arrivals)),
        ):
            distinct = {(id(legs), id(ranks)): (legs, ranks) for _, legs, ranks in entries}
            for legs, ranks in distinct.values():
                found.update([(ranks[leg.peer], leg.hop, is_sent) for leg in legs])
        return {each for each in found if each[0] != self.rank}

    def transfers_out(self) -> Iterator[Transfer]:
        """Yields every send, copies within the rank included."""
        for pair, legs, ranks in (*self.sends, *self.forwards):
            for start, copy, peer, stop, hop, src_copy in legs:
                yield Transfer(pair, self.rank, ranks[peer], start, stop, copy, hop, src_copy)

    def transfers_in(self) -> Iterator[Transfer]:
        """Yields every receive, copies within the rank included."""
        for pair, legs, ranks in (*self.receives, *self.arrivals):
            for start, copy, peer, stop, hop, src_copy in legs:
                yield Transfer(pair, ranks[peer], self.rank, start, stop, copy, hop, src_copy)

    def volumes_in(self, pairs: Sequence[TensorPair]) -> Iterator[Volume]:
        """Yields what is received, copies within the rank included.

        Args:
            pairs: all pairs of the plan.
        """
        yield from _volumes((*self.receives, *self.arrivals), pairs)

    def volumes_out(self, pairs: Sequence[TensorPair]) -> Iterator[Volume]:
        """Yields what is sent, copies within the rank included."""
        yield from _volumes((*self.sends, *self.forwards), pairs)


def _volumes(entries: Sequence[PairLegs], pairs: Sequence[TensorPair]) -> Iterator[Volume]:
    """Yields a volume per leg of each distinct tuple of legs.

    Pairs that share their legs come as one, under the number of the first of them, so that sums
    over a model cost as much as its distinct geometries.
    """
    keys = [(id(legs), id(ranks), pairs[n].dtype_at(1).itemsize) for n, legs, ranks in entries]
    alike = Counter(keys)
    for key, (number, legs, ranks) in zip(keys, entries, strict=True):
        count = alike.pop(key, 0)
        for start, _, peer, stop, hop, _ in legs if count else ():
            yield Volume(number, count, ranks[peer], volume_of((start, stop)), hop)


class Planner:
    """Plans ranks of one list of pairs; keeps what geometries have in common.

    Args:
        pairs: what moves.
        topology: where all ranks are; None means that holders serve everybody.
    """

    def __init__(self, pairs: Sequence[TensorPair], topology: Topology | None = None) -> None:
        self.pairs = pairs
        self.topology = topology
        self.kinds = kinds_of(pairs)
        self._places = PlaceTable(topology, pairs)
        self._plans: dict[tuple[object, ...], GeometryPlan] = {}
        self._volumes: dict[tuple[int, int], int] = {}
        self._proven: dict[int, Taken] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of both sides, ascending."""
        layouts = {ranks for kind in self.kinds for ranks in (kind.src_ranks, kind.dst_ranks)}
        return tuple(sorted({rank for ranks in layouts for rank in ranks}))

    @cached_property
    def num_hops(self) -> int:
        """How many steps there are, one after the other; 1 where nobody passes anything on."""
        plans = {id(plan): plan for plan in map(self.plan_of, self.kinds)}
        hops = [
            shipment.delivery.num_hops
            for plan in plans.values()
            for shipment in plan.shipments()
            if shipment.delivery is not None
        ]
        return max(hops, default=1)

    def plan_rank(self, rank: int) -> RankPlan:
        """Returns one rank's part of the plan.

        Raises:
            PlanError: if a source layout does not hold what a destination wants; if the legs of a
                tensor do not cover the rank's elements exactly once.
        """
        sends: list[PairLegs] = []
        taken: tuple[list[PairLegs], list[PairLegs], list[PairLegs]] = [], [], []
        positions: dict[int, int | None] = {}

        def position_in(layout: AnyLayout) -> int | None:
            if id(layout) not in positions:
                positions[id(layout)] = layout.position(rank)
            return positions[id(layout)]

        for kind in self.kinds:
            position = position_in(kind.first.src.layout)
            if position is not None:
                turning = self.plan_of(kind).sends(position)
                for number, rotation in kind.members:
                    legs = turning.of(rotation)
                    if legs:
                        sends.append((number, legs, kind.dst_ranks))
            position = position_in(kind.first.dst.layout)
            if position is not None:
                self._add_taken(kind, position, *taken)
        for found in (sends, *taken):
            found.sort(key=_number_of)
        return RankPlan(rank, tuple(sends), *map(tuple, taken))

    def _add_taken(
        self,
        kind: Kind,
        position: int,
        receives: list[PairLegs],
        arrivals: list[PairLegs],
        forwards: list[PairLegs],
    ) -> None:
        turning = self.plan_of(kind).takes(position)
        for number, rotation in kind.members:
            taken = self._proven_of(kind, position, turning.of(rotation))
            if taken.receives:
                receives.append((number, taken.receives, kind.src_ranks))
            if taken.arrivals:
                arrivals.append((number, taken.arrivals, kind.dst_ranks))
            if taken.forwards:
                forwards.append((number, taken.forwards, kind.dst_ranks))

    def taken(self, kind: Kind, position: int, rotation: int) -> Taken:
        """Returns what a destination rank has to do with a tensor of a kind, proven to be whole."""
        return self._proven_of(kind, position, self.plan_of(kind).takes(position).of(rotation))

    def _proven_of(self, kind: Kind, position: int, taken: Taken) -> Taken:
        """Returns legs after they are proven once, so that their identity stands for the proof."""
        if id(taken) not in self._proven:
            self._prove(kind.first, position, taken)
        return taken

    def _prove(self, pair: TensorPair, position: int, taken: Taken) -> None:
        """Checks legs once; the planner keeps them, so that their identity stands for them."""
        legs = taken.receives + taken.arrivals
        _check_exact_cover(pair, position, self._volume(pair, position), legs)
        self._proven[id(taken)] = taken

    def stored_bytes(self, rank: int) -> int:
        """Returns the wire bytes of all that a destination rank stores, repeats counted.

        They follow from the rank's layouts, not from what it receives.
        """
        nbytes = 0
        layouts = {id(pair.dst.layout): pair.dst.layout for pair in self.pairs}
        positions = {key: layout.position(rank) for key, layout in layouts.items()}
        for pair in self.pairs:
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

    def plan_of(self, kind: Kind) -> GeometryPlan:
        """Returns the plan of a kind's geometry.

        Raises:
            PlanError: if a source layout does not hold what a destination wants.
        """
        if kind.plan is None:
            shares = self._shares_index.of(kind.src_ranks) if self.shares else ()
            kind.plan = self._plan(kind, shares)
        return kind.plan

    @cached_property
    def shares(self) -> dict[Ranks, Weights]:
        """How much holders serve of what they hold together, where that is not the same for all."""
        return holder_shares(self.kinds, self._plan, self.topology)

    @cached_property
    def _shares_index(self) -> SharesIndex:
        return SharesIndex(self.shares)

    def _plan(self, kind: Kind, shares: Shares = ()) -> GeometryPlan:
        pair = kind.first
        number, places = self._places.of(pair)
        key = id(pair.geometry), number, shares
        plan = self._plans.get(key)
        if plan is None:
            try:
                plan = self._plans[key] = make_geometry_plan(pair.geometry, places, shares)
            except PlanError as error:
                raise PlanError(f"{pair.name}: {error}") from None
        return plan


def _number_of(entry: PairLegs) -> int:
    return entry[0]


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
    volume = sum([leg.num_elements for leg in receives])
    if volume != expected or _some_meet(receives):
        raise PlanError(
            f"{pair.name}: destination rank {pair.dst.layout.ranks[position]} stores {expected} "
            f"elements but the plan writes {volume}, or writes one of them twice. This is a defect "
            "of the planner; please report the specs."
        )


def _some_meet(legs: Legs) -> bool:
    """True if two legs of one copy share an element."""
    copies: dict[int, list[BoxKey]] = {}
    for leg in legs:
        copies.setdefault(leg.copy, []).append((leg.start, leg.stop))
    return any(map(some_meet, copies.values()))
