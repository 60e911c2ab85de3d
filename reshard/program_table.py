"""The flat tables of operations that native code walks: one process's part of a plan.

A row says where in a local array a box lies and in which order its elements travel. Pairs that
share a geometry and local strides share rows up to the buffer number, so a model of 1,000 tensors
costs little more than its dozen geometries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reshard.buffers import Buffer, BufferKey
from reshard.elementwise import Change
from reshard.errors import PlanError
from reshard.legs import Leg
from reshard.logical_space import LogicalRow, Piece, copy_numbers, pieces_of_rank
from reshard.matching import TensorPair
from reshard.padding import padding_regions
from reshard.plan import Plan
from reshard.rank_plan import in_order
from reshard.spans import Spans
from reshard.tensor_spec import TensorSpec

__all__ = ["Endpoint", "ProgramTables", "Slot", "locate", "make_program_tables"]

_SEND, _RECEIVE = 0, 1


class Endpoint(NamedTuple):
    """An array that a program touches: side (0 source, 1 destination), rank, stored name."""

    side: int
    rank: int
    name: str


class Slot(NamedTuple):
    """Where a box lies in a local array, in bytes; one size and stride per logical dim."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramTables:
    """Tables for `reshard_program_create`, and the arrays that buffer numbers stand for.

    Attributes:
        endpoints: the array of each buffer number.
        streams, operations, zeros, extents: flat rows as `reshard.h` describes them.
        bytes_out: wire bytes to other ranks, per (source rank, destination rank) of local sources.
        bytes_in: the same for local destinations.
        hops, spans: flat rows as `reshard.h` describes them; empty where there are no rounds.
        rules: what happens to values, as `reshard.h` describes it.
        changes: the row of `rules` per operation; empty where values stay as they are.
        first_cast: the first tensor whose elements change type or value here, and how; empty if
            none.
    """

    endpoints: tuple[Endpoint, ...]
    streams: array[int]
    operations: array[int]
    zeros: array[int]
    extents: array[int]
    bytes_out: Mapping[tuple[int, int], int]
    bytes_in: Mapping[tuple[int, int], int]
    hops: array[int] = field(default_factory=lambda: array("q"))
    spans: array[int] = field(default_factory=lambda: array("q"))
    rules: array[float] = field(default_factory=lambda: array("d"))
    changes: array[int] = field(default_factory=lambda: array("q"))
    first_cast: str = ""


def locate(
    rows: tuple[LogicalRow, ...],
    piece: Piece,
    start: tuple[int, ...],
    stop: tuple[int, ...],
    strides: tuple[int, ...],
) -> Slot:
    """Returns where a box of a piece lies in a local array.

    Args:
        rows: the side's rows.
        piece: contains the box.
        start, stop: bounds of the box per logical dim.
        strides: bytes per stored dim of the local array.
    """
    offset = 0
    steps = [0] * len(start)
    for row, base, stride in zip(rows, piece.base, strides, strict=True):
        offset += base * stride
        for digit, step in zip(row.digits, row.strides, strict=True):
            if digit.dim >= 0:
                steps[digit.dim] = step * stride
                offset += start[digit.dim] * step * stride
    sizes = tuple(b - a for a, b in zip(start, stop, strict=True))
    return Slot(offset, sizes, tuple(steps))


def make_program_tables(
    plan: Plan,
    ranks: Iterable[int],
    src_buffers: Mapping[BufferKey, Buffer],
    dst_buffers: Mapping[BufferKey, Buffer],
    hop: int = 0,
    *,
    spans: Spans | None = None,
) -> ProgramTables:
    """Returns the tables of the process that drives `ranks`, for one hop or for all in rounds.

    What moves at a hop above 0 is read from destination arrays, as the hops before have left them.

    Args:
        plan: the plan.
        ranks: the ranks of this process, in the plan's numbers.
        src_buffers, dst_buffers: local arrays per (rank, stored name); only their shapes, strides
            and dtypes matter here. Addresses are given to every run.
        hop: which transfers; padding is filled at hop 0.
        spans: when tensors move; then all hops are in the tables.
    """
    builder = _Builder(plan, src_buffers, dst_buffers)
    hops = [hop] if spans is None else range(plan.num_hops)
    for rank in sorted(ranks):
        for each in hops:
            builder.add_rank(rank, each)
    return builder.tables(spans)


class _Builder:
    def __init__(
        self,
        plan: Plan,
        src_buffers: Mapping[BufferKey, Buffer],
        dst_buffers: Mapping[BufferKey, Buffer],
    ) -> None:
        self._plan = plan
        self._buffers = (src_buffers, dst_buffers)
        self._numbers: dict[Endpoint, int] = {}
        self._extents: list[int] = []
        self._streams: dict[tuple[int, int, int, int], list[tuple[int, int, list[int]]]] = {}
        self._rules: dict[Change, int] = {}
        self._bytes: tuple[dict[tuple[int, int], int], ...] = ({}, {})
        self._zeros: list[int] = []
        self._zeroed: set[Endpoint] = set()
        self._slots: dict[tuple[object, ...], list[tuple[int, Slot]]] = {}
        self._legs: dict[tuple[int, int], tuple[Leg, ...]] = {}
        self._first_cast = ""

    def add_rank(self, rank: int, hop: int) -> None:
        rank_plan = self._plan.rank_plan(rank)
        if hop:
            sides = ((_SEND, rank_plan.forwards), (_RECEIVE, rank_plan.arrivals))
        else:
            sides = ((_SEND, rank_plan.sends), (_RECEIVE, rank_plan.receives))
        for direction, batches in sides:
            for number, legs, peers in in_order(batches):
                self._add_pair(direction, rank, number, self._of_hop(legs, hop), peers)
        for pair in self._plan.pairs if hop == 0 else ():
            if pair.dst.padding == "zero":
                self._add_padding(pair.dst, rank)

    def _add_pair(
        self,
        direction: int,
        rank: int,
        pair_number: int,
        legs: tuple[Leg, ...],
        peers: tuple[int, ...],
    ) -> None:
        if not legs:
            return
        pair, hop = self._plan.pairs[pair_number], legs[0].hop
        side = _RECEIVE if hop else direction
        spec = (pair.src, pair.dst)[side]
        buffer_number, buffer = self._buffer(side, rank, spec.name)
        wire_dtype = pair.dtype_at(hop)
        dtype, wire = int(buffer.dtype), int(wire_dtype)
        rule = -1
        if pair.change is not None and hop == 0 and pair.changes_at(direction):
            rule = self._rules.setdefault(pair.change, len(self._rules))
            self._first_cast = self._first_cast or f"{spec.name}: {pair.change}"
        if dtype != wire and not self._first_cast:
            ends = (buffer.dtype, wire_dtype) if direction == _SEND else (wire_dtype, buffer.dtype)
            self._first_cast = f"{spec.name}: {ends[0]} to {ends[1]}"
        for peer_position, slot in self._located(side, direction, rank, pair, legs, buffer.strides):
            peer = peers[peer_position]
            src, dst = (rank, peer) if direction == _SEND else (peer, rank)
            rows = self._streams.setdefault((direction, src, dst, hop), [])
            ndim = len(slot.sizes)
            row = [buffer_number, slot.offset, dtype, wire, ndim, *slot.sizes, *slot.strides]
            rows.append((pair_number, rule, row))
            if src != dst:
                nbytes = wire_dtype.itemsize
                for size in slot.sizes:
                    nbytes *= size
                counted = self._bytes[direction]
                counted[src, dst] = counted.get((src, dst), 0) + nbytes

    def _of_hop(self, legs: tuple[Leg, ...], hop: int) -> tuple[Leg, ...]:
        """Returns the legs of a hop; the same object for the same legs."""
        if hop == 0:
            return legs
        found = self._legs.get((id(legs), hop))
        if found is None:
            own = tuple([leg for leg in legs if leg.hop == hop])
            found = self._legs[id(legs), hop] = own
        return found

    def _located(
        self,
        side: int,
        direction: int,
        rank: int,
        pair: TensorPair,
        legs: tuple[Leg, ...],
        strides: tuple[int, ...],
    ) -> list[tuple[int, Slot]]:
        geometry = pair.geometry
        position = (pair.src, pair.dst)[side].layout.position(rank)
        key = side, direction, id(geometry), position, id(legs), strides
        slots = self._slots.get(key)
        if slots is None:
            own = pair.dst_side if side else pair.src_side
            pieces = pieces_of_rank(own, len(geometry.space.shape), rank)
            copies = [leg.copy if direction == _RECEIVE else leg.src_copy for leg in legs]
            # Any piece of a source will do; of a destination each one is filled for itself, and
            # the legs of one hop alone do not tell whether there are several.
            numbers = copy_numbers(pieces) if side else [0] * len(pieces)
            candidates = list(zip(pieces, numbers, strict=True))
            slots = self._slots[key] = []
            for leg, copy in zip(legs, copies, strict=True):
                piece = _piece_of(candidates, leg, copy)
                place = locate(own.rows, piece, leg.start, leg.stop, strides)
                slots.append((leg.peer, place))
        return slots

    def _buffer(self, side: int, rank: int, name: str) -> tuple[int, Buffer]:
        endpoint = Endpoint(side, rank, name)
        buffer = self._buffers[side][rank, name]
        number = self._numbers.get(endpoint)
        if number is None:
            number = self._numbers[endpoint] = len(self._numbers)
            self._extents += buffer.extent
        return number, buffer

    def _add_padding(self, spec: TensorSpec, rank: int) -> None:
        endpoint = Endpoint(_RECEIVE, rank, spec.name)
        if endpoint in self._zeroed or spec.layout.position(rank) is None:
            return
        self._zeroed.add(endpoint)
        for region in padding_regions(spec, rank):
            number, buffer = self._buffer(_RECEIVE, rank, spec.name)
            offset = sum(
                first * stride for first, stride in zip(region.offset, buffer.strides, strict=True)
            )
            self._zeros += [
                number,
                offset,
                buffer.dtype.itemsize,
                region.ndim,
                *region.shape,
                *buffer.strides,
            ]

    def tables(self, times: Spans | None) -> ProgramTables:
        streams, operations = array("q"), array("q")
        hops, spans, changes = array("q"), array("q"), array("q")
        for number, key in enumerate(sorted(self._streams)):
            *ends, hop = key
            streams.extend(ends)
            for pair_number, rule, row in self._streams[key]:
                operations.append(number)
                operations.extend(row)
                if self._rules:
                    changes.append(rule)
                if times is not None:
                    spans.extend(times.of(pair_number))
            if times is not None:
                hops.append(hop)
        return ProgramTables(
            tuple(self._numbers),
            streams,
            operations,
            array("q", self._zeros),
            array("q", self._extents),
            self._bytes[_SEND],
            self._bytes[_RECEIVE],
            hops,
            spans,
            array("d", [number for change in self._rules for number in change.numbers]),
            changes,
            self._first_cast,
        )


def _piece_of(pieces: list[tuple[Piece, int]], leg: Leg, copy: int) -> Piece:
    """Returns the piece that a leg reads or fills: the one of this copy number that contains it."""
    for piece, number in pieces:
        if number == copy and all(
            a <= b and c <= d
            for a, b, c, d in zip(piece.start, leg.start, leg.stop, piece.stop, strict=True)
        ):
            return piece
    raise PlanError(
        f"box {leg.start}..{leg.stop} lies in none of the {len(pieces)} pieces of this rank. "
        "This is a defect of the planner; please report the specs."
    )
