"""The figures of a whole cluster that a page shows: loads, floor, rounds, seconds.

The one place of this package that works out times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from reshard.floor import Floor, find_floor
from reshard.loads import Loads, find_loads
from reshard.page.streams import FlowOfKind, rank_streams
from reshard.plan import Plan
from reshard.schedule import make_schedule
from reshard.topology import Topology

__all__ = ["Figures", "find_figures"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a page tells of a whole cluster.

    Attributes:
        loads: bytes per rank.
        floor: the limit of all plans; None without a topology.
        busiest: what is busy longest, such as `into domain 3`.
        seconds: predicted; None without a topology. All rounds follow each other as fast as the
            busiest link allows.
        num_rounds: chunks of the longest stream.
        num_hops: transfers that a byte has behind it at most when it has arrived.
    """

    loads: Loads
    floor: Floor | None
    busiest: str
    seconds: float | None
    num_rounds: int
    num_hops: int

    @property
    def num_slots(self) -> int:
        """Slots of all rounds: hop h of round k is in slot k + h."""
        return self.num_rounds + self.num_hops - 1 if self.num_rounds else 0


def find_figures(plan: Plan, flows: list[FlowOfKind]) -> Figures:
    """Returns the figures of a plan.

    Args:
        plan: the plan.
        flows: of the plan.

    Raises:
        PlanError: if the staging budget is too small for the process with most peers.
    """
    planner, topology = plan._planner, plan.topology
    loads = find_loads(planner, topology)
    streams = rank_streams(planner, flows)
    rings: Counter[int] = Counter()
    for src, dst in streams:
        rings[src] += 1
        rings[dst] += 1
    num_rounds = make_schedule(streams, rings, plan.staging_bytes).num_rounds
    hops = {hop for _, flow in flows for hop, _, _ in (*flow.always, *flow.of_turn(0))}
    num_hops = 1 + max(hops, default=0)
    if topology is None:
        return Figures(loads, None, "", None, num_rounds, num_hops)
    busy, busiest = max(_busy_seconds(loads, topology), default=(0.0, "nothing"))
    if not busy:
        busiest = "nothing"
    slots = num_rounds + num_hops - 1
    seconds = busy * slots / num_rounds if num_rounds else 0.0
    floor = find_floor(planner, topology)
    return Figures(loads, floor, busiest, seconds, num_rounds, num_hops)


def _busy_seconds(loads: Loads, topology: Topology) -> Iterable[tuple[float, str]]:
    """Yields how long each link and the cards of each domain are busy, and their names."""
    hosts: dict[int, set[int]] = defaultdict(set)
    for host, domain in zip(topology.hosts, topology.domains, strict=True):
        hosts[domain].add(host)
    per_host = topology.nics_per_host * topology.nic_bytes_per_second
    for verb, network, link in (
        ("into", loads.network_received, loads.link_received),
        ("out of", loads.network_sent, loads.link_sent),
    ):
        sums: Counter[int] = Counter()
        for rank, nbytes in zip(loads.ranks, network, strict=True):
            sums[topology.domains[rank]] += nbytes
        for domain, nbytes in sums.items():
            yield nbytes / (per_host * len(hosts[domain])), f"{verb} domain {domain}"
        for rank, nbytes in zip(loads.ranks, link, strict=True):
            yield nbytes / topology.link_bytes_per_second, f"{verb} rank {rank}"
