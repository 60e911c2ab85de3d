"""One rank's sends and receives of all tensors, without looking at any other rank's work.

Pairs of equal geometry and rotation share one list of legs, so the cost is that of the distinct
geometries (9 to 19 in a model of 1,000 parameters), not of the parameters or the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from operator import sub

from reshard.box_sets import some_meet
from reshard.errors import PlanError
from reshard.geometry_plan import GeometryPlan, GridPlan, make_geometry_plan
from reshard.grid_pair import GridPair
from reshard.holders import Shares, Weights
from reshard.kinds import Kind, kinds_of
from reshard.layout import AnyLayout
from reshard.legs import Leg, Taken
from reshard.logical_space import pieces_of_rank
from reshard.matching import TensorPair
from reshard.place_table import PlaceTable
from reshard.places import DeliveryTable
from reshard.rank_plan import Batch, RankPlan
from reshard.supplies import SharesIndex, holder_shares
from reshard.topology import Topology
from reshard.transfer import BoxKey

__all__ = ["Planner"]

Ranks = tuple[int, ...]
Legs = tuple[Leg, ...]


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
        self._places = PlaceTable(topology, self.kinds)
        self._plans: dict[tuple[object, ...], GeometryPlan] = {}
        self._grids: dict[int, GridPair] = {}
        self._tables: dict[tuple[int, Shares, int], DeliveryTable] = {}
        self._volumes: dict[tuple[int, int], int] = {}
        self._proven: dict[tuple[int, int, int], Taken] = {}

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
        sends: list[Batch] = []
        receives: list[Batch] = []
        arrivals: list[Batch] = []
        forwards: list[Batch] = []
        positions = self._positions_of(rank)
        for kind in self.kinds:
            src_ranks, dst_ranks = kind.src_ranks, kind.dst_ranks
            position = positions[id(src_ranks)]
            if position is not None:
                sending = self.plan_of(kind).sends(position)
                for turn, numbers in kind.turns(sending.period).items():
                    legs = sending.of(turn)
                    if legs:
                        sends.append(Batch(kind, numbers, legs, dst_ranks))
            position = positions[id(dst_ranks)]
            if position is not None:
                taking = self.plan_of(kind).takes(position)
                for turn, numbers in kind.turns(taking.period).items():
                    taken = self._proven_of(kind, position, taking.of(turn))
                    if taken.receives:
                        receives.append(Batch(kind, numbers, taken.receives, src_ranks))
                    if taken.arrivals:
                        arrivals.append(Batch(kind, numbers, taken.arrivals, dst_ranks))
                    if taken.forwards:
                        forwards.append(Batch(kind, numbers, taken.forwards, dst_ranks))
        return RankPlan(rank, *map(_ordered, (sends, receives, arrivals, forwards)))

    def _positions_of(self, rank: int) -> dict[int, int | None]:
        """Returns the position of a rank in each of the kinds' tuples of ranks, by identity."""
        layouts: dict[int, AnyLayout] = {}
        for kind in self.kinds:
            layouts[id(kind.src_ranks)] = kind.first.src.layout
            layouts[id(kind.dst_ranks)] = kind.first.dst.layout
        return {key: layout.position(rank) for key, layout in layouts.items()}

    def taken(self, kind: Kind, position: int, rotation: int) -> Taken:
        """Returns what a destination rank has to do with a tensor of a kind, proven to be whole."""
        return self._proven_of(kind, position, self.plan_of(kind).takes(position).of(rotation))

    def _proven_of(self, kind: Kind, position: int, taken: Taken) -> Taken:
        """Returns legs after they are proven once; kept, so that their identity stands for them."""
        pair = kind.first
        key = id(taken), id(pair.geometry), position
        if key not in self._proven:
            legs = taken.receives + taken.arrivals
            _check_exact_cover(pair, position, self._volume(pair, position), legs)
            self._proven[key] = taken
        return taken

    def stored_bytes(self, rank: int) -> int:
        """Returns the wire bytes of all that a destination rank stores, repeats counted.

        They follow from the rank's layouts, not from what it receives.
        """
        nbytes = 0
        positions = self._positions_of(rank)
        for kind in self.kinds:
            position = positions[id(kind.dst_ranks)]
            if position is not None:
                volume = self._volume(kind.first, position) * len(kind.numbers)
                nbytes += volume * kind.itemsizes[0]
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
        number, places = self._places.of(kind)
        key = id(pair.geometry), number, shares
        size = pair.geometry.counted_bytes
        plan = self._plans.get(key)
        if plan is None:
            try:
                grids = self._grids.get(id(pair.geometry))
                table = self._tables.get((number, shares, size))
                if table is None:
                    table = DeliveryTable(places, size, shares)
                    self._tables[number, shares, size] = table
                plan = make_geometry_plan(pair.geometry, table, grids)
            except PlanError as error:
                raise PlanError(f"{pair.name}: {error}") from None
            self._plans[key] = plan
            if isinstance(plan, GridPlan):
                self._grids[id(pair.geometry)] = plan.grids
        return plan


def _ordered(batches: list[Batch]) -> tuple[Batch, ...]:
    return tuple(sorted(batches, key=_first_number))


def _first_number(batch: Batch) -> int:
    return batch.numbers[0]


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
    volume = sum([math.prod(map(sub, stop, start)) for start, _, _, stop, _, _ in receives])
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
