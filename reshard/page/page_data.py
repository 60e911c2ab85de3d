"""A plan as data that is small enough for a page: what `page.js` draws and adds up.

Streams and boxes are there once per distinct geometry, by position; kinds of tensors say which
ranks the positions are. The browser adds up what the selected rank or tensor sends and receives.
All of it is lists of integers, most of them flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reshard.logical_space import Side, pieces_of_rank
from reshard.matching import Geometry, TensorPair
from reshard.page.figures import Figures, find_figures
from reshard.page.name_groups import NameGroups
from reshard.page.streams import FlowOfKind, Streams, flows_of
from reshard.plan import Plan
from reshard.topology import Topology

__all__ = ["PageData", "make_page_data"]

PageData = dict[str, Any]
"""What `json.dumps` takes."""


class _Numbered:
    """Data that many kinds have in common, each once, told by a key."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[object, int] = {}

    def find(self, key: object) -> int | None:
        return self._numbers.get(key)

    def add(self, key: object, item: object) -> int:
        number = self._numbers.setdefault(key, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number


def make_page_data(plan: Plan, *, title: str) -> PageData:
    """Returns what the page of a plan shows.

    Args:
        plan: the plan.
        title: for people.

    Raises:
        PlanError: if a source layout does not hold what a destination stores; if the staging budget
            is too small for the process with most peers.
    """
    flows = flows_of(plan.planner)
    figures = find_figures(plan, flows)
    tables = _Tables(plan.pairs)
    kinds = [tables.kind(found) for found in flows]
    return {
        "title": title,
        "numTensors": len(plan.pairs),
        "modelBytes": sum(pair.num_elements * pair.wire_dtype.itemsize for pair in plan.pairs),
        "src": _ranges(plan.src_ranks),
        "dst": _ranges(plan.dst_ranks),
        "topology": _topology(plan.topology, plan.ranks),
        "figures": _figures(figures),
        "templates": tables.names.templates,
        "rankLists": tables.rank_lists.items,
        "geometries": tables.geometries.items,
        "flows": tables.flows.items,
        "kinds": kinds,
    }


class _Tables:
    """What kinds have in common, while they are gone through."""

    def __init__(self, pairs: Sequence[TensorPair]) -> None:
        self._pairs = pairs
        self.names = NameGroups()
        self.rank_lists = _Numbered()
        self.geometries = _Numbered()
        self.flows = _Numbered()

    def kind(self, found: FlowOfKind) -> PageData:
        """Returns what there is to tell of tensors of one kind."""
        kind, flow = found
        pair = kind.first
        geometry = self.geometries.find(id(pair.geometry))
        if geometry is None:
            geometry = self.geometries.add(id(pair.geometry), _geometry(pair.geometry))
        number = self.flows.find(id(flow))
        if number is None:
            turns = {"always": _encoded(flow.always)}
            number = self.flows.add(id(flow), {"period": flow.period, "turns": turns})
        data = self.flows.items[number]
        for turn in found.turns() if flow.period > 1 else ():
            if str(turn) not in data["turns"]:
                data["turns"][str(turn)] = _encoded(flow.of_turn(turn))
        names = [
            (self._pairs[index].name, rotation % flow.period)
            for index, rotation in zip(kind.numbers, kind.rotations, strict=True)
        ]
        itemsizes = {"first": kind.itemsizes[0], "later": kind.itemsizes[1]}
        return {
            "geometry": geometry,
            "flow": number,
            "src": self.rank_lists.add(kind.src_ranks, _ranges(kind.src_ranks)),
            "dst": self.rank_lists.add(kind.dst_ranks, _ranges(kind.dst_ranks)),
            "srcText": f"{pair.src.dtype}{list(pair.src.shape)} {pair.src.layout}"[:400],
            "dstText": f"{pair.dst.dtype}{list(pair.dst.shape)} {pair.dst.layout}"[:400],
            "groups": [{**group, **itemsizes} for group in self.names.group(names)],
        }


def _encoded(streams: Streams) -> PageData:
    """Returns streams per hop as flat (sender, receiver, number of the volume)."""
    volumes: dict[int, int] = {}
    hops: dict[int, list[int]] = {}
    for (hop, sender, taker), elements in streams.items():
        index = volumes.setdefault(elements, len(volumes))
        hops.setdefault(hop, []).extend((sender, taker, index))
    return {"volumes": list(volumes), "hops": {str(hop): hops[hop] for hop in sorted(hops)}}


def _geometry(geometry: Geometry) -> PageData:
    return {
        "dims": list(geometry.space.names),
        "shape": list(geometry.space.shape),
        "src": _held(geometry.src, len(geometry.space.shape)),
        "dst": _held(geometry.dst, len(geometry.space.shape)),
    }


def _held(side: Side, ndim: int) -> PageData:
    """Returns the distinct regions of a side, and which one each position holds.

    A region is a flat list: per box its start and its stop, one entry per logical dim.
    """
    regions = _Numbered()
    held = []
    for rank in side.layout.ranks:
        region: list[int] = []
        for piece in pieces_of_rank(side, ndim, rank):
            region += (*piece.start, *piece.stop)
        held.append(regions.add(tuple(region), region))
    return {"regions": regions.items, "held": held}


def _ranges(ranks: Iterable[int]) -> list[int]:
    """Returns ranks as flat (first, count) of runs that ascend by one."""
    runs: list[int] = []
    for rank in ranks:
        if runs and rank == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (rank, 1)
    return runs


def _topology(topology: Topology | None, ranks: Sequence[int]) -> PageData | None:
    if topology is None:
        return None
    hosts: dict[int, set[int]] = {}
    for host, domain in zip(topology.hosts, topology.domains, strict=True):
        hosts.setdefault(domain, set()).add(host)
    per_host = topology.nics_per_host * topology.nic_bytes_per_second
    shown = {topology.domains[rank] for rank in ranks}
    return {
        "name": topology.name,
        "hosts": [topology.hosts[rank] for rank in ranks],
        "domains": [topology.domains[rank] for rank in ranks],
        "linkRate": topology.link_bytes_per_second,
        "domainRates": [[domain, per_host * len(hosts[domain])] for domain in sorted(shown)],
    }


def _figures(figures: Figures) -> PageData:
    loads, floor = figures.loads, figures.floor
    return {
        "ranks": _ranges(loads.ranks),
        "networkSent": list(loads.network_sent),
        "networkReceived": list(loads.network_received),
        "linkSent": list(loads.link_sent),
        "linkReceived": list(loads.link_received),
        "forwarded": list(loads.forwarded),
        "copied": list(loads.copied),
        "floor": None
        if floor is None
        else {
            "seconds": floor.seconds,
            "cuts": [
                {
                    "name": cut.name,
                    "nbytes": cut.nbytes,
                    "seconds": cut.seconds,
                    "rate": cut.bytes_per_second,
                }
                for cut in floor.cuts
            ],
        },
        "busiest": figures.busiest,
        "busiestLink": figures.busiest_link,
        "busySeconds": figures.busy_seconds,
        "seconds": figures.seconds,
        "numRounds": figures.num_rounds,
        "numHops": figures.num_hops,
        "numSlots": figures.num_slots,
    }
