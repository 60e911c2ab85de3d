"""One tensor, or many, from one mesh to another inside one process group."""

from __future__ import annotations

from itertools import zip_longest
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from reshard import (
    DEFAULT_STAGING_BYTES,
    Casts,
    JobSides,
    LayoutError,
    OneCall,
    RefitReport,
    Session,
    StoreExchange,
    TensorSpec,
    Transport,
    job_session,
)
from reshard_torch.compat import group_or_default
from reshard_torch.exchange import exchange_of_group
from reshard_torch.side import Side
from reshard_torch.streams import streams_of
from reshard_torch.tensors import TensorReader, Tensors, TensorSet

__all__ = ["Redistribution", "redistribute"]

Given = torch.Tensor | Tensors | None
Destinations = TypeVar("Destinations", bound=Given)

_SINGLE = "tensor"


def redistribute(
    src: Given,
    dst: Destinations,
    group: dist.ProcessGroup | None = None,
    *,
    casts: Casts = (),
    transport: Transport = "auto",
    timeout_s: float = 60.0,
    verify: bool = True,
) -> Destinations:
    """Writes a distributed tensor into another one, on any mesh, with any placements.

    `DTensor.redistribute` keeps the mesh. Here source and destination may be on different ranks, on
    some of the same ranks or on all of them, in any order, and each element moves once.

    Args:
        src: the DTensor as this rank has it, or names -> tensors; None on a rank without a part.
        dst: the DTensor to write into, or names -> tensors; None on a rank without a part.
        group: all ranks of both; None means the default group.
        casts: (source dtype, destination dtype) conversions that are wanted.
        transport: `auto` goes by the memory that the tensors are in; `shm` moves host memory
            between processes of one machine, `nccl` GPU memory (docs/nccl.md).
        timeout_s: limit for all of it.
        verify: compare fingerprints afterwards.

    Returns:
        `dst`, written in place.

    Raises:
        LayoutError, PlanError, UnsupportedError: something does not fit; nothing was written, on
            any rank.
        TransferTimeout: a rank did not come; the message says which.
        TransportError: a rank failed; the destination is incomplete.
        VerificationError: values differ afterwards.

    Collective: every rank of the group, those without a part too. Ranks count calls: after one of
        them left a call out, use a new group.

    Example:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> mesh = init_device_mesh("cpu", (1,))
        >>> rows = distribute_tensor(torch.arange(6).reshape(2, 3), mesh, [Shard(0)])
        >>> columns = distribute_tensor(torch.zeros(2, 3, dtype=torch.int64), mesh, [Shard(1)])
        >>> redistribute(rows, columns).to_local().tolist()
        [[0, 1, 2], [3, 4, 5]]
        >>> dist.destroy_process_group()
    """
    with Redistribution(
        src, dst, group, casts=casts, transport=transport, timeout_s=timeout_s
    ) as plan:
        plan.run(verify=verify)
    return dst


class Redistribution:
    """A redistribution that is planned once and run again and again.

    Arguments are those of `redistribute`, and:
        staging_bytes: memory of this process for chunks under way.

    Collective: every rank of the group makes, runs and closes it, in the same order as others.
    """

    def __init__(
        self,
        src: Given,
        dst: Given,
        group: dist.ProcessGroup | None = None,
        *,
        casts: Casts = (),
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        timeout_s: float = 60.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._num_runs = 0
        self._calls = OneCall("this Redistribution")
        self._side = Side.of_group(group)
        self._given = _named(src), _named(dst)
        self._readers = TensorReader(self._side), TensorReader(self._side)
        self._session: Session | None = None
        self._exchange = _next_exchange(group)
        try:
            tensors = self._read()
            self._specs = tensors[0].specs, tensors[1].specs
            sides = _checked(*tensors)
            self._devices = sides.devices
            self._session = self._make_session(sides, casts, staging_bytes, transport)
        except BaseException as error:
            self._exchange.fail(error)
            self.close()
            raise

    def run(self, *, timeout_s: float | None = None, verify: bool = True) -> RefitReport:
        """Writes the destination anew with what the source holds now.

        Args:
            timeout_s: limit; None means that of the constructor.
            verify: compare fingerprints afterwards.

        Raises:
            LayoutError: a tensor is not what it was when this was made, or this is closed.
            TransferTimeout, TransportError, VerificationError: as for `redistribute`; make a new
                Redistribution afterwards.

        Collective: every rank of the group.
        """
        with self._calls.calling():
            return self._run(self._timeout_s if timeout_s is None else timeout_s, verify)

    def _run(self, timeout_s: float, verify: bool) -> RefitReport:
        if self._session is None:
            raise LayoutError("this Redistribution is closed; make a new one.")
        self._num_runs += 1
        try:
            src, dst = self._read()
            for before, now in zip(self._specs, (src.specs, dst.specs), strict=True):
                _check_same(before, now)
            sides = _checked(src, dst)
            self._check_devices(sides.devices)
            buffers = sides.src_buffers, sides.dst_buffers
            streams = streams_of(*buffers)  # refuses that a graph is captured
            try:
                report = self._session.refit(
                    self._exchange,
                    *buffers,
                    streams=streams,
                    run_id=self._num_runs,
                    version=self._num_runs,
                    epoch=0,
                    verify=verify,
                    timeout_s=timeout_s,
                    phases={},
                )
            finally:
                dst.mark_written()
        except BaseException as error:
            self._exchange.fail(error)
            self.close()
            raise
        dst.check_unmoved()
        return report

    def close(self) -> None:
        """Frees everything; closing twice is fine."""
        session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        finally:
            self._exchange.leave()

    def __repr__(self) -> str:
        plan = "closed" if self._session is None else repr(self._session.plan)
        return f"<Redistribution on rank {self._side.rank} of {self._side.num_ranks}: {plan}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_devices(self, now: dict[int, int | None]) -> None:
        if now != self._devices:
            raise LayoutError(
                f"the tensors of rank {self._side.rank} are in other memory than when this "
                "Redistribution was made. Make a new one for them."
            )

    def _read(self) -> tuple[TensorSet, TensorSet]:
        src, dst = self._given
        return self._readers[0].read(src), self._readers[1].read(dst)

    def _make_session(
        self, sides: JobSides, casts: Casts, staging_bytes: int, transport: Transport
    ) -> Session:
        everybody = range(self._side.num_ranks)
        return job_session(
            self._exchange,
            [(rank,) for rank in everybody],
            [f"rank {rank}" for rank in everybody],
            sides,
            casts=casts,
            staging_bytes=staging_bytes,
            transport=transport,
            timeout_s=self._timeout_s,
        )


def _named(given: Given) -> Tensors:
    if given is None:
        return {}
    return {_SINGLE: given} if isinstance(given, torch.Tensor) else given


def _checked(src: TensorSet, dst: TensorSet) -> JobSides:
    """Returns what this rank has of both sides.

    Raises:
        LayoutError: if memory does not fit the specs, or a destination shares some with a source.
    """
    sides = JobSides(src.specs, dst.specs, src.buffers(), dst.buffers())
    sides.check([src.rank])
    return sides


def _check_same(before: tuple[TensorSpec, ...], now: tuple[TensorSpec, ...]) -> None:
    for old, new in zip_longest(before, now):
        if old != new:
            raise LayoutError(
                f"{(old or new).name}: was {old} when this Redistribution was made and is now "
                f"{new}. Make a new one for other tensors."
            )


_num_calls: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def _next_exchange(group: dist.ProcessGroup | None) -> StoreExchange:
    """Returns an exchange of its own for the next call on a group; ranks count calls alike."""
    key = group_or_default(group)
    _num_calls[key] = _num_calls.get(key, 0) + 1
    return exchange_of_group(group, f"redistribution/{_num_calls[key]}")
