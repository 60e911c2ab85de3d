"""Figures of a whole plan on a topology: what moves over which links, and how near the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reshard.errors import PlanError
from reshard.floor import Floor, find_floor
from reshard.loads import Loads, find_loads
from reshard.planner import Planner
from reshard.rounds import BudgetError, Pace, pace_of_all
from reshard.spans import Spans
from reshard.timing import Platform, Prediction, busiest_link, predict, predict_gather_and_broadcast
from reshard.topology import Topology

if TYPE_CHECKING:
    from reshard.plan import Plan

__all__ = ["ClusterView", "make_view"]

_MANY_RANKS = 64
_NUM_BETWEEN = 16


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A plan seen as a whole.

    Attributes:
        topology: where the ranks are.
        platform: the constants of the predictions.
        loads: bytes per rank and kind of link.
        floor: the limit of all plans between the same layouts.
        busy_seconds: how long the busiest link is busy, at the rates of the topology.
        busiest: which link that is.
        pace: rounds of the schedule, of all ranks up to 64, else of some.
        num_hops: how often a byte moves, at most.
        prediction: of this plan.
        direct: of the plan in which holders serve every rank themselves.
        gather_and_broadcast_seconds: of the conventional way, at least the floor; None if it is not
            known for this kind of machine.
    """

    topology: Topology
    platform: Platform
    loads: Loads
    floor: Floor
    busy_seconds: float
    busiest: str
    pace: Pace
    num_hops: int
    prediction: Prediction
    direct: Prediction
    gather_and_broadcast_seconds: float | None

    @property
    def share_of_floor(self) -> float:
        """The floor divided by the predicted time; 1.0 is the limit."""
        return self.prediction.share_of(self.floor.seconds)

    @property
    def busy_share_of_floor(self) -> float:
        """The floor divided by how long the busiest link is busy."""
        return self.floor.seconds / self.busy_seconds if self.busy_seconds else 1.0


def make_view(plan: Plan) -> ClusterView:
    """Returns the figures of a plan that has a topology; about a second for 1,000 ranks.

    Raises:
        PlanError: if the plan has no topology; if a source layout does not hold what a destination
            stores; if the staging budget is too small.
    """
    topology = plan.topology
    if topology is None:
        raise PlanError(
            "this plan knows no topology, so no time follows from it. Give make_plan(..., "
            "topology=), such as Topology.dgx_h100(num_ranks)."
        )
    planner, platform = plan.planner, Platform.of(topology)
    loads = plan.loads
    busy, busiest = busiest_link(loads, topology)
    pace, num_messages = _schedule_of(plan, planner, loads)
    direct = Planner(plan.pairs)
    direct_loads = find_loads(direct, topology)
    direct_pace, direct_messages = _schedule_of(plan, direct, direct_loads)
    floor = find_floor(planner, topology)
    conventional = predict_gather_and_broadcast(_nbytes(plan), platform)
    return ClusterView(
        topology,
        platform,
        loads,
        floor,
        busy,
        busiest,
        pace,
        planner.num_hops,
        predict(
            loads,
            topology,
            platform,
            num_rounds=pace.num_rounds,
            num_hops=planner.num_hops,
            num_messages=num_messages,
        ),
        predict(
            direct_loads,
            topology,
            platform,
            num_rounds=direct_pace.num_rounds,
            num_hops=1,
            num_messages=direct_messages,
        ),
        None if conventional is None else max(conventional, floor.seconds),
    )


def _nbytes(plan: Plan) -> int:
    sources = {id(pair.src): pair.src for pair in plan.pairs}
    return sum([math.prod(spec.shape) * spec.dtype.itemsize for spec in sources.values()])


def _schedule_of(plan: Plan, planner: Planner, loads: Loads) -> tuple[Pace, int]:
    """Returns the pace and the messages per round.

    At run time all ranks agree on the pace; of many ranks a few have to speak for the others here.
    """
    plans = [planner.plan_rank(rank) for rank in _speakers(planner, loads)]
    spans = Spans(planner.kinds)
    try:
        pace = pace_of_all(plans, spans, plan.staging_bytes)
    except BudgetError as error:
        if planner is plan.planner:
            raise
        # What is only compared with the plan may need more memory than there is.
        pace = pace_of_all(plans, spans, error.least)
    return pace, max([len(each.messages) for each in plans])


def _speakers(planner: Planner, loads: Loads) -> list[int]:
    """Returns all ranks if they are few; else the busiest of each layout, and some in between."""
    if len(loads.ranks) <= _MANY_RANKS:
        return list(loads.ranks)
    busy = dict(
        zip(loads.ranks, map(sum, zip(loads.sent, loads.received, strict=True)), strict=True)
    )
    sides = {kind.src_ranks for kind in planner.kinds} | {kind.dst_ranks for kind in planner.kinds}
    ranks = {max(side, key=busy.__getitem__) for side in sides}
    ranks.update(loads.ranks[:: -(-len(loads.ranks) // _NUM_BETWEEN)])
    return sorted(ranks | {loads.ranks[-1]})
