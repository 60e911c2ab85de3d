"""Transfers of one geometry by comparing boxes: for layouts that are no grids.

Every rank runs the whole comparison, once per geometry, and picks its own legs. Distinct source
boxes that overlap in part are refined first, so that every destination element has one choice of
holders.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from reshard.errors import PlanError
from reshard.holders import make_striping, rotation_of_box
from reshard.legs import Leg
from reshard.logical_space import Side, copy_numbers, pieces_of_rank
from reshard.matching import Geometry
from reshard.transfer import BoxKey

__all__ = ["Atom", "SweepPlan", "box_holders"]

Legs = tuple[Leg, ...]


class Atom(NamedTuple):
    """A box with the ranks that hold it and the (rank, copy) that want it, ranks as positions.

    Attributes:
        wanted: the destination's whole box, of which `box` is a part.
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

    Raises:
        PlanError: if the source does not hold every element that the destination wants.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._itemsize = geometry.itemsize
        ndim = len(geometry.space.shape)
        self._atoms: list[Atom] = []
        if geometry.space.num_elements:
            sources = box_holders(geometry.src, ndim)
            wanted = box_holders(geometry.dst, ndim)
            self._atoms = _make_atoms(sources, wanted)
        # Rotations that differ by this choose the same holders of every box.
        self._period = math.lcm(*{len(atom.holders) for atom in self._atoms})
        self._src_ranks = geometry.src.layout.ranks
        self._dst_ranks = geometry.dst.layout.ranks
        self._is_disjoint = geometry.is_disjoint
        self._legs: dict[int, tuple[dict[int, Legs], dict[int, Legs]]] = {}

    def sends(self, position: int, rotation: int) -> Legs:
        """Returns what a source rank sends."""
        return self._all_legs(rotation)[0].get(position, ())

    def receives(self, position: int, rotation: int) -> Legs:
        """Returns what a destination rank receives."""
        return self._all_legs(rotation)[1].get(position, ())

    def _all_legs(self, rotation: int) -> tuple[dict[int, Legs], dict[int, Legs]]:
        rotation %= self._period
        found = self._legs.get(rotation)
        if found is None:
            sends: dict[int, list[Leg]] = defaultdict(list)
            receives: dict[int, list[Leg]] = defaultdict(list)
            for atom in self._atoms:
                for src, dst, copy, box in self._assign(atom, rotation):
                    sends[src].append(Leg(box[0], copy, dst, box[1]))
                    receives[dst].append(Leg(box[0], copy, src, box[1]))
            found = self._legs[rotation] = _sorted(sends), _sorted(receives)
        return found

    def _assign(self, atom: Atom, rotation: int) -> Iterator[tuple[int, int, int, BoxKey]]:
        """Yields (source, destination, copy, box) of each transfer of an atom."""
        start, stop = atom.box
        holding: dict[int, int] = {}
        if not self._is_disjoint:
            holding = {self._src_ranks[holder]: holder for holder in atom.holders}
        remote = []
        for taker, copy in atom.copies:
            holder = holding.get(self._dst_ranks[taker])
            if holder is None:
                remote.append((taker, copy))
            else:
                yield holder, taker, copy, atom.box
        turn = rotation + rotation_of_box(*atom.wanted)
        for index, (taker, copy) in enumerate(remote):
            striping = make_striping(
                start, stop, len(remote), len(atom.holders), self._itemsize, turn
            )
            for share in striping.shares_of_copy(index):
                box = striping.narrowed(atom.box, share.start, share.stop)
                yield atom.holders[share.peer], taker, copy, box


def _sorted(legs: dict[int, list[Leg]]) -> dict[int, Legs]:
    return {position: tuple(sorted(own)) for position, own in legs.items()}


def _make_atoms(
    sources: dict[BoxKey, list[tuple[int, int]]], wanted: dict[BoxKey, list[tuple[int, int]]]
) -> list[Atom]:
    boxes = sorted(sources)
    first = [start[0] if start else 0 for start, _ in boxes]
    atoms: list[Atom] = []
    for want, copies in wanted.items():
        last = bisect_left(first, want[1][0]) if want[1] else len(boxes)
        meeting = []
        for box in boxes[:last]:
            common = _intersect(box, want)
            if common is not None:
                ranks = tuple(sorted({rank for rank, _ in sources[box]}))
                meeting.append((common, ranks))
        parts = _refine(meeting)
        missing = _volume(want) - sum(_volume(box) for box, _ in parts)
        if missing:
            raise PlanError(
                f"the source layout holds only {_volume(want) - missing} of the {_volume(want)} "
                f"elements of logical box {_text(want)} that a destination rank stores. "
                "Give the source layout boxes that cover the whole tensor."
            )
        atoms += [Atom(want, box, ranks, tuple(copies)) for box, ranks in parts]
    return atoms


def _refine(
    meeting: list[tuple[BoxKey, tuple[int, ...]]],
) -> list[tuple[BoxKey, tuple[int, ...]]]:
    """Returns disjoint boxes with their holders; cuts along all edges where boxes overlap."""
    merged: dict[BoxKey, set[int]] = {}
    for box, ranks in meeting:
        merged.setdefault(box, set()).update(ranks)
    boxes = list(merged)
    if all(_intersect(box, other) is None for i, box in enumerate(boxes) for other in boxes[:i]):
        return [(box, tuple(sorted(ranks))) for box, ranks in merged.items()]
    edges = [
        sorted({edge for start, stop in boxes for edge in (start[d], stop[d])})
        for d in range(len(boxes[0][0]))
    ]
    parts = []
    for cell in product(*(list(pairwise(e)) for e in edges)):
        key = tuple(a for a, _ in cell), tuple(b for _, b in cell)
        holders = {r for box, held in merged.items() if _intersect(box, key) == key for r in held}
        if holders:
            parts.append((key, tuple(sorted(holders))))
    return parts


def _intersect(a: BoxKey, b: BoxKey) -> BoxKey | None:
    start = tuple(map(max, a[0], b[0]))
    stop = tuple(map(min, a[1], b[1]))
    if any(low >= high for low, high in zip(start, stop, strict=True)):
        return None
    return start, stop


def _volume(box: BoxKey) -> int:
    return math.prod(b - a for a, b in zip(*box, strict=True))


def _text(box: BoxKey) -> str:
    return "[" + ", ".join(f"{a}:{b}" for a, b in zip(*box, strict=True)) + "]"
