"""When each tensor of a plan moves: its part of the whole time, alike on all ranks.

Every group of source ranks (a pipeline stage) goes through its tensors in order, all groups side by
side, so each tensor has a *span* of the whole time, as long as its share of the bytes that one
destination rank stores of its group: memory under way then stays the same all the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from reshard.kinds import Kind
from reshard.matching import TensorPair

__all__ = ["Share", "Span", "Spans"]


class Span(NamedTuple):
    """When a tensor moves: from `start / total` to `stop / total` of the whole time."""

    start: int
    stop: int
    total: int


class Share(NamedTuple):
    """How long tensors of a kind move each: for `length / total` of the time of a group.

    Attributes:
        group: number of the source ranks that hold them; tensors of one group move one by one.
        length, total: in bytes of one destination rank.
    """

    group: int
    length: int
    total: int


class Spans:
    """The spans of all tensors.

    Args:
        kinds: of the tensors of a plan.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        num_pairs = sum([len(kind.numbers) for kind in kinds])
        groups = _groups_of(kinds)
        stored: dict[int, int] = {}
        totals = [0] * len(groups)
        lengths, group_of = [0] * num_pairs, [0] * num_pairs
        for kind in kinds:
            geometry = kind.first.geometry
            if id(geometry) not in stored:
                stored[id(geometry)] = _stored_on_one_rank(kind.first)
            length = stored[id(geometry)] * kind.itemsizes[0]
            group = groups[id(kind.src_ranks)]
            totals[group] += length * len(kind.numbers)
            for number in kind.numbers:
                lengths[number] = length
                group_of[number] = group
        starts, done = [0] * num_pairs, [0] * len(groups)
        for number, group in enumerate(group_of):
            starts[number] = done[group]
            done[group] += lengths[number]
        self._shares = {
            kind: Share(group, lengths[kind.numbers[0]], totals[group])
            for kind in kinds
            for group in (groups[id(kind.src_ranks)],)
        }
        self._starts, self._lengths, self._group_of, self._totals = (
            starts,
            lengths,
            group_of,
            totals,
        )

    def of(self, pair: int) -> Span:
        """Returns the span of a pair, by its number."""
        start = self._starts[pair]
        return Span(start, start + self._lengths[pair], self._totals[self._group_of[pair]])

    def share_of(self, kind: Kind) -> Share:
        """Returns how long tensors of a kind move."""
        return self._shares[kind]


def _groups_of(kinds: Sequence[Kind]) -> dict[int, int]:
    """Returns numbers of groups of source ranks, by identity of the kinds' tuples of them."""
    numbers: dict[tuple[int, ...], int] = {}
    groups: dict[int, int] = {}
    for kind in kinds:
        if id(kind.src_ranks) not in groups:
            ranks = tuple(sorted(kind.src_ranks))
            groups[id(kind.src_ranks)] = numbers.setdefault(ranks, len(numbers))
    return groups


def _stored_on_one_rank(pair: TensorPair) -> int:
    """Returns about how many elements a destination rank stores: the more of two, at least 1.

    What a fused tensor holds besides is left out by its share of that.
    """
    side = pair.geometry.dst
    ranks = side.layout.ranks
    shapes = [
        side.layout.local_shape(rank, side.shape) for rank in {ranks[0], ranks[len(ranks) // 2]}
    ]
    largest = max([math.prod(shape) for shape in shapes if shape is not None])
    whole = max(1, math.prod(side.shape))
    return max(1, pair.num_elements // len(ranks), largest * pair.num_elements // whole)
