"""Which holder serves which stripe: arithmetic that both ends of a transfer evaluate alike.

A box is held by some source ranks and wanted by some destination ranks. The wanted copies, laid end
to end, are a line of indices of one dim, cut into equal segments, one per holder. So every holder
sends the same number of bytes (to within one index of the dim), whatever the two counts are, and
each copy is cut as rarely as that allows. Boxes too small for that many segments use fewer holders;
`rotation` then moves the choice on from box to box and from tensor to tensor.

Where some holders have much else to send, segments are not equal but follow `weights`
(`reshard.fair_shares`): holders lie on a ring in stretches of these lengths, all together on the
line if each of their segments is large enough; else the boxes take turns around the ring.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from reshard.transfer import BoxKey

__all__ = [
    "MIN_STRIPE_BYTES",
    "RING_TURNS",
    "Share",
    "Shares",
    "Striping",
    "Weights",
    "make_striping",
    "period_of",
    "rotation_of_box",
    "striped_dim",
    "turn_of",
]

Weights = tuple[int, ...]
"""How much each of some holders serves of what they serve together; empty if all serve the same."""

Shares = tuple[tuple[tuple[int, ...], Weights], ...]
"""Holders that do not share evenly, as ascending positions in their layout, and their weights."""

MIN_STRIPE_BYTES = 1 << 16
"""A segment below this size costs more as a message than it gains as balance."""

_NUM_TURNS = 8
"""What is too small for all of many ranks takes so many turns, so that plans of tensors repeat."""

RING_TURNS = 64
"""The same for holders with weights, of which some have little to serve."""

_SPREAD = [int(f"{turn:06b}"[::-1], 2) for turn in range(RING_TURNS)]
"""Turns in an order in which the first few of them lie evenly around the ring, however many."""


def turn_of(rotation: int, num_ranks: int) -> int:
    """Returns how far the choice among ranks has moved on for a tensor of this rotation."""
    if num_ranks <= _NUM_TURNS:
        return rotation
    return rotation % _NUM_TURNS * (num_ranks // _NUM_TURNS)


def period_of(num_ranks: int) -> int:
    """Returns the number of rotations after which the choice among ranks repeats."""
    return min(num_ranks, _NUM_TURNS)


class Share(NamedTuple):
    """Indices `start` to `stop` of the striped dim, from the box's start, of one copy."""

    peer: int
    start: int
    stop: int


class Striping(NamedTuple):
    """How the copies of one box are shared out.

    Attributes:
        dim: the dim that is cut; -1 for a single element.
        length: number of indices along `dim`.
        num_copies, num_holders: how many want it, how many have it.
        line: indices of all copies together; the last copy may be cut short.
        num_segments: how many segments the line of copies is cut into; at most one per holder.
        rotation: holder of segment s is `(s + rotation) % num_holders`; 0 where all holders serve.
            With a ring: how far the segments have moved on it.
        ring: bounds of the stretches of the holders, from 0; empty if they are equal.
    """

    dim: int
    length: int
    num_copies: int
    num_holders: int
    line: int
    num_segments: int
    rotation: int
    ring: tuple[int, ...] = ()

    @property
    def period(self) -> int:
        """Rotations of tensors that differ by it choose the same holders."""
        if not self.is_partial:
            return 1
        return RING_TURNS if self.ring else period_of(self.num_holders)

    @property
    def is_partial(self) -> bool:
        """True if not all holders serve, so that the rotation decides which do."""
        return self.num_segments < self.num_holders

    def based(self, turn: int) -> Striping:
        """Returns the striping of a box of this turn (`rotation_of_box`)."""
        if turn == 0 or not self.is_partial:
            return self
        if self.ring:
            by, length = _SPREAD[turn % RING_TURNS] * (self.ring[-1] // RING_TURNS), self.ring[-1]
        else:
            by, length = turn, self.num_holders
        return self._replace(rotation=(self.rotation + by) % length)

    def turned(self, rotation: int) -> Striping:
        """Returns the striping of a tensor of this rotation."""
        return self.based(rotation if self.ring else turn_of(rotation, self.num_holders))

    def shares_of_copy(self, copy: int) -> list[Share]:
        """Returns what each holder sends of one copy; `peer` is the index of the holder."""
        first, last = copy * self.length, min((copy + 1) * self.length, self.line)
        segment = self._segment_of(first)
        shares = []
        while first < last:
            end = min(last, self._boundary(segment + 1))
            if first < end:
                holder = self._holder_of(segment)
                shares.append(Share(holder, first - copy * self.length, end - copy * self.length))
                first = end
            segment += 1
        return shares

    def shares_of_holder(self, holder: int) -> list[Share]:
        """Returns what one holder sends; `peer` is the index of the copy."""
        shares = []
        for segment in self._segments_of(holder):
            first, last = self._boundary(segment), self._boundary(segment + 1)
            while first < last:
                copy, low = divmod(first, self.length)
                high = min(self.length, low + last - first)
                shares.append(Share(copy, low, high))
                first += high - low
        return shares

    def cut(self, box: BoxKey, start: int, stop: int) -> BoxKey:
        """Returns the part of a box between two indices of the striped dim."""
        return self.cuts(box, [(start, stop)])[0]

    def cuts(self, box: BoxKey, bounds: Iterable[tuple[int, int]]) -> list[BoxKey]:
        """Returns the parts of a box between pairs of indices of the striped dim."""
        start, stop = box
        dim, length = self.dim, self.length
        low = start[dim] if dim >= 0 else 0  # a single element is never cut
        before, after = start[:dim], start[dim + 1 :]
        until, since = stop[:dim], stop[dim + 1 :]
        return [
            box
            if last - first == length
            else ((*before, low + first, *after), (*until, low + last, *since))
            for first, last in bounds
        ]

    def _boundary(self, segment: int) -> int:
        if self.ring and not self.is_partial:
            return -(-self.ring[segment] * self.line // self.ring[-1])
        return -(-segment * self.line // self.num_segments)

    def _segment_of(self, index: int) -> int:
        """Returns the last segment that begins at an index of the line or before it."""
        if self.ring and not self.is_partial:
            return bisect_right(self.ring, index * self.ring[-1] // self.line) - 1
        return index * self.num_segments // self.line

    def _holder_of(self, segment: int) -> int:
        if not self.ring:
            return (segment + self.rotation) % self.num_holders
        if not self.is_partial:
            return segment
        # The holder in whose stretch the middle of the segment lies; turns are middles, too.
        middle = (2 * segment + 1) * self.ring[-1] // (2 * self.num_segments)
        middle += self.ring[-1] // (2 * RING_TURNS)
        return bisect_right(self.ring, (middle + self.rotation) % self.ring[-1]) - 1

    def _segments_of(self, holder: int) -> Sequence[int]:
        if self.ring:
            segments = range(self.num_segments)
            return [each for each in segments if self._holder_of(each) == holder]
        segment = (holder - self.rotation) % self.num_holders
        return (segment,) if segment < self.num_segments else ()


def striped_dim(shape: Sequence[int]) -> tuple[int, int]:
    """Returns the dim along which a box is cut and its length: the longest, the first of equals.

    A single element has dim -1.
    """
    dim, length = -1, 1
    for d, size in enumerate(shape):
        if size > length:
            dim, length = d, size
    return dim, length


def make_striping(
    shape: Sequence[int],
    num_copies: int,
    num_holders: int,
    itemsize: int,
    *,
    left_out: int = 0,
    weights: Sequence[int] = (),
) -> Striping:
    """Returns the striping of a box of rotation 0.

    Args:
        shape: elements per dim; not empty.
        num_copies, num_holders: at least 1 each.
        itemsize: bytes per element.
        left_out: indices at the end of the last copy that come from elsewhere.
        weights: how much each holder serves, not all 0; together a multiple of `RING_TURNS`. Empty
            if all serve the same.
    """
    dim, length = striped_dim(shape)
    line = num_copies * length - left_out
    nbytes = math.prod(shape) // length * line * itemsize
    segments = max(1, min(num_holders, nbytes // MIN_STRIPE_BYTES, line))
    ring: tuple[int, ...] = ()
    if weights:
        ring = tuple(accumulate(weights, initial=0))
        least = min([weight for weight in weights if weight])
        is_full = min(nbytes // MIN_STRIPE_BYTES, line) * least >= ring[-1]
        segments = num_holders if is_full else max(1, min(segments, num_holders - 1))
    return Striping(dim, length, num_copies, num_holders, line, segments, 0, ring)


def rotation_of_box(start: Sequence[int], stop: Sequence[int]) -> int:
    """Returns the sum of a box's tile indices, which differs between neighbours in a grid."""
    return sum(a // (b - a) for a, b in zip(start, stop, strict=True))
