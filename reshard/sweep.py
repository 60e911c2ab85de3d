"""Transfers of one geometry by comparing boxes: for layouts that are no grids.

Every rank runs the whole comparison, once per geometry, and picks its own legs. Distinct boxes of a
side that overlap in part are cut first, so that every element has one set of holders, and one of
ranks that want it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from reshard.box_sets import common_box, disjoint_parts, volume_of
from reshard.errors import PlanError
from reshard.holders import rotation_of_box
from reshard.legs import Leg, Taken, Turning
from reshard.logical_space import Side, copy_numbers, pieces_of_rank
from reshard.matching import Geometry
from reshard.places import DeliveryTable
from reshard.shipment import Shipment
from reshard.transfer import BoxKey

__all__ = ["Atom", "SweepPlan", "box_holders", "parts_of_wanted"]

Legs = tuple[Leg, ...]

_NOTHING = Taken()

_MAX_PARTS = 256
"""Boxes of destination ranks that would fall into more parts each than this are sent apart."""

_MAX_SOURCE_PARTS = 1024
"""Boxes of source ranks that would fall into more parts each than this are refused."""


class Atom(NamedTuple):
    """A box with the ranks that hold it and the (rank, copy) that want it, ranks as positions.

    Attributes:
        wanted: a destination's box, or its part that all of `copies` want; `box` is a part of it.
        box: bounds that lie in one set of source boxes.
        holders: source ranks, ascending.
        copies: destination ranks with the number of the equal piece, ascending.
    """

    wanted: BoxKey
    box: BoxKey
    holders: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]


def box_holders(side: Side, ndim: int) -> dict[BoxKey, list[tuple[int, int]]]:
    """Returns, per distinct logical box, the (position, copy) that store it, ascending."""
    holders: dict[BoxKey, list[tuple[int, int]]] = {}
    for position, rank in enumerate(side.layout.ranks):
        pieces = pieces_of_rank(side, ndim, rank)
        for piece, copy in zip(pieces, copy_numbers(pieces), strict=True):
            holders.setdefault((piece.start, piece.stop), []).append((position, copy))
    return holders


class SweepPlan:
    """Planner of any two layouts.

    Args:
        geometry: what all pairs of this kind have in common.
        table: deliveries between its ranks; None means that holders serve everybody, evenly.

    Raises:
        PlanError: if the source does not hold every element that the destination wants.
    """

    def __init__(self, geometry: Geometry, table: DeliveryTable | None = None) -> None:
        ndim = len(geometry.space.shape)
        atoms: list[Atom] = []
        self.are_apart = True
        if geometry.space.num_elements:
            sources = box_holders(geometry.src, ndim)
            wanted = box_holders(geometry.dst, ndim)
            atoms, self.are_apart = _make_atoms(sources, wanted)
        table = table or DeliveryTable(None, geometry.counted_bytes)
        self._shipments = [_shipment(atom, geometry, table) for atom in atoms]
        deliveries = [each.delivery for each in self._shipments if each.delivery is not None]
        # Rotations that differ by this choose the same ends of every box.
        self._period = math.lcm(*{each.period for each in deliveries})
        self._legs: dict[int, tuple[dict[int, Legs], dict[int, Taken]]] = {}

    def shipments(self) -> list[Shipment]:
        """Returns every box that moves."""
        return self._shipments

    def sends(self, position: int) -> Turning[Legs]:
        """Returns what a source rank sends."""
        return Turning(self._period, lambda turn: self._all_legs(turn)[0].get(position, ()))

    def takes(self, position: int) -> Turning[Taken]:
        """Returns what a destination rank receives and sends on."""
        return Turning(self._period, lambda turn: self._all_legs(turn)[1].get(position, _NOTHING))

    def _all_legs(self, turn: int) -> tuple[dict[int, Legs], dict[int, Taken]]:
        found = self._legs.get(turn)
        if found is None:
            legs = _LegLists()
            for shipment in self._shipments:
                _add_legs(shipment, legs, turn)
            found = self._legs[turn] = legs.sorted()
        return found


class _LegLists:
    """The legs of all ranks, by kind and position."""

    def __init__(self) -> None:
        self.sends: dict[int, list[Leg]] = defaultdict(list)
        self.takes: dict[int, tuple[list[Leg], list[Leg], list[Leg]]] = defaultdict(
            lambda: ([], [], [])
        )

    def sorted(self) -> tuple[dict[int, Legs], dict[int, Taken]]:
        """Returns them in canonical order."""
        sends = {position: tuple(sorted(legs)) for position, legs in self.sends.items()}
        takes = {
            position: Taken(*[tuple(sorted(legs)) for legs in kinds])
            for position, kinds in self.takes.items()
        }
        return sends, takes


def _add_legs(shipment: Shipment, legs: _LegLists, turn: int) -> None:
    """Adds the legs of all ranks for tensors of a rotation."""
    start, stop = shipment.box
    for holder, taker, copy in shipment.local:
        legs.sends[holder].append(Leg(start, copy, taker, stop))
        legs.takes[taker][0].append(Leg(start, copy, holder, stop))
    if shipment.delivery is None:
        return
    delivery = shipment.delivery.turned(turn)
    cut = delivery.striping.cut
    for index, holder in enumerate(shipment.holders):
        for part in delivery.sent(index):
            low, high = cut(shipment.box, part.start, part.stop)
            taker, copy = shipment.takers[part.peer]
            legs.sends[holder].append(Leg(low, copy, taker, high))
            legs.takes[taker][0].append(Leg(low, copy, holder, high))
    for index, (first, first_copy) in enumerate(shipment.takers):
        for part in delivery.forwarded(index):
            low, high = cut(shipment.box, part.start, part.stop)
            taker, copy = shipment.takers[part.peer]
            leg = Leg(low, copy, taker, high, part.hop, first_copy)
            legs.takes[first][2].append(leg)
            legs.takes[taker][1].append(leg._replace(peer=first))


def _shipment(atom: Atom, geometry: Geometry, table: DeliveryTable) -> Shipment:
    holding: dict[int, int] = {}
    if not geometry.is_disjoint:
        holding = {geometry.src.layout.ranks[holder]: holder for holder in atom.holders}
    local, takers = [], []
    dst_ranks = geometry.dst.layout.ranks if holding else ()
    for taker, copy in atom.copies:
        holder = holding.get(dst_ranks[taker]) if holding else None
        if holder is None:
            takers.append((taker, copy))
        else:
            local.append((holder, taker, copy))
    delivery = None
    if takers:
        delivery = table.delivery(
            tuple([b - a for a, b in zip(*atom.box, strict=True)]),
            tuple([taker for taker, _ in takers]),
            atom.holders,
            rotation_of_box(*atom.wanted),
        )
    return Shipment(atom.box, tuple(local), atom.holders, tuple(takers), delivery)


def parts_of_wanted(boxes: Sequence[BoxKey]) -> tuple[dict[BoxKey, list[int]], bool]:
    """Returns disjoint parts of what destination ranks want, as `disjoint_parts` does."""
    return disjoint_parts(boxes, _MAX_PARTS)


def _make_atoms(
    sources: dict[BoxKey, list[tuple[int, int]]], wanted: dict[BoxKey, list[tuple[int, int]]]
) -> tuple[list[Atom], bool]:
    """Returns the atoms, and whether no two of them have common elements."""
    boxes = sorted(sources)
    first = [start[0] if start else 0 for start, _ in boxes]
    copies = list(wanted.values())
    parts, are_apart = parts_of_wanted(list(wanted))
    atoms: list[Atom] = []
    for want, numbers in parts.items():
        takers = tuple(sorted([copy for number in numbers for copy in copies[number]]))
        last = bisect_left(first, want[1][0]) if want[1] else len(boxes)
        held = _held(boxes[:last], sources, want)
        missing = volume_of(want) - sum(map(volume_of, held))
        if missing:
            raise PlanError(
                f"the source layout holds only {volume_of(want) - missing} of the "
                f"{volume_of(want)} elements of logical box {_text(want)} that a destination rank "
                "stores. "
                "Give the source layout boxes that cover the whole tensor."
            )
        atoms += [Atom(want, box, ranks, takers) for box, ranks in held.items()]
    return atoms, are_apart


def _held(
    boxes: list[BoxKey], sources: dict[BoxKey, list[tuple[int, int]]], want: BoxKey
) -> dict[BoxKey, tuple[int, ...]]:
    """Returns disjoint parts of a box with their holders."""
    holders: dict[BoxKey, set[int]] = {}
    for box in boxes:
        common = common_box(box, want)
        if common is not None:
            holders.setdefault(common, set()).update([rank for rank, _ in sources[box]])
    distinct = list(holders)
    parts, are_apart = disjoint_parts(distinct, _MAX_SOURCE_PARTS)
    if not are_apart:
        raise PlanError(
            f"{len(distinct)} different boxes of the source overlap in logical box {_text(want)}, "
            f"so that it falls into more than {_MAX_SOURCE_PARTS} parts each. Give boxes that are "
            "equal or apart."
        )
    return {
        part: tuple(sorted({rank for number in numbers for rank in holders[distinct[number]]}))
        for part, numbers in parts.items()
    }


def _text(box: BoxKey) -> str:
    return "[" + ", ".join(f"{a}:{b}" for a, b in zip(*box, strict=True)) + "]"
