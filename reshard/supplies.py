"""What groups of source ranks have to send together, where some of a group hold other tensors too.

Sums over all tensors, taken once per plan and only for source ranks whose layouts are unequal; all
others share their boxes evenly at no cost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from reshard.fair_shares import Ranks, components, fair_shares
from reshard.geometry_plan import GeometryPlan
from reshard.holders import Shares, Weights
from reshard.kinds import Kind
from reshard.layout import AnyLayout, BoxLayout, Layout
from reshard.placement import Replicate
from reshard.segmented_layout import SegmentedLayout

__all__ = ["holder_shares", "shares_by_position", "unequal_ranks"]


def unequal_ranks(layouts: Iterable[AnyLayout]) -> frozenset[int]:
    """Returns the source ranks that share a tensor, over one step or many, with ranks unlike them.

    Ranks are alike that are in the same layouts, if these give each of their ranks as much.

    Args:
        layouts: of the source.
    """
    found: list[frozenset[int]] = []
    given = list(layouts)
    boxed = {rank for layout in given if _has_boxes(layout) for rank in layout.ranks}
    for groups in components([layout.ranks for layout in given]):
        ranks = frozenset().union(*groups)
        if len(groups) > 1 or not boxed.isdisjoint(ranks):
            found.append(ranks)
    return frozenset().union(*found)


def holder_shares(
    kinds: Sequence[Kind], plan_of: Callable[[Kind], GeometryPlan]
) -> dict[Ranks, Weights]:
    """Returns how much each of some holders serves, by their ranks ascending; others share evenly.

    Args:
        kinds: all kinds of pairs of a plan.
        plan_of: plans a kind with holders that share evenly.

    Raises:
        PlanError: if a source layout does not hold what a destination wants.
    """
    layouts = {id(kind.first.src.layout): kind.first.src.layout for kind in kinds}
    unequal = unequal_ranks(layouts.values())
    affected = [kind for kind in kinds if not unequal.isdisjoint(kind.src_ranks)]
    if not any(_is_replicated(kind) for kind in affected):
        return {}
    supplies: Counter[Ranks] = Counter()
    for kind in affected:
        per_element = sum(kind.first.dtype_at(0).itemsize for _ in kind.members)
        for shipment in plan_of(kind).shipments():
            delivery = shipment.delivery
            if delivery is None:
                continue
            per_index = shipment.num_elements // delivery.striping.length * per_element
            ranks = [kind.src_ranks[position] for position in shipment.holders]
            for holders, num_indices in delivery.supplied():
                group = tuple(sorted([ranks[holder] for holder in holders]))
                supplies[group] += num_indices * per_index
    return fair_shares(supplies)


def shares_by_position(shares: dict[Ranks, Weights], src_ranks: Ranks) -> Shares:
    """Returns shares by ascending positions in a layout, without those of ranks outside it."""
    positions = {rank: position for position, rank in enumerate(src_ranks)}
    found = []
    for ranks, weights in shares.items():
        if positions.keys() >= set(ranks):
            pairs = zip([positions[rank] for rank in ranks], weights, strict=True)
            holders, placed = zip(*sorted(pairs), strict=True)
            found.append((holders, placed))
    return tuple(found)


def _has_boxes(layout: AnyLayout) -> bool:
    """True if ranks of one layout may hold more or less than others of it."""
    if isinstance(layout, SegmentedLayout):
        return any(map(_has_boxes, layout.layouts))
    return isinstance(layout, BoxLayout)


def _is_replicated(kind: Kind) -> bool:
    """True if several ranks hold the same elements."""
    layout, shape = kind.first.src.layout, kind.first.src.shape
    if isinstance(layout, Layout):
        sizes = zip(layout.mesh.shape, layout.placements, strict=True)
        return any(size > 1 and isinstance(each, Replicate) for size, each in sizes)
    boxes = [each.box for rank in layout.ranks for each in layout.local_boxes(rank, shape)]
    return sum(box.num_elements for box in boxes) > math.prod(shape)
