"""The interface of a method and what a rank gives it to work with."""

from __future__ import annotations

import abc
import dataclasses
import datetime
import functools
import pathlib

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from benchmarks import memory
from benchmarks.layout_pairs import LayoutPair, Side
from benchmarks.regions import Region, Transfer, region_of, transfers_of
from benchmarks.team import free_port
from benchmarks.workloads import Parameter, Workload

__all__ = ["Groups", "Method", "RankCase", "make_groups"]

TIMEOUT = datetime.timedelta(seconds=120)


@dataclasses.dataclass(frozen=True)
class Groups:
    """gloo groups that every method may use; made once per set of processes.

    `fan_out` is source rank 0 with all destination ranks.
    """

    num_sources: int
    world: dist.ProcessGroup
    source: dist.ProcessGroup
    destination: dist.ProcessGroup
    fan_out: dist.ProcessGroup


def make_groups(rank: int, num_sources: int, num_processes: int, folder: pathlib.Path) -> Groups:
    """Joins the processes in gloo groups.

    Collective: all processes call it once.
    """
    store = FileStore(str(folder / "gloo-store"), num_processes)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=num_processes, timeout=TIMEOUT
    )
    sources = list(range(num_sources))
    destinations = list(range(num_sources, num_processes))
    return Groups(
        num_sources=num_sources,
        world=_group([*sources, *destinations]),
        source=_group(sources),
        destination=_group(destinations),
        fan_out=_group([0, *destinations]),
    )


def _group(ranks: list[int]) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(ranks, timeout=TIMEOUT, backend="gloo")
    return group


@dataclasses.dataclass(frozen=True)
class RankCase:
    """One workload and layout pair as one rank sees it.

    Attributes:
        process: number among all processes; sources come first.
        tensors: this rank's shards, contiguous; refits read them or write them.
        folder: in shared memory, empty at first, the same for all ranks; removed after the case.
        groups: gloo groups.
        meshes: device meshes of both sides (source, destination).
    """

    process: int
    workload: Workload
    pair: LayoutPair
    tensors: dict[str, torch.Tensor]
    folder: pathlib.Path
    groups: Groups
    meshes: tuple[DeviceMesh, DeviceMesh]

    @property
    def is_source(self) -> bool:
        """Whether this rank is on the source side."""
        return self.process < self.groups.num_sources

    @property
    def rank(self) -> int:
        """Number of this rank within its side."""
        return self.process if self.is_source else self.process - self.groups.num_sources

    @property
    def side(self) -> Side:
        """The side of the layout pair that this rank is on."""
        return self.pair.source if self.is_source else self.pair.destination

    def region(self, parameter: Parameter) -> Region:
        """Returns what this rank holds of a parameter."""
        return region_of(self.side, parameter.shape, self.rank)

    def my_transfers(self, parameter: Parameter) -> list[Transfer]:
        """Returns the transfers of a parameter that this rank sends or receives."""
        transfers = transfers_of(self.pair, parameter.shape)
        if self.is_source:
            return [transfer for transfer in transfers if transfer.source == self.rank]
        return [transfer for transfer in transfers if transfer.destination == self.rank]

    def part(self, parameter: Parameter, region: Region) -> torch.Tensor:
        """Returns the view of this rank's shard that holds `region`."""
        slices = region.slices_within(self.region(parameter))
        return self.tensors[parameter.name][slices]

    @functools.cached_property
    def dtensors(self) -> dict[str, DTensor]:
        """The shards as DTensors over the mesh of this rank's side; no copies."""
        mesh = self.meshes[0 if self.is_source else 1]
        result = {}
        for parameter in self.workload.parameters:
            placements: list[Placement] = [
                Replicate() if dim is None else Shard(dim)
                for dim in self.side.placements(len(parameter.shape))
            ]
            local = self.tensors[parameter.name]
            result[parameter.name] = DTensor.from_local(local, mesh, placements, run_check=False)
        return result


class Method(abc.ABC):
    """One way to refit; an object of it lives on every rank while a case runs."""

    name: str
    about: str
    # False where what set_up allocates is the trainer's weights themselves, put elsewhere.
    counts_set_up_memory = True
    # False where the next refit may overwrite what a destination still reads of this one.
    may_follow_at_once = True

    def __init__(self, case: RankCase) -> None:
        self.case = case

    def agreed_port(self) -> int:
        """Returns a free TCP port, the same on all ranks. Collective: all ranks."""
        port = torch.tensor([free_port() if self.case.process == 0 else 0])
        dist.broadcast(port, src=0, group=self.case.groups.world)
        return int(port[0])

    @classmethod
    def unavailable(cls) -> str | None:
        """Returns why this method cannot run here, or None; imports what it needs."""
        return None

    def set_up(self) -> None:  # noqa: B027 (most methods have nothing to prepare)
        """Prepares for refits; not timed. Collective: all ranks."""

    def source_changed(self) -> None:  # noqa: B027 (most methods read the live tensors)
        """Is told that the source tensors have new contents; not timed."""

    def outside_bytes(self) -> int:
        """Returns what the method holds outside of the ranks' own processes, asked per rank."""
        return memory.shared_bytes_of(self.case.folder) if self.case.process == 0 else 0

    @classmethod  # noqa: B027 (most methods hold nothing)
    def leave(cls) -> None:
        """Releases what outlives a case; called once before the process ends."""

    @abc.abstractmethod
    def refit(self, version: int) -> None:
        """Brings the source's contents into the destination's tensors. Collective: all ranks."""

    def note(self) -> str:
        """Returns what the method itself says about its last refit, in one line, or nothing."""
        return ""

    def tear_down(self) -> None:  # noqa: B027 (most methods hold nothing)
        """Releases what set_up made. Collective: all ranks."""
