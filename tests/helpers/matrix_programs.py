"""What the processes of the shared-memory matrix test do: all entries of a batch as one model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from helpers.m2n_matrix import Entry, entries
from helpers.patterns import Array, as_bits, as_dtype, bit_dtype, explain_mismatch, seed_of, whole
from helpers.team import Desk
from reshard import Destination, RefitReport, Source, TensorSpec
from reshard.loopback import buffer_of_array

__all__ = ["WORLD", "batches", "check", "close", "open_end", "prepare", "take_part"]

WORLD = 8
_BATCH_BYTES = 400 << 20

Batch = tuple[int, ...]


def batches() -> list[Batch]:
    """Returns the numbers of all entries of 8 ranks, in batches that fit a small machine."""
    found: list[list[int]] = [[]]
    size = 0
    for entry in entries():
        if WORLD not in entry.worlds:
            continue
        nbytes = sum(_nbytes(entry, side) for side in (0, 1))
        if size + nbytes > _BATCH_BYTES:
            found.append([])
            size = 0
        found[-1].append(entry.number)
        size += nbytes
    return [tuple(batch) for batch in found]


def _nbytes(entry: Entry, side: int) -> int:
    spec = _specs(entry)[side]
    shapes = (spec.layout.local_shape(rank, spec.shape) for rank in spec.layout.ranks)
    return sum(int(np.prod(shape)) * spec.dtype.itemsize for shape in shapes if shape)


def _specs(entry: Entry) -> tuple[TensorSpec, TensorSpec]:
    """Returns the specs with the rank numbers of each side, from 0."""
    src, dst = entry.specs(entry.sides(WORLD))
    return src.shifted(-min(src.layout.ranks)), dst.shifted(-min(dst.layout.ranks))


@cache
def _canonical(shape: tuple[int, ...], itemsize: int) -> Array:
    return whole("m2n", shape, itemsize)


def _slice_of(spec: TensorSpec, rank: int) -> Array | None:
    """Returns what a rank must hold; the bits of each entry are flipped in a way of its own."""
    boxes = spec.layout.local_boxes(rank, spec.shape)
    if spec.layout.position(rank) is None:
        return None
    ((box, _),) = boxes
    part = _canonical(spec.shape, spec.dtype.itemsize)[
        tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
    ]
    salt = seed_of(spec.name) >> (64 - 8 * spec.dtype.itemsize)
    flipped: Array = part ^ bit_dtype(spec.dtype.itemsize).type(salt)
    return flipped


def open_end(desk: Desk, address: str, role: str, rank: int, num_ranks: int) -> str | None:
    """Makes this process one rank of the source or of the destination."""
    kind = {"source": Source, "destination": Destination}[role]
    desk.rank, desk.side = rank, 0 if role == "source" else 1
    desk.end = kind(
        address,
        [],
        ranks=[rank],
        num_ranks=num_ranks,
        process=rank,
        num_processes=num_ranks,
        timeout_s=60.0,
    )
    return desk.end.address if isinstance(desk.end, Source) else None


def prepare(desk: Desk, numbers: Sequence[int]) -> None:
    """Takes the entries of a batch for the next refit; a source fills its arrays."""
    desk.specs = [_specs(entries()[number])[desk.side] for number in numbers]
    desk.end.replace_specs(desk.specs)
    desk.arrays = {}
    for spec in desk.specs:
        shape = spec.layout.local_shape(desk.rank, spec.shape)
        if shape is None:
            continue
        values = _slice_of(spec, desk.rank) if desk.side == 0 else None
        if values is None:
            values = np.zeros(shape, bit_dtype(spec.dtype.itemsize))
        desk.arrays[desk.rank, spec.name] = as_dtype(values, spec.dtype)
    desk.buffers = {key: buffer_of_array(array) for key, array in desk.arrays.items()}


def take_part(desk: Desk, version: int) -> RefitReport:
    """Publishes or receives."""
    if isinstance(desk.end, Source):
        return desk.end.publish(desk.buffers, version=version)
    report: RefitReport = desk.end.refit(desk.buffers)
    return report


def check(desk: Desk) -> str | None:
    """Compares the arrays of a destination; says what is wrong, or None."""
    for spec in desk.specs:
        expected = _slice_of(spec, desk.rank)
        if expected is None:
            continue
        found = as_bits(desk.arrays[desk.rank, spec.name])
        if not np.array_equal(found, expected):
            return explain_mismatch(f"{spec.name} on rank {desk.rank}", found, expected, expected)
    return None


def close(desk: Desk) -> None:
    """Leaves."""
    desk.end.close()
