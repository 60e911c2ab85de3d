"""Which part of a tensor each rank holds, and the exact boxes that a refit has to move.

Deliberately independent of reshard and of torch: the peers are planned with it and every result is
checked against it. Even division only, one box per rank.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from benchmarks.layout_pairs import LayoutPair, Side

__all__ = ["Region", "Transfer", "region_of", "transfers_of"]


@dataclasses.dataclass(frozen=True)
class Region:
    """A half-open box in the index space of one tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements inside."""
        return math.prod(self.shape)

    def slices_within(self, outer: Region) -> tuple[slice, ...]:
        """Returns the slices that cut this region out of an array that holds `outer`."""
        return tuple(
            slice(mine - base, mine - base + size)
            for mine, base, size in zip(self.offset, outer.offset, self.shape, strict=True)
        )

    def intersection(self, other: Region) -> Region | None:
        """Returns the common box, or None where there is none."""
        low = tuple(map(max, self.offset, other.offset))
        mine = (o + s for o, s in zip(self.offset, self.shape, strict=True))
        others = (o + s for o, s in zip(other.offset, other.shape, strict=True))
        high = tuple(map(min, mine, others))
        if any(end <= start for start, end in zip(low, high, strict=True)):
            return None
        return Region(low, tuple(end - start for start, end in zip(low, high, strict=True)))


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One box that one source rank sends to one destination rank (each counted from 0)."""

    source: int
    destination: int
    region: Region


@functools.cache
def region_of(side: Side, shape: tuple[int, ...], rank: int) -> Region:
    """Returns the box of a tensor of `shape` that `rank` of `side` holds."""
    offset, size = [0] * len(shape), list(shape)
    for axis, dim in enumerate(side.placements(len(shape))):
        if dim is None:
            continue
        parts = side.mesh_shape[axis]
        if size[dim] % parts:
            message = f"dim {dim} of {shape} has {size[dim]} elements left for {parts} ranks"
            raise ValueError(message)
        coordinate = rank // math.prod(side.mesh_shape[axis + 1 :]) % parts
        size[dim] //= parts
        offset[dim] += coordinate * size[dim]
    return Region(tuple(offset), tuple(size))


@functools.cache
def transfers_of(pair: LayoutPair, shape: tuple[int, ...]) -> tuple[Transfer, ...]:
    """Returns the boxes to move, each element once; replicas take turns as the source."""
    holders: dict[Region, list[int]] = {}
    for rank in range(pair.source.num_ranks):
        holders.setdefault(region_of(pair.source, shape, rank), []).append(rank)
    transfers = []
    for destination in range(pair.destination.num_ranks):
        wanted = region_of(pair.destination, shape, destination)
        for held, ranks in holders.items():
            overlap = held.intersection(wanted)
            if overlap is not None:
                source = ranks[destination % len(ranks)]
                transfers.append(Transfer(source, destination, overlap))
    return tuple(transfers)
