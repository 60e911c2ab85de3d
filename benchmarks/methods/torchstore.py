"""torchstore: put into storage volumes in shared memory, get into the other layout.

Needs torchstore with its SPMD mode and a torchmonarch that has the parts it calls; the README of
this folder names versions that work. Without them the method is skipped with the reason.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import Any

import torch.distributed as dist

from benchmarks import memory
from benchmarks.methods.method import Method, RankCase

__all__ = ["TorchStore"]

_ADDRESS = "127.0.0.1"


class TorchStore(Method):
    """One storage volume per rank; the store lives as long as the processes."""

    name = "torchstore"
    about = "torchstore put_state_dict + get_state_dict, shared memory, one volume per rank"
    may_follow_at_once = False

    # A process can join a store only once; None before.
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, case: RankCase) -> None:
        super().__init__(case)
        self._store: Any = importlib.import_module("torchstore")
        self._state: dict[str, Any] = {}
        self._key = f"{case.workload.name}-{case.pair.name}"

    @classmethod
    def unavailable(cls) -> str | None:
        """Names what is missing."""
        try:
            store = importlib.import_module("torchstore")
        except ImportError as error:
            return f"torchstore cannot be imported ({error})"
        if not hasattr(store, "initialize_spmd"):
            return "this torchstore has no SPMD mode (initialize_spmd); a newer one is needed"
        return None

    def set_up(self) -> None:
        """Starts the storage volumes, on the first case only."""
        self._state = dict(self.case.dtensors)
        if TorchStore._loop is None:
            TorchStore._loop = asyncio.new_event_loop()
            self._run(self._join())

    def refit(self, version: int) -> None:
        """Puts on the source, waits for all of it, gets on the destination, in place."""
        if self.case.is_source:
            self._run(self._store.put_state_dict(self._state, self._key))
        dist.barrier(self.case.groups.world)
        if not self.case.is_source:
            self._run(self._store.get_state_dict(self._key, user_state_dict=self._state))

    def outside_bytes(self) -> int:
        """Returns what the storage volumes, children of the ranks, hold."""
        return sum(memory.proportional_bytes_of(pid) for pid in memory.descendants_of(os.getpid()))

    def tear_down(self) -> None:
        """Deletes what was stored."""
        dist.barrier(self.case.groups.world)
        if self.case.process == 0:
            self._run(self._delete())
        dist.barrier(self.case.groups.world)
        self._state.clear()

    @classmethod
    def leave(cls) -> None:
        """Ends the storage volumes."""
        if cls._loop is not None:
            store = importlib.import_module("torchstore")
            cls._loop.run_until_complete(store.shutdown())
            cls._loop.close()
            cls._loop = None

    async def _join(self) -> None:
        world = dist.get_world_size()
        rank = str(self.case.process)
        os.environ.update(RANK=rank, LOCAL_RANK=rank)  # the strategy reads them
        spmd = importlib.import_module("torchstore.spmd")
        environment = spmd.SPMDEnv(
            rank=self.case.process,
            local_rank=self.case.process,
            world_size=world,
            local_world_size=world,
            master_addr=_ADDRESS,
            master_port=self.agreed_port(),
        )
        strategy = self._store.LocalRankStrategy()
        await self._store.initialize_spmd(strategy=strategy, env=environment)

    async def _delete(self) -> None:
        await self._store.delete_batch(await self._store.keys(self._key))

    @staticmethod
    def _run(call: Any) -> Any:  # noqa: ANN401 (whatever the store returns)
        loop = TorchStore._loop
        if loop is None:
            message = "the store has not been joined"
            raise RuntimeError(message)
        return loop.run_until_complete(call)
