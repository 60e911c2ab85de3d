"""The pattern of `helpers.patterns` as arrays of the element types that JAX has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers import patterns

__all__ = ["check", "values"]


def values(
    name: str, shape: Sequence[int], dtype: npt.DTypeLike, *, version: int = 0
) -> npt.NDArray[Any]:
    """Returns a whole tensor of a NumPy (or ml_dtypes) type; booleans are made of one bit each."""
    dtype = np.dtype(dtype)
    bits = patterns.whole(name, tuple(shape), dtype.itemsize, version)
    if dtype.kind == "b":
        bits = bits & np.uint8(1)
    return bits.view(dtype)


def check(
    name: str,
    found: npt.NDArray[Any],
    shape: Sequence[int],
    offset: Sequence[int] | None = None,
    *,
    version: int = 0,
) -> None:
    """Compares a part of a tensor, bit by bit, with the pattern.

    Args:
        name: of the tensor.
        found: the part, of any type and strides.
        shape: of the whole tensor.
        offset: global index at which the part begins; None means at the origin.
        version: which was to arrive.

    Raises:
        AssertionError: saying where, what, and where the found value belongs.
    """
    start = tuple(offset or (0,) * len(shape))
    whole = patterns.as_bits(values(name, shape, found.dtype, version=version))
    expected = whole[tuple(slice(a, a + n) for a, n in zip(start, found.shape, strict=True))]
    problem = patterns.explain_mismatch(name, patterns.as_bits(found), expected, whole)
    assert problem is None, f"part at {list(start)}: {problem}"
