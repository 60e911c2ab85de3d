"""Whether two strided arrays have a byte in common, so that writing one would change the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard.buffers import Buffer

__all__ = ["overlaps_itself", "share_bytes"]

_MAX_CANDIDATES = 64

_Term = tuple[int, int, int]
"""A stride, and the least and the largest difference of the indices that it multiplies."""


def share_bytes(a: Buffer, b: Buffer) -> bool:
    """True if some element of `a` and some element of `b` overlap.

    Exact where strides are those of slices and transposes of one array; True in doubt, where they
    are so odd that there would be much to try.
    """
    if a.is_empty or b.is_empty:
        return False
    bounds: dict[int, tuple[int, int]] = {}
    for buffer, sign in ((a, -1), (b, 1)):
        for size, stride in zip(buffer.shape, buffer.strides, strict=True):
            low, high = bounds.get(abs(stride), (0, 0))
            span = size - 1
            bounds[abs(stride)] = (low - span, high) if sign < 0 else (low, high + span)
    terms = sorted(((step, *span) for step, span in bounds.items() if step), reverse=True)
    # Between the first bytes of the lowest elements; two elements overlap where the difference of
    # their first bytes is within an element.
    distance = (b.address + b.extent[0]) - (a.address + a.extent[0])
    return _is_reachable(terms, -distance - b.dtype.itemsize + 1, -distance + a.dtype.itemsize - 1)


def overlaps_itself(buffer: Buffer) -> bool:
    """True if two elements of an array overlap; True in doubt, as `share_bytes`."""
    if buffer.is_empty:
        return False
    dims = zip(buffer.shape, buffer.strides, strict=True)
    long = sorted(((abs(stride), size - 1) for size, stride in dims if size > 1), reverse=True)
    if long and long[-1][0] == 0:
        return True
    reach = buffer.dtype.itemsize - 1
    # The first dim in which the indices of two elements differ; the others are free.
    return any(
        _is_reachable([(step, 1, span), *((s, -n, n) for s, n in long[k + 1 :])], -reach, reach)
        for k, (step, span) in enumerate(long)
    )


def _is_reachable(terms: Sequence[_Term], low: int, high: int) -> bool:
    """True if some choice of index differences adds up to a number from `low` to `high`."""
    if not terms:
        return low <= 0 <= high
    (step, least, most), *rest = terms
    rest_low = sum(s * a for s, a, _ in rest)
    rest_high = sum(s * b for s, _, b in rest)
    first = max(least, -((rest_high - low) // step))
    last = min(most, (high - rest_low) // step)
    if last - first >= _MAX_CANDIDATES:
        return True
    return any(_is_reachable(rest, low - n * step, high - n * step) for n in range(first, last + 1))
