"""Which boxes each rank fingerprints, and how the sums of all ranks are compared.

Every rank sums up every piece it stores. Ranks that store the same box must report the same sum:
that checks replicas against each other. The sums of distinct boxes, each counted once, add up to
the fingerprint of the tensor on that side: that checks the two sides against each other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reshard.box import Box
from reshard.buffers import Buffer, BufferKey
from reshard.fingerprint import seed_of_name
from reshard.logical_space import Piece, Side, pieces_of_rank
from reshard.matching import TensorPair
from reshard.plan import Plan
from reshard.program_table import Endpoint, locate
from reshard.transfer import BoxKey

__all__ = ["FingerprintTable", "Verdict", "Verifier", "make_fingerprint_table"]

_MASK64 = (1 << 64) - 1


class _SlotKey(NamedTuple):
    """What one sum stands for: side, pair, the stored box, and the part of it that is summed."""

    side: int
    pair: int
    box: BoxKey
    part: BoxKey
    counts: bool


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


class _Covers:
    """The parts into which stored boxes are cut so that each element is counted once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._parts: dict[tuple[int, int], Parts | None] = {}

    def slots_of_rank(self, side: int, rank: int) -> list[tuple[_SlotKey, Piece]]:
        """Returns the sums that a rank reports for one side, in the order of its report."""
        slots = []
        for number, pair in enumerate(self._plan.pairs):
            spec = (pair.src, pair.dst)[side]
            if spec.layout.position(rank) is None:
                continue
            for piece in _pieces(pair, side, rank):
                box = piece.start, piece.stop
                for part, counts in self._parts_of(pair, side, box):
                    slots.append((_SlotKey(side, number, box, part, counts), piece))
        return slots

    def _parts_of(self, pair: TensorPair, side: int, box: BoxKey) -> list[tuple[BoxKey, bool]]:
        key = side, id(pair.geometry)
        if key not in self._parts:
            self._parts[key] = _cut_overlaps(pair, side)
        parts = self._parts[key]
        return [(box, True)] if parts is None else parts[box]


def _pieces(pair: TensorPair, side: int, rank: int) -> list[Piece]:
    spec = (pair.src, pair.dst)[side]
    rows = (pair.geometry.src.rows, pair.geometry.dst.rows)[side]
    return pieces_of_rank(Side(spec.shape, spec.layout, rows), len(pair.geometry.space.shape), rank)


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
            for key, piece in covers.slots_of_rank(side, rank):
                pair = plan.pairs[key.pair]
                endpoint = Endpoint(side, rank, (pair.src, pair.dst)[side].name)
                number = numbers.setdefault(endpoint, len(numbers))
                rows.extend(_row(pair, key, piece, buffers[rank, endpoint.name], count, number))
                count += 1
    return FingerprintTable(tuple(numbers), rows, count)


def _row(
    pair: TensorPair, key: _SlotKey, piece: Piece, buffer: Buffer, slot: int, number: int
) -> list[int]:
    space = pair.geometry.space
    side_rows = (pair.geometry.src.rows, pair.geometry.dst.rows)[key.side]
    start, stop = key.part
    place = locate(side_rows, piece, start, stop, buffer.strides)
    steps = space.index_strides
    base = sum(first * step for first, step in zip(start, steps, strict=True))
    seed = seed_of_name(pair.name)
    seed -= (seed >> 63) << 64
    return [
        slot,
        number,
        place.offset,
        int(buffer.dtype),
        int(pair.dst.dtype),
        seed,
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
        self._keys: list[_SlotKey] = []
        self._slots: list[list[int]] = []
        self._ranks: list[list[int]] = []
        covers = _Covers(plan)
        numbers: dict[_SlotKey, int] = {}
        for own in ranks:
            slots: list[int] = []
            holders: list[int] = []
            for side in (0, 1):
                for rank in sorted(own):
                    for key, _ in covers.slots_of_rank(side, rank):
                        slots.append(numbers.setdefault(key, len(numbers)))
                        holders.append(rank)
            self._slots.append(slots)
            self._ranks.append(holders)
        self._keys = list(numbers)

    def verdict(self, reports: Sequence[Sequence[int]]) -> Verdict:
        """Returns what the sums say.

        Args:
            reports: per process, its sums in the order of `make_fingerprint_table`.
        """
        sums: list[int | None] = [None] * len(self._keys)
        holders = [0] * len(self._keys)
        problems: dict[int, str] = {}
        for slots, ranks, values in zip(self._slots, self._ranks, reports, strict=True):
            for slot, rank, value in zip(slots, ranks, values, strict=True):
                expected = sums[slot]
                if expected is None:
                    sums[slot], holders[slot] = value, rank
                elif expected != value:
                    key = self._keys[slot]
                    problem = _replica_problem(
                        self._plan, key, holders[slot], rank, expected, value
                    )
                    problems.setdefault(key.pair, problem)
        totals = self._totals(sums)
        for number, pair in enumerate(self._plan.pairs):
            src, dst = totals[0][number], totals[1][number]
            if src != dst:
                problems.setdefault(
                    number,
                    f"{pair.name}: fingerprint {src:016x} at the source, {dst:016x} at the "
                    "destination.",
                )
        fingerprints = {pair.name: totals[0][n] for n, pair in enumerate(self._plan.pairs)}
        return Verdict(fingerprints, tuple(problems[number] for number in sorted(problems)))

    def _totals(self, sums: Sequence[int | None]) -> tuple[list[int], list[int]]:
        """Returns the fingerprint of every pair on each side."""
        totals = [0] * len(self._plan.pairs), [0] * len(self._plan.pairs)
        for key, value in zip(self._keys, sums, strict=True):
            if key.counts and value is not None:
                totals[key.side][key.pair] += value
        return [n & _MASK64 for n in totals[0]], [n & _MASK64 for n in totals[1]]


def _replica_problem(
    plan: Plan, key: _SlotKey, holder: int, rank: int, expected: int, value: int
) -> str:
    box = ", ".join(f"{a}:{b}" for a, b in zip(*key.part, strict=True))
    return (
        f"{plan.pairs[key.pair].name}: {('source', 'destination')[key.side]} ranks {holder} and "
        f"{rank} both store [{box}] but hold different values ({expected:016x}, {value:016x})."
    )
