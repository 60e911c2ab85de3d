"""Which holder serves which stripe: arithmetic that both ends of a transfer evaluate alike.

A box is held by some source ranks and wanted by some destination ranks. The wanted copies, laid end
to end, are a line of `num_copies * length` indices of one dim, cut into equal segments, one per
holder. So every holder sends the same number of bytes (to within one index of the dim), whatever
the two counts are, and each copy is cut as rarely as that allows. Boxes too small for that many
segments use fewer holders; `rotation` then moves the choice on from box to box and from tensor to
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reshard.transfer import BoxKey

__all__ = ["MIN_STRIPE_BYTES", "Share", "Striping", "make_striping", "rotation_of_box"]

MIN_STRIPE_BYTES = 1 << 16
"""A segment below this size costs more as a message than it gains as balance."""


class Share(NamedTuple):
    """Indices `start` to `stop` of the striped dim, for one copy, from one holder."""

    peer: int
    start: int
    stop: int


class Striping(NamedTuple):
    """How the copies of one box are shared out.

    Attributes:
        dim: the dim that is cut; -1 for a single element.
        start: first index of the box along `dim`.
        length: number of indices along `dim`.
        num_copies, num_holders: how many want it, how many have it.
        num_segments: how many segments the line of copies is cut into; at most one per holder.
        rotation: holder of segment s is `(s + rotation) % num_holders`; 0 where all holders serve.
    """

    dim: int
    start: int
    length: int
    num_copies: int
    num_holders: int
    num_segments: int
    rotation: int

    @property
    def is_partial(self) -> bool:
        """True if not all holders serve, so that the rotation decides which do."""
        return self.num_segments < self.num_holders

    def turned(self, by: int) -> Striping:
        """Returns the striping with its rotation moved on."""
        if by == 0 or not self.is_partial:
            return self
        return self._replace(rotation=(self.rotation + by) % self.num_holders)

    def shares_of_copy(self, copy: int) -> list[Share]:
        """Returns what each holder sends of one copy; `peer` is the index of the holder."""
        line = self.num_copies * self.length
        first, last = copy * self.length, (copy + 1) * self.length
        segment = first * self.num_segments // line
        shares = []
        while first < last:
            end = min(last, self._boundary(segment + 1, line))
            if first < end:
                holder = (segment + self.rotation) % self.num_holders
                offset = self.start - copy * self.length
                shares.append(Share(holder, first + offset, end + offset))
                first = end
            segment += 1
        return shares

    def shares_of_holder(self, holder: int) -> list[Share]:
        """Returns what one holder sends; `peer` is the index of the copy."""
        segment = (holder - self.rotation) % self.num_holders
        if segment >= self.num_segments:
            return []
        line = self.num_copies * self.length
        first, last = self._boundary(segment, line), self._boundary(segment + 1, line)
        shares = []
        while first < last:
            copy, low = divmod(first, self.length)
            high = min(self.length, low + last - first)
            shares.append(Share(copy, self.start + low, self.start + high))
            first += high - low
        return shares

    def narrowed(self, box: BoxKey, start: int, stop: int) -> BoxKey:
        """Returns the box with other bounds along the striped dim."""
        if self.dim < 0:
            return box
        low, high = box
        return (
            (*low[: self.dim], start, *low[self.dim + 1 :]),
            (*high[: self.dim], stop, *high[self.dim + 1 :]),
        )

    def _boundary(self, segment: int, line: int) -> int:
        return -(-segment * line // self.num_segments)


def make_striping(
    start: Sequence[int],
    stop: Sequence[int],
    num_copies: int,
    num_holders: int,
    itemsize: int,
    rotation: int,
) -> Striping:
    """Returns the striping of a box; its longest dim is cut, the first of equally long ones.

    Args:
        start, stop: bounds of the box per dim; not empty.
        num_copies, num_holders: at least 1 each.
        itemsize: bytes per element.
        rotation: from `rotation_of_box`, plus the tensor's own.
    """
    dim, length, nbytes = -1, 1, itemsize * num_copies
    for d, (a, b) in enumerate(zip(start, stop, strict=True)):
        nbytes *= b - a
        if b - a > length:
            dim, length = d, b - a
    segments = max(1, min(num_holders, nbytes // MIN_STRIPE_BYTES, num_copies * length))
    first = start[dim] if dim >= 0 else 0
    turn = rotation % num_holders if segments < num_holders else 0
    return Striping(dim, first, length, num_copies, num_holders, segments, turn)


def rotation_of_box(start: Sequence[int], stop: Sequence[int]) -> int:
    """Returns the sum of a box's tile indices, which differs between neighbours in a grid."""
    return sum(a // (b - a) for a, b in zip(start, stop, strict=True))
