"""Whether a plan looks at domains: only where links inside them are fast enough.

Ranks of a domain that get a box in stripes and exchange these need their links, and so do holders
that serve their own domain first. Links are faster than cards nearly everywhere, and then that is
best. Where they may not be, both plans are made, and the one that keeps its busiest link busy for
less time is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.errors import PlanError
from reshard.kinds import Kind
from reshard.loads import find_loads
from reshard.matching import TensorPair
from reshard.planner import Planner
from reshard.timing import Platform, busiest_link
from reshard.topology import Topology

__all__ = ["make_planner"]

_FAST = 2.0
"""Links so many times as fast as a rank's share of the cards are best used."""

_GAIN = 0.98
"""Domains are left out of account if the busiest link is then busy for less than this part."""


def make_planner(pairs: Sequence[TensorPair], topology: Topology | None) -> Planner:
    """Returns the planner of a topology, or one that looks at no domains.

    Args:
        pairs: what moves.
        topology: where all ranks are; None means that holders serve everybody.
    """
    planner = Planner(pairs, topology)
    if topology is None or _has_fast_links(planner.kinds, topology):
        return planner
    direct, platform = Planner(pairs), Platform.of(topology)
    try:
        busy, alone = (
            busiest_link(find_loads(each, topology), topology, platform)[0]
            for each in (planner, direct)
        )
    except PlanError:  # raised again whenever ranks are planned, with the name of a tensor
        return planner
    return direct if alone < _GAIN * busy else planner


def _has_fast_links(kinds: Sequence[Kind], topology: Topology) -> bool:
    """True if links are fast beside cards, for what is passed on as wide as it is stored."""
    widest = max([kind.itemsizes[1] / kind.itemsizes[0] for kind in kinds], default=1.0)
    distinct = {id(kind.dst_ranks): kind.dst_ranks for kind in kinds}.values()
    share = max([topology.network_rate(ranks) / len(ranks) for ranks in distinct], default=0.0)
    return topology.link_bytes_per_second >= _FAST * share * max(1.0, widest)
