"""Ranks that carry more than others that hold the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from reshard.layout import AnyLayout
from reshard.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from reshard.plan import Plan

__all__ = ["MAX_RATIO", "Imbalance", "imbalances"]

MAX_RATIO: Final = 1.05
"""Busiest rank by mean, above which a group of ranks is out of balance."""


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The busiest of some ranks that hold the same tensors.

    Attributes:
        side: which one they are ranks of.
        rank: the busiest.
        nbytes: what it sends (a source) or receives (a destination).
        ratio: that by the mean of the group.
        num_ranks: how many ranks are in the group.
        is_of_layout: True if it stores that much more than the others, too.
    """

    side: Literal["source", "destination"]
    rank: int
    nbytes: int
    ratio: float
    num_ranks: int
    is_of_layout: bool


def imbalances(plan: Plan) -> list[Imbalance]:
    """Returns every group of ranks whose busiest is above the mean by more than `MAX_RATIO`."""
    loads = plan.loads
    columns = zip(loads.ranks, loads.sent, loads.forwarded, strict=True)
    sent = {rank: nbytes - forwarded for rank, nbytes, forwarded in columns}
    received = dict(zip(loads.ranks, loads.received, strict=True))
    src = list({id(pair.src): pair.src for pair in plan.pairs}.values())
    dst = list({id(pair.dst): pair.dst for pair in plan.pairs}.values())
    found: list[Imbalance] = []
    for group in _groups(src):
        _add(found, "source", group, sent, lambda rank: _held_bytes(src, rank))
    for group in _groups(dst):
        _add(found, "destination", group, received, lambda rank: _held_bytes(dst, rank))
    return found


def _groups(specs: list[TensorSpec]) -> list[list[int]]:
    """Returns ranks that are in the same layouts, apart from how these cut."""
    tensors: dict[int, set[tuple[int, ...]]] = {}
    layouts: dict[int, AnyLayout] = {id(spec.layout): spec.layout for spec in specs}
    for ranks in {tuple(sorted(layout.ranks)) for layout in layouts.values()}:
        for rank in ranks:
            tensors.setdefault(rank, set()).add(ranks)
    groups: dict[frozenset[tuple[int, ...]], list[int]] = {}
    for rank in sorted(tensors):
        groups.setdefault(frozenset(tensors[rank]), []).append(rank)
    return list(groups.values())


def _add(
    found: list[Imbalance],
    side: Literal["source", "destination"],
    group: list[int],
    nbytes: dict[int, int],
    held: Callable[[int], int],
) -> None:
    mean = sum(nbytes[rank] for rank in group) / len(group)
    rank = max(group, key=lambda each: nbytes[each])
    if not mean or nbytes[rank] / mean <= MAX_RATIO:
        return
    ratio = nbytes[rank] / mean
    stored = {each: held(each) for each in group}
    stored_ratio = stored[rank] * len(group) / (sum(stored.values()) or 1)
    is_of_layout = ratio <= stored_ratio * MAX_RATIO
    found.append(Imbalance(side, rank, nbytes[rank], ratio, len(group), is_of_layout))


def _held_bytes(specs: list[TensorSpec], rank: int) -> int:
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    nbytes = 0
    for spec in specs:
        key = id(spec.layout), spec.shape
        if key not in known:
            boxes = spec.layout.local_boxes(rank, spec.shape)
            known[key] = sum(local_box.box.num_elements for local_box in boxes)
        nbytes += known[key] * spec.dtype.itemsize
    return nbytes
