"""Pairs of tensors that a plan treats alike."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.dtypes import DType
from reshard.geometry_plan import GeometryPlan
from reshard.matching import TensorPair

__all__ = ["Kind", "kinds_of"]

Ranks = tuple[int, ...]


class Kind:
    """Pairs that have everything in common but their names: geometry, layouts, types.

    Attributes:
        first: the first of them.
        members: (number, rotation) of each.
        src_ranks, dst_ranks: ranks by position.
        plan: of their geometry, once it is made.
    """

    __slots__ = ("dst_ranks", "first", "members", "plan", "src_ranks")

    def __init__(self, first: TensorPair, src_ranks: Ranks, dst_ranks: Ranks) -> None:
        self.first = first
        self.members: list[tuple[int, int]] = []
        self.src_ranks, self.dst_ranks = src_ranks, dst_ranks
        self.plan: GeometryPlan | None = None


def kinds_of(pairs: Sequence[TensorPair]) -> list[Kind]:
    """Returns the kinds of all pairs, in the order of their first ones."""
    kinds: dict[tuple[int, int, int, DType], Kind] = {}
    layouts: dict[int, Ranks] = {}
    interned: dict[Ranks, Ranks] = {}
    for number, pair in enumerate(pairs):
        src, dst = pair.src.layout, pair.dst.layout
        key = id(pair.geometry), id(src), id(dst), pair.dst.dtype
        kind = kinds.get(key)
        if kind is None:
            for layout in (src, dst):
                if id(layout) not in layouts:
                    layouts[id(layout)] = interned.setdefault(found := layout.ranks, found)
            kind = kinds[key] = Kind(pair, layouts[id(src)], layouts[id(dst)])
        kind.members.append((number, pair.rotation))
    return list(kinds.values())
