"""The conventional refit: gather every full parameter, broadcast it, let receivers slice."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.methods.method import Method
from benchmarks.regions import Region, region_of
from benchmarks.workloads import Parameter

__all__ = ["GatherBroadcast"]


class GatherBroadcast(Method):
    """gloo all_gather among the trainers, then a broadcast from trainer 0, per parameter."""

    name = "gather_broadcast"
    about = "gloo all_gather + broadcast of every full parameter"

    def refit(self, version: int) -> None:
        """Moves one parameter after the other."""
        for parameter in self.case.workload.parameters:
            if self.case.is_source:
                self._gather_and_send(parameter)
            else:
                self._receive(parameter)

    def _gather_and_send(self, parameter: Parameter) -> None:
        case = self.case
        local = case.tensors[parameter.name]
        num_ranks = case.pair.source.num_ranks
        gathered = torch.empty((num_ranks, *local.shape), dtype=local.dtype)
        dist.all_gather_into_tensor(gathered.view(-1), local.view(-1), group=case.groups.source)
        if case.rank == 0:
            dist.broadcast(self._assemble(parameter, gathered), src=0, group=case.groups.fan_out)

    def _assemble(self, parameter: Parameter, gathered: torch.Tensor) -> torch.Tensor:
        """Returns the full tensor; the gathered blocks are it where only dim 0 is sharded."""
        placements = self.case.pair.source.placements(len(parameter.shape))
        if all(dim == 0 for dim in placements):
            return gathered.view(parameter.shape)
        full = torch.empty(parameter.shape, dtype=gathered.dtype)
        everything = Region((0,) * len(parameter.shape), parameter.shape)
        for rank, block in enumerate(gathered):
            held = region_of(self.case.pair.source, parameter.shape, rank)
            full[held.slices_within(everything)] = block
        return full

    def _receive(self, parameter: Parameter) -> None:
        case = self.case
        local = case.tensors[parameter.name]
        full = torch.empty(parameter.shape, dtype=local.dtype)
        dist.broadcast(full, src=0, group=case.groups.fan_out)
        everything = Region((0,) * len(parameter.shape), parameter.shape)
        local.copy_(full[case.region(parameter).slices_within(everything)])
