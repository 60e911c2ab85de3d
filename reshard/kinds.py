"""Pairs of tensors that a plan treats alike."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.geometry_plan import GeometryPlan
from reshard.layout import AnyLayout
from reshard.matching import TensorPair

__all__ = ["Kind", "kinds_of"]

Ranks = tuple[int, ...]
Numbers = tuple[int, ...]


class Kind:
    """Pairs that have everything in common but their names: geometry, ranks, types.

    Attributes:
        first: the first of them.
        numbers: of the pairs, ascending.
        rotations: of each.
        src_ranks, dst_ranks: ranks by position.
        itemsizes: bytes per element of what holders send, and of what is sent on.
        plan: of their geometry, once it is made.
    """

    __slots__ = (
        "_turns",
        "dst_ranks",
        "first",
        "itemsizes",
        "numbers",
        "plan",
        "rotations",
        "src_ranks",
    )

    def __init__(self, first: TensorPair, src_ranks: Ranks, dst_ranks: Ranks) -> None:
        self.first = first
        self.numbers: list[int] = []
        self.rotations: list[int] = []
        self.src_ranks, self.dst_ranks = src_ranks, dst_ranks
        self.itemsizes = first.wire_dtype.itemsize, first.dst.dtype.itemsize
        self.plan: GeometryPlan | None = None
        self._turns: dict[int, dict[int, Numbers]] = {}

    def turns(self, period: int) -> dict[int, Numbers]:
        """Returns the numbers of the pairs by rotation modulo a period."""
        found = self._turns.get(period)
        if found is None:
            by_turn: dict[int, list[int]] = {}
            if period == 1:
                by_turn[0] = self.numbers
            else:
                for number, rotation in zip(self.numbers, self.rotations, strict=True):
                    by_turn.setdefault(rotation % period, []).append(number)
            found = {turn: tuple(numbers) for turn, numbers in by_turn.items()}
            self._turns[period] = found
        return found


def kinds_of(pairs: Sequence[TensorPair]) -> list[Kind]:
    """Returns the kinds of all pairs, in the order of their first ones."""
    known: dict[tuple[int, int, int, int], Kind] = {}
    kinds: dict[tuple[int, int, int, int], Kind] = {}
    ranks_of = _RanksOfLayouts()
    for number, pair in enumerate(pairs):
        _, src, dst, geometry, _, rotation, _ = pair
        key = id(geometry), id(src.layout), id(dst.layout), id(dst.dtype)
        kind = known.get(key)
        if kind is None:
            # Layouts that differ as objects only, as from adapters that look tensor by tensor.
            src_ranks, dst_ranks = ranks_of(src.layout), ranks_of(dst.layout)
            alike = id(geometry), id(src_ranks), id(dst_ranks), id(dst.dtype)
            kind = kinds.get(alike)
            if kind is None:
                kind = kinds[alike] = Kind(pair, src_ranks, dst_ranks)
            known[key] = kind
        kind.numbers.append(number)
        kind.rotations.append(rotation)
    return list(kinds.values())


class _RanksOfLayouts:
    """Ranks by position; equal ones are one object."""

    def __init__(self) -> None:
        self._of_layout: dict[int, Ranks] = {}
        self._distinct: dict[Ranks, Ranks] = {}

    def __call__(self, layout: AnyLayout) -> Ranks:
        ranks = self._of_layout.get(id(layout))
        if ranks is None:
            found = layout.ranks
            ranks = self._of_layout[id(layout)] = self._distinct.setdefault(found, found)
        return ranks
