"""Arrays of all ranks of one side, filled by the oracle and put into memory with odd strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from helpers import oracle
from helpers.patterns import Array, as_bits, as_dtype, bit_dtype, explain_mismatch, whole
from helpers.strategies import memory
from reshard import TensorSpec

__all__ = [
    "Arrays",
    "Canonicals",
    "Untouched",
    "check_side",
    "copied",
    "fill_side",
    "hashed",
    "in_memory",
    "typed",
]

Arrays = dict[int, dict[str, Array]]
"""Bits per rank, per stored name."""

Canonicals = Mapping[str, Array]


def hashed(
    shapes: Mapping[str, tuple[int, ...]], itemsize: int, version: int = 0
) -> dict[str, Array]:
    """Returns whole canonical tensors; tied names are one tensor."""
    return {
        name: whole(name.removesuffix(".tied"), shape, itemsize, version)
        for name, shape in shapes.items()
    }


def fill_side(specs: Sequence[TensorSpec], canonicals: Canonicals | None, salt: str) -> Arrays:
    """Returns the local arrays of all ranks.

    Args:
        specs: tensors of the side.
        canonicals: what they hold; None fills everything with other values.
        salt: makes the values of elements that hold nothing.
    """
    arrays: Arrays = {}
    for spec in specs:
        for rank in spec.layout.ranks:
            places = oracle.local_indices(spec.layout, spec.shape, rank)
            assert places is not None
            local = whole(f"{salt} {rank} {spec.name}", places.shape, spec.dtype.itemsize)
            if canonicals is not None:
                local = oracle.local_array(spec, rank, canonicals, local)
            arrays.setdefault(rank, {})[spec.name] = local
    return arrays


def typed(specs: Sequence[TensorSpec], arrays: Arrays) -> Arrays:
    """Returns views of bits in the element types of the specs."""
    dtypes = {spec.name: spec.dtype for spec in specs}
    return {
        rank: {name: as_dtype(bits, dtypes[name]) for name, bits in by_name.items()}
        for rank, by_name in arrays.items()
    }


def copied(arrays: Arrays) -> Arrays:
    """Returns the arrays in memory of their own."""
    return {
        rank: {name: array.copy() for name, array in by_name.items()}
        for rank, by_name in arrays.items()
    }


@dataclass
class Untouched:
    """Memory around arrays: entries of the whole, the whole with a cleared array, the array."""

    entries: list[tuple[Array, Array, Array]]

    def problem(self) -> str | None:
        """Says whether bytes outside the arrays changed; clears the arrays to see."""
        for base, before, view in self.entries:
            view[...] = 0
            if base.tobytes() != before.tobytes():
                return f"memory around an array of shape {view.shape} was written to"
        return None


def in_memory(
    specs: Sequence[TensorSpec], arrays: Arrays, random: Random
) -> tuple[Arrays, Untouched]:
    """Returns the arrays in their element types, with unusual strides, and what lies around."""
    dtypes = {spec.name: spec.dtype for spec in specs}
    placed: Arrays = {rank: {} for rank in arrays}
    entries = []
    for rank, by_name in arrays.items():
        for name, values in by_name.items():
            view, base, cleared = memory(random, values)
            entries.append((base, cleared, view))
            placed[rank][name] = as_dtype(view, dtypes[name])
    return placed, Untouched(entries)


def check_side(
    specs: Sequence[TensorSpec], found: Arrays, canonicals: Canonicals, before: Arrays
) -> str | None:
    """Compares the arrays of all ranks with the oracle; says what is wrong, or None."""
    itemsize = specs[0].dtype.itemsize
    everything = [np.empty(0, bit_dtype(itemsize)), *(c.reshape(-1) for c in canonicals.values())]
    for spec in specs:
        for rank in spec.layout.ranks:
            expected = oracle.local_array(spec, rank, canonicals, before[rank][spec.name])
            problem = explain_mismatch(
                f"{spec.name} on rank {rank}",
                as_bits(found[rank][spec.name]),
                expected,
                np.concatenate(everything),
            )
            if problem is not None:
                return problem
    return None
