"""Which boxes each rank fingerprints, and how the sums of all ranks are compared.

Every rank sums up every piece it stores. Ranks that store the same box must report the same sum:
that checks replicas against each other. The sums of distinct boxes, each counted once, add up to
the fingerprint of the tensor on that side: that checks the two sides against each other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reshard.box import Box
from reshard.buffers import Buffer, BufferKey
from reshard.fingerprint import seed_of_name
from reshard.logical_space import Piece, pieces_of_rank
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
    """Regions that one process sums up: rows for native code, and the arrays they refer to."""

    endpoints: tuple[Endpoint, ...]
    rows: array[int]
    num_slots: int


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
        counts: per slot number, whether it is part of the tensor's fingerprint. Boxes that overlap
            are cut so that each element counts once.
    """

    def __init__(self, pair: TensorPair, side: int) -> None:
        self._side = (pair.geometry.src, pair.geometry.dst)[side]
        self._ndim = len(pair.geometry.space.shape)
        self._parts = _cut_overlaps(pair, side)
        self._numbers: dict[tuple[BoxKey, BoxKey], int] = {}
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
            box = piece.start, piece.stop
            parts = [(box, True)] if self._parts is None else self._parts[box]
            for part, counts in parts:
                number = self._numbers.setdefault((box, part), len(self.boxes))
                if number == len(self.boxes):
                    self.boxes.append(part)
                    self.counts.append(counts)
                yield _Slot(piece, part, number)


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


Parts = dict[BoxKey, list[tuple[BoxKey, bool]]]


def _cut_overlaps(pair: TensorPair, side: int) -> Parts | None:
    """Returns, per distinct box, its parts and whether they count; None if each counts whole.

    A destination may store a part of the tensor only; the source then counts just that part.
    """
    boxes = _distinct_boxes(pair, side)
    if side == 0:
        wanted = _distinct_boxes(pair, 1)
        if sum(box.num_elements for box in _fresh(wanted)) < pair.num_elements:
            return _parts(boxes, _fresh(wanted))
    if sum(box.num_elements for box in boxes) <= pair.num_elements and len(_fresh(boxes)) == len(
        boxes
    ):
        return None
    return _parts(boxes, [Box((0,) * len(pair.geometry.space.shape), pair.geometry.space.shape)])


def _distinct_boxes(pair: TensorPair, side: int) -> list[Box]:
    own = (pair.geometry.src, pair.geometry.dst)[side]
    ndim = len(pair.geometry.space.shape)
    keys = {
        (piece.start, piece.stop)
        for rank in own.layout.ranks
        for piece in pieces_of_rank(own, ndim, rank)
    }
    return [Box.from_bounds(*key) for key in sorted(keys)]


def _without(box: Box, others: list[Box]) -> list[Box]:
    rest = [box]
    for other in others:
        rest = [part for whole in rest for part in whole.subtract(other)]
    return rest


def _fresh(boxes: list[Box]) -> list[Box]:
    """Returns disjoint boxes that cover the same elements; the same list if none overlap."""
    fresh: list[Box] = []
    for box in boxes:
        meeting = [earlier for earlier in fresh if box.intersect(earlier)]
        fresh += _without(box, meeting) if meeting else [box]
    return fresh


def _parts(boxes: list[Box], counted: list[Box]) -> Parts:
    """Cuts each box into parts that count (in `counted`, and in no earlier box) and others."""
    parts: Parts = {}
    seen: list[Box] = []
    for box in boxes:
        inside = [common for area in counted if (common := box.intersect(area)) is not None]
        fresh = [part for common in inside for part in _without(common, seen)]
        cut = [((part.offset, part.stop), True) for part in fresh]
        cut += [((part.offset, part.stop), False) for part in _without(box, fresh)]
        parts[box.offset, box.stop] = cut
        seen.append(box)
    return parts


def make_fingerprint_table(
    plan: Plan,
    ranks: Iterable[int],
    src_buffers: Mapping[BufferKey, Buffer],
    dst_buffers: Mapping[BufferKey, Buffer],
) -> FingerprintTable:
    """Returns the regions that a process sums up: sources first, ranks ascending."""
    covers = _Covers(plan)
    numbers: dict[Endpoint, int] = {}
    rows = array("q")
    count = 0
    ordered = sorted(ranks)
    for side, buffers in ((0, src_buffers), (1, dst_buffers)):
        for rank in ordered:
            for pair_number, slots in covers.of_rank(side, rank):
                pair = plan.pairs[pair_number]
                seed = seed_of_name(pair.name)
                endpoint = Endpoint(side, rank, (pair.src, pair.dst)[side].name)
                for slot in slots:
                    number = numbers.setdefault(endpoint, len(numbers))
                    buffer = buffers[rank, endpoint.name]
                    rows.extend((count, number, *_region(pair, side, slot, buffer, seed)))
                    count += 1
    return FingerprintTable(tuple(numbers), rows, count)


def _region(pair: TensorPair, side: int, slot: _Slot, buffer: Buffer, seed: int) -> list[int]:
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
