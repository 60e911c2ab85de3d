"""Which boxes each rank fingerprints, and how the sums of all ranks are compared.

Every rank sums up every piece it stores. Ranks that store the same box must report the same sum:
that checks replicas against each other. The sums of distinct boxes, each counted once, add up to
the fingerprint of the tensor on that side: that checks the two sides against each other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

from reshard.box import Box
from reshard.buffers import Buffer, BufferKey
from reshard.elementwise import Change
from reshard.fingerprint import seed_of_name
from reshard.layout import Layout
from reshard.logical_space import Piece, Side, pieces_of_rank
from reshard.matching import TensorPair
from reshard.plan import Plan
from reshard.program_table import Endpoint, locate
from reshard.transfer import BoxKey

__all__ = ["FingerprintTable", "Verdict", "Verifier", "make_fingerprint_table"]

_MASK64 = (1 << 64) - 1


class _Slot(NamedTuple):
    """One sum that a rank reports of one tensor.

    Attributes:
        piece: the stored piece.
        part: bounds of what is summed, inside the piece.
        number: equal for ranks that store the same box; counted per geometry and side.
    """

    piece: Piece
    part: BoxKey
    number: int


@dataclass(frozen=True, slots=True)
class FingerprintTable:
    """Regions that one process sums up: rows for native code, and the arrays they refer to.

    Attributes:
        endpoints: the array of each buffer number.
        rows, rules: as `reshard.h` describes them.
        num_slots: how many sums.
    """

    endpoints: tuple[Endpoint, ...]
    rows: array[int]
    num_slots: int
    rules: array[float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the sums of all ranks say.

    Attributes:
        fingerprints: per canonical name, the fingerprint of the source.
        problems: one sentence per tensor that differs; empty if all agree.
    """

    fingerprints: Mapping[str, int]
    problems: tuple[str, ...]


class _Cover:
    """The sums that ranks report of tensors of one geometry, on one side.

    Attributes:
        boxes: per slot number, what is summed.
        counts: per slot number, whether it is part of the tensor's fingerprint. All is, but where
            the destination stores a part of the tensor only: then just that part of the source.
    """

    def __init__(self, pair: TensorPair, side: int) -> None:
        self._side = (pair.geometry.src, pair.geometry.dst)[side]
        self._ndim = len(pair.geometry.space.shape)
        self._edges, self._counted = _edges_and_counted(pair, side)
        self._numbers: dict[BoxKey, int] = {}
        self._slots: dict[int, list[_Slot]] = {}
        self.boxes: list[BoxKey] = []
        self.counts: list[bool] = []
        for position, rank in enumerate(self._side.layout.ranks):
            self._slots[position] = list(self._slots_of(rank))

    def slots_at(self, position: int) -> list[_Slot]:
        """Returns what the rank at a position of the layout reports, in order."""
        return self._slots[position]

    def _slots_of(self, rank: int) -> Iterator[_Slot]:
        for piece in pieces_of_rank(self._side, self._ndim, rank):
            for part in _cells(piece, self._edges):
                number = self._numbers.setdefault(part, len(self.boxes))
                if number == len(self.boxes):
                    self.boxes.append(part)
                    self.counts.append(self._is_counted(part))
                yield _Slot(piece, part, number)

    def _is_counted(self, part: BoxKey) -> bool:
        if self._counted is None:
            return True
        box = Box.from_bounds(*part)
        return any(area.contains(box) for area in self._counted)


class _Covers:
    """Covers of all pairs of a plan; pairs of equal geometry share them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._covers: dict[tuple[int, int], _Cover] = {}

    def cover(self, side: int, pair: TensorPair) -> _Cover:
        """Returns the cover of one side of a pair."""
        key = side, id(pair.geometry)
        cover = self._covers.get(key)
        if cover is None:
            cover = self._covers[key] = _Cover(pair, side)
        return cover

    def of_rank(self, side: int, rank: int) -> Iterator[tuple[int, list[_Slot]]]:
        """Yields (pair number, slots) of every pair that a rank stores, in the order of reports."""
        positions: dict[int, int | None] = {}
        for number, pair in enumerate(self._plan.pairs):
            layout = (pair.src, pair.dst)[side].layout
            if id(layout) not in positions:
                positions[id(layout)] = layout.position(rank)
            position = positions[id(layout)]
            if position is not None:
                yield number, self.cover(side, pair).slots_at(position)


Edges = list[list[int]]


def _edges_and_counted(pair: TensorPair, side: int) -> tuple[Edges | None, list[Box] | None]:
    """Returns where stored boxes are cut per dim, and the boxes that count; None for no, and all.

    Boxes that overlap in part are cut along all edges, so that what several ranks store is always
    the same cells.
    """
    if _is_grid(pair.geometry.dst) and (side == 1 or _is_grid(pair.geometry.src)):
        return None, None
    boxes = _distinct_boxes(pair, side)
    if side == 0:
        wanted = _distinct_boxes(pair, 1)
        if sum(box.num_elements for box in _fresh(wanted)) < pair.num_elements:
            return _edges([*boxes, *wanted]), wanted
    return (None if _fresh(boxes) == boxes else _edges(boxes)), None


def _is_grid(side: Side) -> bool:
    """True for a mesh that holds each element in equal boxes: they are disjoint and cover all."""
    return isinstance(side.layout, Layout) and all(
        digit.dim >= 0 or digit.last - digit.first == 1 for row in side.rows for digit in row.digits
    )


def _distinct_boxes(pair: TensorPair, side: int) -> list[Box]:
    own = (pair.geometry.src, pair.geometry.dst)[side]
    ndim = len(pair.geometry.space.shape)
    keys = {
        (piece.start, piece.stop)
        for rank in own.layout.ranks
        for piece in pieces_of_rank(own, ndim, rank)
    }
    return [Box.from_bounds(*key) for key in sorted(keys)]


def _fresh(boxes: list[Box]) -> list[Box]:
    """Returns disjoint boxes that cover the same elements; the same ones if none overlap."""
    fresh: list[Box] = []
    for box in boxes:
        rest = [box]
        for earlier in fresh:
            if box.intersect(earlier) is not None:
                rest = [part for whole in rest for part in whole.subtract(earlier)]
        fresh += rest
    return fresh


def _edges(boxes: list[Box]) -> Edges:
    if not boxes:
        return []
    return [
        sorted({edge for box in boxes for edge in (box.offset[dim], box.stop[dim])})
        for dim in range(boxes[0].ndim)
    ]


def _cells(piece: Piece, edges: Edges | None) -> Iterator[BoxKey]:
    """Yields the parts of a piece between edges; the piece itself if there are none."""
    if edges is None:
        yield piece.start, piece.stop
        return
    per_dim = []
    for line, low, high in zip(edges, piece.start, piece.stop, strict=True):
        inside = [low, *(edge for edge in line if low < edge < high), high]
        per_dim.append(list(pairwise(inside)))
    for cell in product(*per_dim):
        yield tuple([low for low, _ in cell]), tuple([high for _, high in cell])


def make_fingerprint_table(
    plan: Plan,
    ranks: Iterable[int],
    src_buffers: Mapping[BufferKey, Buffer],
    dst_buffers: Mapping[BufferKey, Buffer],
) -> FingerprintTable:
    """Returns the regions that a process sums up: sources first, ranks ascending."""
    covers = _Covers(plan)
    numbers: dict[Endpoint, int] = {}
    rules: dict[Change, int] = {}
    rows = array("q")
    count = 0
    ordered = sorted(ranks)
    for side, buffers in ((0, src_buffers), (1, dst_buffers)):
        for rank in ordered:
            for pair_number, slots in covers.of_rank(side, rank):
                pair = plan.pairs[pair_number]
                seed = seed_of_name(pair.name)
                endpoint = Endpoint(side, rank, (pair.src, pair.dst)[side].name)
                # Both sides sum up what the destination stores.
                rule = -1
                if side == 0 and pair.change is not None:
                    rule = rules.setdefault(pair.change, len(rules))
                for slot in slots:
                    number = numbers.setdefault(endpoint, len(numbers))
                    buffer = buffers[rank, endpoint.name]
                    rows.extend((count, number, *_region(pair, side, slot, buffer, rule, seed)))
                    count += 1
    constants = array("d", [constant for change in rules for constant in change.numbers])
    return FingerprintTable(tuple(numbers), rows, count, constants)


def _region(
    pair: TensorPair, side: int, slot: _Slot, buffer: Buffer, rule: int, seed: int
) -> list[int]:
    """Returns a row of the native table, from the offset on."""
    side_rows = (pair.geometry.src.rows, pair.geometry.dst.rows)[side]
    start, stop = slot.part
    place = locate(side_rows, slot.piece, start, stop, buffer.strides)
    steps = pair.geometry.space.index_strides
    base = sum(first * step for first, step in zip(start, steps, strict=True))
    return [
        place.offset,
        int(buffer.dtype),
        int(pair.dst.dtype),
        rule,
        seed - ((seed >> 63) << 64),
        len(steps),
        *place.sizes,
        *place.strides,
        *steps,
        base,
    ]


class Verifier:
    """Compares the reports of all processes of an epoch; pure, so all come to the same verdict.

    Args:
        plan: the plan.
        ranks: per process, its ranks.
    """

    def __init__(self, plan: Plan, ranks: Sequence[Sequence[int]]) -> None:
        self._plan = plan
        self._covers = _Covers(plan)
        # Slot numbers of all tensors in one sequence: those of a pair begin at its first slot.
        self._pair_of_slot: list[int] = []
        self._first_slots: tuple[list[int], list[int]] = ([], [])
        for side in (0, 1):
            for number, pair in enumerate(plan.pairs):
                self._first_slots[side].append(len(self._pair_of_slot))
                cover = self._covers.cover(side, pair)
                self._pair_of_slot += [number] * len(cover.boxes)
        self._reports = [self._report_order(own) for own in ranks]

    def _report_order(self, ranks: Sequence[int]) -> list[tuple[int, int]]:
        """Returns (slot, rank) of each sum in the report of the process that drives `ranks`."""
        return [
            (self._first_slots[side][pair] + slot.number, rank)
            for side in (0, 1)
            for rank in sorted(ranks)
            for pair, slots in self._covers.of_rank(side, rank)
            for slot in slots
        ]

    def verdict(self, reports: Sequence[Sequence[int]]) -> Verdict:
        """Returns what the sums say.

        Args:
            reports: per process, its sums in the order of `make_fingerprint_table`.
        """
        sums: list[int | None] = [None] * len(self._pair_of_slot)
        holders = [0] * len(sums)
        problems: dict[int, str] = {}
        for order, values in zip(self._reports, reports, strict=True):
            for (slot, rank), value in zip(order, values, strict=True):
                expected = sums[slot]
                if expected is None:
                    sums[slot], holders[slot] = value, rank
                elif expected != value:
                    problem = self._replica_problem(slot, holders[slot], rank, expected, value)
                    problems.setdefault(self._pair_of_slot[slot], problem)
        fingerprints = {}
        for number, pair in enumerate(self._plan.pairs):
            src, dst = (self._total(side, number, sums) for side in (0, 1))
            fingerprints[pair.name] = src
            if src != dst:
                problems.setdefault(
                    number,
                    f"{pair.name}: fingerprint {src:016x} at the source, {dst:016x} at the "
                    "destination.",
                )
        return Verdict(fingerprints, tuple(problems[number] for number in sorted(problems)))

    def _total(self, side: int, number: int, sums: Sequence[int | None]) -> int:
        """Returns the fingerprint of one tensor on one side."""
        first = self._first_slots[side][number]
        counts = self._covers.cover(side, self._plan.pairs[number]).counts
        total = 0
        for slot, is_counted in enumerate(counts, first):
            value = sums[slot]
            if is_counted and value is not None:
                total += value
        return total & _MASK64

    def _replica_problem(self, slot: int, holder: int, rank: int, expected: int, value: int) -> str:
        number = self._pair_of_slot[slot]
        pair = self._plan.pairs[number]
        side = 1 if slot >= self._first_slots[1][0] else 0
        start, stop = self._covers.cover(side, pair).boxes[slot - self._first_slots[side][number]]
        box = ", ".join(f"{a}:{b}" for a, b in zip(start, stop, strict=True))
        return (
            f"{pair.name}: {('source', 'destination')[side]} ranks {holder} and {rank} both store "
            f"[{box}] but hold different values ({expected:016x}, {value:016x})."
        )
