"""The functional matrix of NCCL M2N Reshard, in one process, at every world size, byte by byte."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from helpers import oracle
from helpers.m2n_matrix import Entry, Side, entries, resolve
from helpers.patterns import Array, as_bits, as_dtype, bit_dtype, explain_mismatch, whole

from reshard import TensorSpec, make_plan, reference_transfers, run_in_process

WORLDS = (2, 4, 8, 16, 32)
RUNS = [(entry, world) for entry in entries() for world in entry.worlds]

# Dims of 16384 do not divide into 3 parts, at no world size: upstream leaves them out.
NEVER_RESOLVED_UPSTREAM = (175, 177, 179, 180)
# Needs 256 ranks and 7.5 GB; the file resolves entries up to 32 ranks.
TOO_LARGE_FOR_THE_FILE = (199,)


@cache
def canonical(shape: tuple[int, ...], itemsize: int) -> Array:
    return whole("m2n", shape, itemsize)


@pytest.fixture(scope="module")
def arena() -> Array:
    """Memory for destinations that stays mapped from test to test; filled with a wrong value."""
    largest = max(entry.sides(world)[1].num_ranks * nbytes(entry) for entry, world in RUNS)
    return np.empty(largest, np.uint8)


def nbytes(entry: Entry) -> int:
    return math.prod(entry.shape) * entry.dtype.itemsize


def slices(spec: TensorSpec, rank: int, values: Array) -> Array:
    """Returns the part of a whole tensor that a rank holds, as a view; sides divide evenly."""
    ((box, _),) = spec.layout.local_boxes(rank, spec.shape)
    return values[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))]


def check_moves(entry: Entry, sides: tuple[Side, Side], arena: Array) -> None:
    src, dst = entry.specs(sides)
    values = canonical(entry.shape, entry.dtype.itemsize)
    sources = {
        rank: {src.name: as_dtype(slices(src, rank, values), src.dtype)}
        for rank in src.layout.ranks
    }
    destinations = {}
    used = 0
    for rank in dst.layout.ranks:
        shape = dst.layout.local_shape(rank, dst.shape)
        size = math.prod(shape) * dst.dtype.itemsize
        local = arena[used : used + size].view(bit_dtype(dst.dtype.itemsize)).reshape(shape)
        local[...] = 0x5A
        used += size
        destinations[rank] = {dst.name: as_dtype(local, dst.dtype)}
    run_in_process(make_plan([src], [dst]), sources, destinations)
    for rank, arrays in destinations.items():
        found, expected = as_bits(arrays[dst.name]), slices(dst, rank, values)
        if not np.array_equal(found, expected):
            pytest.fail(explain_mismatch(f"{entry.name} on rank {rank}", found, expected, values))


@pytest.mark.parametrize(
    ("entry", "world"), [pytest.param(e, w, id=f"{e.name} at {w}") for e, w in RUNS]
)
def test_every_entry_moves_at_every_world_size(entry, world, arena):
    check_moves(entry, entry.sides(world), arena)


def test_there_are_209_entries_and_each_is_accounted_for():
    assert len(entries()) == 209
    unresolved = tuple(entry.number for entry in entries() if not entry.worlds)
    assert unresolved == tuple(sorted(NEVER_RESOLVED_UPSTREAM + TOO_LARGE_FOR_THE_FILE))
    assert len(RUNS) == 652


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_the_file_is_resolved_by_the_rule(entry):
    found = {world: resolve(entry, world) for world in WORLDS}
    expected = {world: entry.sides(world) if world in entry.worlds else None for world in WORLDS}
    assert found == expected


@pytest.mark.parametrize("number", NEVER_RESOLVED_UPSTREAM)
def test_entries_left_out_upstream_do_not_divide_and_move_here_all_the_same(number):
    entry = entries()[number]
    for world in (*WORLDS, 64, 128, 256):
        assert resolve(entry, world) is None
    sides = resolve(entry, 8, must_divide=False)
    src, dst = entry.specs(sides)
    values = canonical(entry.shape, entry.dtype.itemsize)
    arrays = {
        rank: {
            src.name: as_dtype(values[oracle.local_indices(src.layout, src.shape, rank)], src.dtype)
        }
        for rank in src.layout.ranks
    }
    found = run_in_process(make_plan([src], [dst]), arrays)
    for rank in dst.layout.ranks:
        expected = values[oracle.local_indices(dst.layout, dst.shape, rank)]
        np.testing.assert_array_equal(as_bits(found[rank][dst.name]), expected)


def test_the_largest_entry_is_planned_at_its_full_shape():
    """7.5 GB over 256 ranks: 3.76e9 elements, so 32 bits would not hold an index."""
    (number,) = TOO_LARGE_FOR_THE_FILE
    entry = entries()[number]
    sides = resolve(entry, 256)
    assert [(side.mesh, side.dims) for side in sides] == [((8, 16), (-1, 0)), ((4, 32), (-1, 2))]
    src, dst = entry.specs(sides)
    plan = make_plan([src], [dst])
    plan.check()
    for rank in dst.layout.ranks:
        received = sum(transfer.num_elements for transfer in plan.receives(rank))
        assert received == 256 * 7168 * 2048 // 32
    sent = [sum(plan.nbytes(t) for t in plan.sends(rank)) for rank in src.layout.ranks]
    assert sum(sent) == 4 * 256 * 7168 * 2048 * 2
    assert max(sent) / (sum(sent) / len(sent)) <= 1.02
    last = plan.receives(dst.layout.ranks[-1])[-1]
    strides = plan.pairs[0].geometry.space.index_strides
    index = sum((stop - 1) * stride for stop, stride in zip(last.stop, strides, strict=True))
    assert index == 256 * 7168 * 2048 - 1 > 2**31


def test_the_largest_entry_moves_at_a_smaller_shape():
    """The same meshes and placements; the bytes of the full shape would not fit a small machine."""
    (number,) = TOO_LARGE_FOR_THE_FILE
    entry = entries()[number]
    src, dst = entry.specs(resolve(entry, 256), (32, 21, 64))
    values = whole("m2n", src.shape, 2)
    arrays = {
        rank: {src.name: as_dtype(slices(src, rank, values), src.dtype)}
        for rank in src.layout.ranks
    }
    plan = make_plan([src], [dst])
    assert sorted(reference_transfers(plan.pairs)) == sorted(plan.transfers())
    found = run_in_process(plan, arrays)
    for rank in dst.layout.ranks:
        np.testing.assert_array_equal(as_bits(found[rank][dst.name]), slices(dst, rank, values))
