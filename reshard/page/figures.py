"""The figures of a whole cluster that a page shows: loads, floor, rounds, seconds.

Those of `Plan.view` where the plan knows a topology; else what can be said without one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from reshard.floor import Floor
from reshard.loads import Loads, find_loads
from reshard.page.streams import FlowOfKind, rank_streams
from reshard.plan import Plan
from reshard.schedule import make_schedule

__all__ = ["Figures", "find_figures"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a page tells of a whole cluster.

    Attributes:
        loads: bytes per rank.
        floor: the limit of all plans; None without a topology.
        busiest: what is busy longest by the prediction, such as `card into rank 3`.
        busiest_link: which link or card is, at the rates of the topology.
        busy_seconds: for how long; None without a topology.
        seconds: predicted; None without a topology.
        num_rounds: of the schedule; without a topology, chunks of the longest stream.
        num_hops: transfers that a byte has behind it at most when it has arrived.
    """

    loads: Loads
    floor: Floor | None
    busiest: str
    busiest_link: str
    busy_seconds: float | None
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
    if plan.topology is not None:
        view = plan.view
        return Figures(
            view.loads,
            view.floor,
            view.prediction.busiest,
            view.busiest,
            view.busy_seconds,
            view.prediction.seconds,
            view.pace.num_rounds,
            view.num_hops,
        )
    planner = plan.planner
    streams = rank_streams(flows)
    rings: Counter[int] = Counter()
    for src, dst in streams:
        rings[src] += 1
        rings[dst] += 1
    num_rounds = make_schedule(streams, rings, plan.staging_bytes).num_rounds
    return Figures(find_loads(planner, None), None, "", "", None, None, num_rounds, plan.num_hops)
