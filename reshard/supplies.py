"""What groups of source ranks have to send together, where some of a group hold other tensors too.

Sums over all tensors, taken once per plan and only for source ranks whose layouts are unequal; all
others share their boxes evenly at no cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from reshard.division import cut_dim
from reshard.errors import PlanError
from reshard.fair_shares import Ranks, components, fair_shares
from reshard.geometry_plan import GeometryPlan
from reshard.holders import Shares, Weights
from reshard.kinds import Kind
from reshard.layout import AnyLayout, Layout
from reshard.segmented_layout import SegmentedLayout
from reshard.topology import Topology

__all__ = ["SharesIndex", "costs_of", "holder_shares", "unequal_ranks"]

_MAX_RATIO = 1.05
"""Ranks of a layout hold as much as each other if none holds more than this times the mean."""


def unequal_ranks(kinds: Iterable[Kind]) -> frozenset[int]:
    """Returns the source ranks that share a tensor, over one step or many, with ranks unlike them.

    Ranks are alike that are in the same layouts, if these give each of their ranks as much.

    Args:
        kinds: of all tensors that move.
    """
    layouts: dict[int, Ranks] = {}
    is_uneven: dict[int, bool] = {}
    uneven: set[int] = set()
    for kind in kinds:
        layouts[id(kind.src_ranks)] = kind.src_ranks
        geometry = kind.first.geometry
        if id(geometry) not in is_uneven:
            side = geometry.src
            is_uneven[id(geometry)] = _is_uneven(side.layout, side.shape)
        if is_uneven[id(geometry)]:
            uneven.update(kind.src_ranks)
    found: list[frozenset[int]] = []
    for groups in components(layouts.values()):
        ranks = frozenset().union(*groups)
        if len(groups) > 1 or not uneven.isdisjoint(ranks):
            found.append(ranks)
    return frozenset().union(*found)


def costs_of(
    supplies: Mapping[tuple[Ranks, bool], int], topology: Topology | None
) -> Counter[Ranks]:
    """Returns bytes as they count for their holders: links inside a domain are faster than cards.

    Args:
        supplies: bytes that each group of ranks sends inside its domain (True), and elsewhere.
        topology: where all ranks are; None if that does not matter.
    """
    ratio = 1.0
    if topology is not None:
        ratio = min(1.0, topology.nic_bytes_per_second / topology.link_bytes_per_second)
    costs: Counter[Ranks] = Counter()
    for (group, is_near), nbytes in supplies.items():
        costs[group] += int(nbytes * ratio) if is_near else nbytes
    return costs


def holder_shares(
    kinds: Sequence[Kind], plan_of: Callable[[Kind], GeometryPlan], topology: Topology | None
) -> dict[Ranks, Weights]:
    """Returns how much each of some holders serves, by their ranks ascending; others share evenly.

    Args:
        kinds: all kinds of pairs of a plan.
        plan_of: plans a kind with holders that share evenly.
        topology: where all ranks are; None if that does not matter.
    """
    unequal = unequal_ranks(kinds)
    supplies: Counter[tuple[Ranks, bool]] = Counter()
    for kind in kinds if unequal else ():
        if unequal.isdisjoint(kind.src_ranks):
            continue
        per_element = kind.itemsizes[0] * len(kind.numbers)
        try:
            shipments = plan_of(kind).shipments()
        except PlanError:  # raised again whenever this kind is planned; others must not name it
            continue
        for shipment in shipments:
            delivery = shipment.delivery
            if delivery is None:
                continue
            per_index = shipment.num_elements // delivery.striping.length * per_element
            ranks = [kind.src_ranks[position] for position in shipment.holders]
            for holders, num_indices, is_near in delivery.supplied():
                group = tuple(sorted([ranks[holder] for holder in holders]))
                supplies[group, is_near] += num_indices * per_index
    return fair_shares(costs_of(supplies, topology))


class SharesIndex:
    """Shares of groups of ranks, to be found by layout.

    Args:
        shares: by ascending ranks.
    """

    def __init__(self, shares: Mapping[Ranks, Weights]) -> None:
        self._by_first: defaultdict[int, list[tuple[Ranks, Weights]]] = defaultdict(list)
        for ranks, weights in shares.items():
            self._by_first[ranks[0]].append((ranks, weights))

    def of(self, src_ranks: Ranks) -> Shares:
        """Returns shares by ascending positions in a layout, without those of ranks outside it."""
        positions = {rank: position for position, rank in enumerate(src_ranks)}
        found = []
        for first in src_ranks:
            for ranks, weights in self._by_first.get(first, ()):
                if all(rank in positions for rank in ranks):
                    pairs = zip([positions[rank] for rank in ranks], weights, strict=True)
                    holders, placed = zip(*sorted(pairs), strict=True)
                    found.append((holders, placed))
        return tuple(found)


def _is_uneven(layout: AnyLayout, shape: tuple[int, ...]) -> bool:
    """True if some ranks of a layout may hold much more than others of it."""
    if isinstance(layout, SegmentedLayout):
        return any(
            _is_uneven(each, layout.segment_shape(index, shape))
            for index, each in enumerate(layout.layouts)
        )
    if not isinstance(layout, Layout):
        return True
    for dim, length in enumerate(shape):
        cuts = layout.cuts_of_dim(dim)
        if cuts and length:
            parts = cut_dim(length, cuts, layout.division)
            largest = max([sum([stop - start for start, stop in runs]) for runs in parts])
            if largest * len(parts) > _MAX_RATIO * length:
                return True
    return False
