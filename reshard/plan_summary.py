"""A plan as a document: what it moves by kind of tensor, what each rank carries, and the floor.

Stable, and small enough to keep and to compare: sums over ranks and kinds, never single transfers.
Units are in the names of fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reshard.floor import Floor
from reshard.kinds import Kind
from reshard.loads import Loads, find_loads
from reshard.timing import link_loads

if TYPE_CHECKING:
    from reshard.cluster_view import ClusterView
    from reshard.plan import Plan
    from reshard.tensor_spec import TensorSpec

__all__ = ["FORMAT", "kind_of_name", "plan_to_json", "ranks_as_runs", "summarize"]

FORMAT: Final = "reshard plan 1"
"""Changes whenever a field of the document changes its meaning or goes away."""

_LOADS: Final = (
    "network_sent", "network_received", "link_sent", "link_received", "forwarded", "copied",
)  # fmt: skip


def kind_of_name(name: str) -> str:
    """Returns what tensors of all layers and experts have in common: their name without numbers.

    Example:
        >>> kind_of_name("model.layers.3.mlp.experts.17.up_proj.weight")
        'model.layers.*.mlp.experts.*.up_proj.weight'
    """
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def plan_to_json(plan: Plan) -> str:
    """Returns the document of a plan as one line of JSON."""
    return json.dumps(summarize(plan))


def summarize(plan: Plan) -> dict[str, Any]:
    """Returns the document of a plan; without a topology it plans every rank.

    Raises:
        PlanError: if a source layout does not hold what a destination stores; if the staging budget
            is too small.
    """
    cluster = _whole_cluster(plan)
    topology = plan.topology
    return {
        "format": FORMAT,
        "digest": plan.digest,
        "num_tensors": len(plan.pairs),
        "src_ranks": ranks_as_runs(plan.src_ranks),
        "dst_ranks": ranks_as_runs(plan.dst_ranks),
        "topology": topology
        and {
            "name": topology.name,
            "num_ranks": topology.num_ranks,
            "num_domains": topology.num_domains,
        },
        "num_hops": plan.num_hops,
        "moved_bytes": sum(cluster.loads.sent),
        "crossing_bytes": None if topology is None else cluster.loads.crossing,
        "schedule": _schedule(plan),
        "kinds": _kinds(plan),
        "loads": {
            "ranks": list(cluster.loads.ranks),
            **{f"{name}_bytes": list(getattr(cluster.loads, name)) for name in _LOADS},
        },
        "sums": _sums(plan, cluster.loads),
        "links": cluster.links,
        "floor": cluster.floor and _floor(cluster.floor),
        "prediction": cluster.prediction,
    }


def _schedule(plan: Plan) -> dict[str, Any]:
    """Returns rounds; in several domains these are of agreed progress and not of agreed bytes."""
    budget = {"budget_bytes": plan.staging_bytes}
    if plan.topology is not None:
        return {
            "num_rounds": plan.view.pace.num_rounds,
            "chunk_bytes": None,
            "staging_bytes": None,
            **budget,
        }
    schedule = plan.schedule
    return {
        "num_rounds": schedule.num_rounds,
        "chunk_bytes": schedule.chunk_bytes,
        "staging_bytes": schedule.staging_bytes,
        **budget,
    }


class _Cluster(NamedTuple):
    """Sums over a whole plan; without a topology nothing but the loads follows."""

    loads: Loads
    floor: Floor | None
    prediction: dict[str, Any] | None
    links: dict[str, dict[str, Any]] | None


def _whole_cluster(plan: Plan) -> _Cluster:
    if plan.topology is None:
        return _Cluster(plan.loads, None, None, None)
    view = plan.view
    return _Cluster(view.loads, view.floor, _prediction(view), _links(view))


def _prediction(view: ClusterView) -> dict[str, Any]:
    return {
        "seconds": view.prediction.seconds,
        "share_of_floor": view.share_of_floor,
        "busiest": view.prediction.busiest,
        "busy_seconds": view.prediction.busy_seconds,
        "num_rounds": view.prediction.num_rounds,
        "num_slots": view.prediction.num_slots,
        "direct_seconds": view.direct.seconds,
        "gather_and_broadcast_seconds": view.gather_and_broadcast_seconds,
    }


def _floor(floor: Floor) -> dict[str, Any]:
    return {
        "seconds": floor.seconds,
        "reason": floor.reason,
        "crossing_bytes": floor.crossing,
        "cuts": [
            {
                "name": cut.name,
                "bytes": cut.nbytes,
                "bytes_per_second": cut.bytes_per_second,
                "seconds": cut.seconds,
            }
            for cut in floor.cuts
        ],
    }


def _links(view: ClusterView) -> dict[str, dict[str, Any]]:
    """Returns per kind of link what passes in all, and over the busiest link of one rank."""
    each = list(link_loads(view.loads, view.topology))
    in_all = sum(view.loads.link_sent), sum(view.loads.network_sent)
    floor, found = view.floor.seconds, {}
    for is_network, name in enumerate(("inside_domains", "network_cards")):
        busiest = max(
            [load for load in each if load.is_network == is_network], key=lambda load: load.seconds
        )
        found[name] = {
            "total_bytes": in_all[is_network],
            "busiest": busiest.name if busiest.nbytes else None,
            "busiest_bytes": busiest.nbytes,
            "bytes_per_second": busiest.bytes_per_second,
            "busy_seconds": busiest.seconds,
            "time_over_floor": busiest.seconds / floor if floor else None,
        }
    return found


def _sums(plan: Plan, loads: Loads) -> dict[str, dict[str, float]]:
    """Returns what the ranks of a side carry: the least, the mean and the most of them."""
    forwarded = dict(zip(loads.ranks, loads.forwarded, strict=True))
    sent = {
        rank: nbytes - forwarded[rank] for rank, nbytes in zip(loads.ranks, loads.sent, strict=True)
    }
    received = dict(zip(loads.ranks, loads.received, strict=True))
    return {
        "sent_by_sources": _spread(sent, plan.src_ranks),
        "received_by_destinations": _spread(received, plan.dst_ranks),
        "forwarded_by_destinations": _spread(forwarded, plan.dst_ranks),
    }


def _spread(nbytes: dict[int, int], ranks: tuple[int, ...]) -> dict[str, float]:
    values = [nbytes[rank] for rank in ranks] or [0]
    mean = sum(values) / len(values)
    return {
        "total_bytes": sum(values),
        "min_bytes": min(values),
        "mean_bytes": mean,
        "max_bytes": max(values),
        "max_over_mean": max(values) / mean if mean else 1.0,
        "busiest_rank": ranks[values.index(max(values))] if ranks else -1,
    }


def _kinds(plan: Plan) -> list[dict[str, Any]]:
    groups: dict[str, list[Kind]] = {}
    for kind in plan.planner.kinds:
        # Tensors whose names differ in more than numbers may share all the rest.
        parts: dict[str, Kind] = {}
        for number, rotation in zip(kind.numbers, kind.rotations, strict=True):
            pair = plan.pairs[number]
            name = kind_of_name(pair.name)
            if name not in parts:
                parts[name] = Kind(pair, kind.src_ranks, kind.dst_ranks)
            parts[name].numbers.append(number)
            parts[name].rotations.append(rotation)
        for name, part in parts.items():
            groups.setdefault(name, []).append(part)
    return [_kind(plan, name, kinds) for name, kinds in groups.items()]


def _kind(plan: Plan, name: str, kinds: list[Kind]) -> dict[str, Any]:
    first = kinds[0].first
    dtypes = dict.fromkeys((str(k.first.src.dtype), str(k.first.dst.dtype)) for k in kinds)
    changes = list(dict.fromkeys(str(k.first.change) for k in kinds if k.first.change))
    loads = find_loads(plan.planner, plan.topology, kinds)
    members = [plan.pairs[number] for kind in kinds for number in kind.numbers]
    return {
        "name": name,
        "num_tensors": len(members),
        "tensor_bytes": sum(pair.num_elements * pair.wire_dtype.itemsize for pair in members),
        "src": _side(first.src),
        "dst": _side(first.dst),
        "num_geometries": len({id(kind.first.geometry) for kind in kinds}),
        "wire_dtype": str(first.wire_dtype),
        "dtypes": [list(pair) for pair in dtypes],
        "elementwise": changes,
        "moved_bytes": sum(loads.sent),
        "crossing_bytes": loads.crossing,
        "forwarded_bytes": sum(loads.forwarded),
        "copied_bytes": sum(loads.copied),
    }


def _side(spec: TensorSpec) -> dict[str, Any]:
    return {"dtype": str(spec.dtype), "shape": list(spec.shape), "layout": str(spec.layout)}


def ranks_as_runs(ranks: Iterable[int]) -> list[list[int]]:
    """Returns ascending ranks as (first, last) of runs without gaps.

    Example:
        >>> ranks_as_runs([0, 1, 2, 5])
        [[0, 2], [5, 5]]
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs
