"""Which boxes each rank fingerprints, and how the sums of all ranks are compared.

Every rank sums up every piece it stores. Ranks that store the same box must report the same sum: that
checks replicas against each other. The sums of distinct boxes, each counted once, add up to the
fingerprint of the tensor on that side: that checks the two sides against each other.
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

__all__ = ["FingerprintTable", "Verdict", "compare_fingerprints", "make_fingerprint_table"]

_MASK64 = (1 << 64) - 1


class _SlotKey(NamedTuple):
    """What one sum stands for: side, pair, the whole stored box, and the part of it that is summed."""

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
    """Returns the regions that the process driving `ranks` sums up, sources first, ranks ascending."""
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


def compare_fingerprints(
    plan: Plan, reports: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Verdict:
    """Returns what the reports of all processes say; pure, so every process comes to the same verdict.

    Args:
        plan: the plan.
        reports: per process, its ranks and its sums in the order of `make_fingerprint_table`.
    """
    covers = _Covers(plan)
    totals: tuple[dict[int, int], dict[int, int]] = {}, {}
    first_sum: dict[_SlotKey, tuple[int, int]] = {}
    problems: dict[int, str] = {}
    for ranks, sums in reports:
        values = iter(sums)
        for side in (0, 1):
            for rank in sorted(ranks):
                for key, _ in covers.slots_of_rank(side, rank):
                    value = next(values)
                    known = first_sum.get(key)
                    if known is None:
                        first_sum[key] = rank, value
                        if key.counts:
                            totals[side][key.pair] = totals[side].get(key.pair, 0) + value
                    elif known[1] != value:
                        problem = _replica_problem(plan, key, known[0], rank, known[1], value)
                        problems.setdefault(key.pair, problem)
    for number, pair in enumerate(plan.pairs):
        src, dst = (total.get(number, 0) & _MASK64 for total in totals)
        if src != dst:
            problems.setdefault(
                number,
                f"{pair.name}: fingerprint {src:016x} at the source, {dst:016x} at the destination.",
            )
    names = {pair.name: totals[0].get(n, 0) & _MASK64 for n, pair in enumerate(plan.pairs)}
    return Verdict(names, tuple(problems[number] for number in sorted(problems)))


def _replica_problem(
    plan: Plan, key: _SlotKey, holder: int, rank: int, expected: int, value: int
) -> str:
    box = ", ".join(f"{a}:{b}" for a, b in zip(*key.part, strict=True))
    return (
        f"{plan.pairs[key.pair].name}: {('source', 'destination')[key.side]} ranks {holder} and {rank} "
        f"both store [{box}] but hold different values ({expected:016x}, {value:016x})."
    )
