"""Fingerprint reports of processes: by native code, and by the definition in pure Python."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from helpers.patterns import Array, as_bits
from helpers.sides import Arrays
from reshard import Plan
from reshard.fingerprint import mix
from reshard.loopback import buffer_of_array
from reshard.verification import FingerprintTable, Verdict, Verifier, make_fingerprint_table

__all__ = ["native_reports", "python_sums", "verdict_of"]


def native_reports(
    plan: Plan, processes: Sequence[Sequence[int]], sources: Arrays, destinations: Arrays
) -> list[array[int]]:
    """Returns what each process reports, computed by native code."""
    from reshard import _native

    sides = tuple(
        {
            (rank, name): buffer_of_array(values)
            for rank, by_name in arrays.items()
            for name, values in by_name.items()
        }
        for arrays in (sources, destinations)
    )
    reports = []
    for ranks in processes:
        table = make_fingerprint_table(plan, ranks, *sides)
        addresses = array("Q", [sides[e.side][e.rank, e.name].address for e in table.endpoints])
        sums = _native.fingerprints(table.rows, addresses, table.num_slots, rules=table.rules)
        reports.append(sums)
    return reports


def verdict_of(
    plan: Plan, processes: Sequence[Sequence[int]], sources: Arrays, destinations: Arrays
) -> Verdict:
    """Returns what all processes conclude."""
    reports = native_reports(plan, processes, sources, destinations)
    return Verifier(plan, processes).verdict(reports)


def python_sums(plan: Plan, table: FingerprintTable, sides: Sequence[Arrays]) -> list[int]:
    """Returns the sums of a table by the definition; of contiguous arrays of unchanged bytes."""
    sums = [0] * table.num_slots
    rows = list(table.rows)
    position = 0
    while position < len(rows):
        slot, buffer, offset, _, _, _, seed, ndim = rows[position : position + 8]
        sizes, strides, steps = (
            rows[position + 8 + k * ndim : position + 8 + (k + 1) * ndim] for k in range(3)
        )
        base = rows[position + 8 + 3 * ndim]
        position += 9 + 3 * ndim
        endpoint = table.endpoints[buffer]
        values = sides[endpoint.side][endpoint.rank][endpoint.name]
        sums[slot] += _sum_of_region(values, offset, sizes, strides, steps, base, seed % 2**64)
    return [total % 2**64 for total in sums]


def _sum_of_region(
    values: Array,
    offset: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int],
    base: int,
    seed: int,
) -> int:
    memory = np.ascontiguousarray(as_bits(values)).reshape(-1)
    total = 0
    for index in np.ndindex(*sizes):
        at = offset + sum(i * stride for i, stride in zip(index, strides, strict=True))
        number = base + sum(i * step for i, step in zip(index, steps, strict=True))
        element = memory[at // memory.itemsize]
        if memory.dtype == np.complex128:
            low, high = np.array([element]).view(np.uint64).tolist()
            total += mix(seed, 2 * number, low) + mix(seed, 2 * number + 1, high)
        else:
            total += mix(seed, number, int(element))
    return total
