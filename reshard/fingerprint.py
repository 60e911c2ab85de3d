"""A fingerprint of a tensor that does not depend on how it is laid out.

The fingerprint of a tensor is the sum modulo 2**64 over its elements of `mix(seed, index, bits)`:
`seed` comes from the canonical name, `index` is the row-major index in the canonical tensor and
`bits` are the stored bits after any cast, zero-extended. A sum has no order, so every rank adds up
the boxes it holds and two sides compare eight bytes; `mix` depends on the index, so swapped rows
change it. This module defines the numbers; native code computes them at memory speed.
"""

from __future__ import annotations

import hashlib

__all__ = ["fingerprint_of_values", "mix", "seed_of_name"]

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
_INDEX_STEP = 0x9E3779B97F4A7C15
_VALUE_STEP = 0x9FB21C651E98DF25


def seed_of_name(name: str) -> int:
    """Returns the 64-bit seed of a canonical name: the first 8 bytes of BLAKE2b, little-endian."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def mix(seed: int, index: int, bits: int) -> int:
    """Returns the contribution of one element (at most 8 bytes wide) to the fingerprint.

    Args:
        seed: 64-bit seed of the tensor's name.
        index: row-major index of the element in the canonical tensor.
        bits: stored bits, zero-extended to 64.

    A 16-byte element counts as two elements of 8 bytes, at 2*index and 2*index + 1, in memory
    order.
    """
    a = (seed + index * _INDEX_STEP) & _MASK64
    b = a ^ (a >> 31)
    c = (b + bits * _VALUE_STEP) & _MASK64
    return ((c & _MASK32) * (c >> 32) + c) & _MASK64


def fingerprint_of_values(seed: int, values: list[int], first_index: int = 0) -> int:
    """Returns the fingerprint of consecutive elements; slow, for tests and for reading."""
    return sum(mix(seed, first_index + i, bits) for i, bits in enumerate(values)) & _MASK64
