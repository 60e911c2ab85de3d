"""Fills whole tensors with a hash of (name, version, index), and says what is wrong with a copy.

The value of an element depends on all of its index, so rotated dims, swapped boxes, stale shards
and single wrong bytes are all found; a counter modulo 256 would hide half of them.

Everything here handles bits: arrays of unsigned integers as wide as the elements (16-byte elements
are complex128). `as_dtype` gives them the type that the library is told.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from reshard import DType
from reshard.loopback import numpy_dtype

__all__ = ["Array", "as_bits", "as_dtype", "bit_dtype", "explain_mismatch", "seed_of", "whole"]

Array = npt.NDArray[Any]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def seed_of(name: str, version: int = 0) -> int:
    """Returns the seed of one version of one tensor."""
    digest = hashlib.blake2b(f"{name}@{version}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def bit_dtype(itemsize: int) -> np.dtype[Any]:
    """Returns the type that stands for the bits of elements of this size."""
    return np.dtype(np.complex128) if itemsize == 16 else np.dtype(f"u{itemsize}")


def whole(name: str, shape: tuple[int, ...], itemsize: int, version: int = 0) -> Array:
    """Returns a whole tensor of hashed bits."""
    words_per_element = 2 if itemsize == 16 else 1
    count = math.prod(shape) * words_per_element
    mixed = np.arange(count, dtype=np.uint64) * _STEP + np.uint64(seed_of(name, version))
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= multiplier
    mixed ^= mixed >> np.uint64(31)
    if itemsize < 8:
        mixed = (mixed >> np.uint64(64 - 8 * itemsize)).astype(bit_dtype(itemsize))
    return mixed.view(bit_dtype(itemsize)).reshape(shape)


def as_dtype(bits: Array, dtype: DType) -> Array:
    """Returns a view of bits as the element type that they stand for; any strides are kept."""
    return bits.view(numpy_dtype(dtype))


def as_bits(values: Array) -> Array:
    """Returns a view of an array as bits; any strides are kept."""
    return values.view(bit_dtype(values.itemsize))


def explain_mismatch(name: str, found: Array, expected: Array, canonical: Array) -> str | None:
    """Compares bits and says what is wrong, or returns None.

    Args:
        name: what the message calls the array.
        found, expected: bits of equal shape.
        canonical: where to look for the place at which a wrong value belongs.
    """
    if found.shape != expected.shape:
        return f"{name}: shape {found.shape}, expected {expected.shape}"
    found, expected = _comparable(found), _comparable(expected)
    is_wrong = (found != expected).any(axis=-1)
    if not is_wrong.any():
        return None
    wrong = np.argwhere(is_wrong)
    first = tuple(int(i) for i in wrong[0])
    belongs = np.argwhere((_comparable(canonical) == found[first]).all(axis=-1))
    origin = (
        f"belongs at {belongs[0].tolist()}" if len(belongs) else "belongs nowhere in this tensor"
    )
    return (
        f"{name}: {len(wrong)} of {is_wrong.size} elements are wrong; at {list(first)} expected "
        f"{expected[first].tobytes().hex()}, found {found[first].tobytes().hex()}, which {origin}"
    )


def _comparable(bits: Array) -> Array:
    """Returns integers with one more dim: the 8-byte words of an element, or the element."""
    bits = np.ascontiguousarray(bits.reshape(*bits.shape, 1))
    return bits.view(np.uint64) if bits.dtype == np.complex128 else bits
