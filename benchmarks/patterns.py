"""Fills arrays with a hash of (tensor, version, global index) and checks them.

The value of an element depends on its index in the whole tensor, so rows or blocks at a wrong
place, a stale shard and a single wrong byte are all found. Works in blocks that stay in cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.regions import Region

__all__ = ["Mismatch", "check", "fill", "seed_of", "values_at"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_BLOCK_ELEMENTS = 1 << 16

Bits = npt.NDArray[np.unsignedinteger]
Words = npt.NDArray[np.uint64]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """The first wrong element of a tensor and how many are wrong."""

    index: tuple[int, ...]
    expected: int
    found: int
    num_wrong: int


def seed_of(name: str, version: int) -> np.uint64:
    """Returns the seed of one version of one tensor."""
    digest = hashlib.blake2b(f"{name}@{version}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def values_at(indices: Words, seed: np.uint64, width: int) -> Bits:
    """Returns the expected bits (`width` bytes each) of elements given by row-major index."""
    words = indices * _STEP + seed
    return _finish(words, np.empty_like(words), width)


def fill(local: Bits, region: Region, global_shape: tuple[int, ...], seed: np.uint64) -> None:
    """Fills the array of one rank, which holds `region` of a tensor, as unsigned integers."""
    grid = _as_grid(local, region)
    for rows, columns, expected in _blocks(region, global_shape, seed, local.itemsize):
        grid[rows, columns] = expected


def check(
    local: Bits, region: Region, global_shape: tuple[int, ...], seed: np.uint64
) -> Mismatch | None:
    """Compares the array of one rank with the pattern; None means that every bit is right."""
    grid = _as_grid(local, region)
    first: tuple[int, int, int, int] | None = None
    num_wrong = 0
    for rows, columns, expected in _blocks(region, global_shape, seed, local.itemsize):
        found = grid[rows, columns]
        if np.array_equal(found, expected):
            continue
        wrong = np.argwhere(found != expected)
        num_wrong += len(wrong)
        if first is None:
            row, column = (int(value) for value in wrong[0])
            bits = int(expected[row, column]), int(found[row, column])
            first = (rows.start + row, columns.start + column, *bits)
    if first is None:
        return None
    flat = first[0] * region.shape[-1] + first[1]
    within = np.unravel_index(flat, region.shape)
    index = tuple(int(w) + o for w, o in zip(within, region.offset, strict=True))
    return Mismatch(index, expected=first[2], found=first[3], num_wrong=num_wrong)


def _as_grid(local: Bits, region: Region) -> Bits:
    if local.shape != region.shape or not local.flags.c_contiguous:
        message = f"array {local.shape} is not a contiguous array of the region {region.shape}"
        raise ValueError(message)
    return local.reshape(-1, region.shape[-1])


def _blocks(
    region: Region, global_shape: tuple[int, ...], seed: np.uint64, width: int
) -> Iterator[tuple[slice, slice, Bits]]:
    """Yields (rows, columns, expected bits) over the region, seen as a matrix of its last dim."""
    row_terms, column_terms = _terms(region, global_shape, seed)
    num_columns = min(len(column_terms), _BLOCK_ELEMENTS)
    num_rows = max(1, _BLOCK_ELEMENTS // num_columns)
    for left in range(0, len(column_terms), num_columns):
        across = column_terms[left : left + num_columns]
        for top in range(0, len(row_terms), num_rows):
            down = row_terms[top : top + num_rows]
            words = down[:, None] + across[None, :]
            expected = _finish(words, np.empty_like(words), width)
            rows, columns = slice(top, top + len(down)), slice(left, left + len(across))
            yield rows, columns, expected


def _terms(region: Region, global_shape: tuple[int, ...], seed: np.uint64) -> tuple[Words, Words]:
    """Splits `index * step + seed` in a sum of a part per row and a part per column."""
    strides = [math.prod(global_shape[dim + 1 :]) for dim in range(len(global_shape))]
    rows = np.array([seed], dtype=np.uint64)
    per_dim = []
    for offset, size, stride in zip(region.offset, region.shape, strides, strict=True):
        positions = np.arange(offset, offset + size, dtype=np.uint64) * np.uint64(stride)
        per_dim.append(positions * _STEP)
    for term in per_dim[:-1]:
        rows = (rows[:, None] + term[None, :]).reshape(-1)
    return rows, per_dim[-1]


def _finish(words: Words, scratch: Words, width: int) -> Bits:
    """Mixes in place and cuts to the high bits, which depend on every bit of the index."""
    np.right_shift(words, np.uint64(32), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _MULTIPLIER, out=words)
    np.right_shift(words, np.uint64(64 - 8 * width), out=words)
    result: Bits = words.astype(np.dtype(f"u{width}"))
    return result
