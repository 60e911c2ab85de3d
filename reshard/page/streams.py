"""What goes from which position to which, per distinct geometry: what sums of a page are made of.

As in `loads`, positions stand for ranks and one tensor for all that share its geometry, so a plan
of a thousand ranks is tens of thousands of streams instead of hundreds of thousands of transfers.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from reshard.geometry_plan import GeometryPlan
from reshard.kinds import Kind
from reshard.planner import Planner
from reshard.shipment import Shipment

__all__ = ["Flow", "FlowOfKind", "Streams", "flows_of", "rank_streams"]

Streams = dict[tuple[int, int, int], int]
"""Elements per (hop, sender, receiver); the sender is a source position at hop 0, else one of the
destination."""


class Flow:
    """The streams of tensors of one geometry.

    Args:
        plan: of the geometry.

    Attributes:
        period: rotations that differ by it have the same streams.
        always: what moves for tensors of any rotation.
    """

    def __init__(self, plan: GeometryPlan) -> None:
        self.period = 1
        self.always: Streams = Counter()
        self._turning: list[Shipment] = []
        self._turns: dict[int, Streams] = {}
        for shipment in plan.shipments():
            for holder, taker, _ in shipment.local:
                self.always[0, holder, taker] += shipment.num_elements
            if shipment.delivery is None:
                continue
            if shipment.delivery.period > 1:
                self._turning.append(shipment)
                self.period = math.lcm(self.period, shipment.delivery.period)
            else:
                _add(self.always, shipment, 0)

    def of_turn(self, turn: int) -> Streams:
        """Returns what moves besides `always` for tensors of a rotation."""
        found = self._turns.get(turn)
        if found is None:
            found = self._turns[turn] = Counter()
            for shipment in self._turning:
                _add(found, shipment, turn)
        return found


def _add(streams: Streams, shipment: Shipment, rotation: int) -> None:
    if shipment.delivery is None:
        return
    delivery = shipment.delivery.turned(rotation)
    per_index = shipment.num_elements // delivery.striping.length
    holders, takers = shipment.holders, shipment.takers
    for index, (taker, _) in enumerate(takers):
        for peer, start, stop, hop in delivery.received(index):
            sender = takers[peer][0] if hop else holders[peer]
            streams[hop, sender, taker] += (stop - start) * per_index


class FlowOfKind(NamedTuple):
    """How tensors that have all but their names in common move.

    Attributes:
        kind: these tensors.
        flow: their streams; kinds whose ranks lie alike share one.
    """

    kind: Kind
    flow: Flow

    def turns(self) -> dict[int, tuple[int, ...]]:
        """Returns the numbers of the tensors per turn."""
        return self.kind.turns(self.flow.period)


def flows_of(planner: Planner) -> list[FlowOfKind]:
    """Returns the flows of all kinds of a plan.

    Args:
        planner: of the plan.

    Raises:
        PlanError: if a source layout does not hold what a destination wants.
    """
    flows: dict[int, Flow] = {}
    found = []
    for kind in planner.kinds:
        plan = planner.plan_of(kind)
        flow = flows.get(id(plan))
        if flow is None:
            flow = flows[id(plan)] = Flow(plan)
        found.append(FlowOfKind(kind, flow))
    return found


def rank_streams(flows: list[FlowOfKind]) -> dict[tuple[int, int], int]:
    """Returns bytes per (sending rank, receiving rank), without copies within a rank.

    Args:
        flows: from `flows_of`.
    """
    total: Counter[tuple[int, int]] = Counter()
    for found in flows:
        kind, flow = found
        first, later = kind.itemsizes
        shares = [(flow.always, len(kind.numbers))]
        if flow.period > 1:
            shares += [(flow.of_turn(turn), len(each)) for turn, each in found.turns().items()]
        for streams, count in shares:
            for (hop, sender, taker), elements in streams.items():
                src = kind.dst_ranks[sender] if hop else kind.src_ranks[sender]
                dst = kind.dst_ranks[taker]
                if src != dst:
                    total[src, dst] += elements * count * (later if hop else first)
    return dict(total)
