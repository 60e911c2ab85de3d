"""torch Distributed Checkpoint through shared memory: save the source, load the destination."""

from __future__ import annotations

import warnings

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from benchmarks.methods.method import Method, RankCase

__all__ = ["Checkpoint"]


class Checkpoint(Method):
    """The files lie in shared memory, so no disk is involved; one file per rank, no fsync."""

    name = "dcp"
    about = "torch DCP: save to /dev/shm, load into the other layout"
    may_follow_at_once = False

    def __init__(self, case: RankCase) -> None:
        super().__init__(case)
        self._state: dict[str, DTensor] = {}
        self._path = str(case.folder / "checkpoint")

    def set_up(self) -> None:
        """Wraps the shards in DTensors; no copies."""
        self._state = self.case.dtensors

    def refit(self, version: int) -> None:
        """Saves on the source, waits for all of it, loads on the destination, in place."""
        if self.case.is_source:
            writer = FileSystemWriter(
                self._path, single_file_per_rank=True, sync_files=False, overwrite=True
            )
            save(self._state, storage_writer=writer, process_group=self.case.groups.source)
        dist.barrier(self.case.groups.world)
        if not self.case.is_source:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                load(
                    self._state,
                    storage_reader=FileSystemReader(self._path),
                    process_group=self.case.groups.destination,
                )

    def tear_down(self) -> None:
        """Drops the DTensors; the files go with the folder of the case."""
        self._state.clear()
