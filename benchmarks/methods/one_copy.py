"""The limit: every destination copies exactly its bytes once, out of shared memory."""

from __future__ import annotations

import math
import mmap

import torch
import torch.distributed as dist

from benchmarks.methods.method import Method, RankCase
from benchmarks.regions import region_of

__all__ = ["OneCopy"]


class OneCopy(Method):
    """Source shards lie in shared memory as if the trainer kept its weights there."""

    name = "one_copy"
    about = "limit: torch copy_ of exactly the needed boxes out of shared memory"
    counts_set_up_memory = False

    def __init__(self, case: RankCase) -> None:
        super().__init__(case)
        self._shared: dict[int, dict[str, torch.Tensor]] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def set_up(self) -> None:
        """Maps the shared shards and prepares the views to copy."""
        case = self.case
        ranks = [case.rank] if case.is_source else list(range(case.pair.source.num_ranks))
        if case.is_source:
            self._shared = {rank: self._map(rank) for rank in ranks}
            self.source_changed()
        dist.barrier(case.groups.world)
        if case.is_source:
            return
        self._shared = {rank: self._map(rank) for rank in ranks}
        for tensors in self._shared.values():
            _touch(tensors)
        for parameter in case.workload.parameters:
            for transfer in case.my_transfers(parameter):
                held = region_of(case.pair.source, parameter.shape, transfer.source)
                there = self._shared[transfer.source][parameter.name]
                there = there[transfer.region.slices_within(held)]
                self._copies.append((case.part(parameter, transfer.region), there))

    def source_changed(self) -> None:
        """Copies the trainer's shards to shared memory, where such a trainer would keep them."""
        for shared in self._shared.values() if self.case.is_source else ():
            for name, tensor in shared.items():
                tensor.copy_(self.case.tensors[name])

    def outside_bytes(self) -> int:
        """Returns 0: the files are the trainer's weights."""
        return 0

    def refit(self, version: int) -> None:
        """Copies."""
        for here, there in self._copies:
            here.copy_(there)

    def tear_down(self) -> None:
        """Unmaps."""
        self._copies.clear()
        self._shared.clear()

    def _map(self, rank: int) -> dict[str, torch.Tensor]:
        """Maps the file of one source rank, one 64-byte aligned tensor after the other."""
        case = self.case
        shapes = {
            parameter.name: region_of(case.pair.source, parameter.shape, rank).shape
            for parameter in case.workload.parameters
        }
        sizes = {name: 2 * math.prod(shape) for name, shape in shapes.items()}
        total = sum(-(-size // 64) * 64 for size in sizes.values())
        path = case.folder / f"one-copy-{rank}"
        flat = torch.from_file(str(path), shared=True, size=total // 2, dtype=torch.bfloat16)
        tensors, start = {}, 0
        for name, shape in shapes.items():
            tensors[name] = flat[start // 2 : (start + sizes[name]) // 2].view(shape)
            start += -(-sizes[name] // 64) * 64
        return tensors


def _touch(tensors: dict[str, torch.Tensor]) -> None:
    """Reads one byte per page, so that the mapping counts before the refit and not as its peak."""
    for tensor in tensors.values():
        tensor.view(torch.uint8).reshape(-1)[:: mmap.PAGESIZE].sum()
