"""The torch trainer's end of a refit."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self, SupportsIndex

import torch.distributed as dist

import reshard
from reshard import DEFAULT_STAGING_BYTES, Casts, Forms, Paddings, RefitReport, Topology, Transport
from reshard_torch.side import Side
from reshard_torch.streams import streams_of
from reshard_torch.tensors import TensorReader, Tensors

__all__ = ["Source"]


class Source:
    """Publishes the weights of a module or of named tensors; rank 0 hosts the store.

    Args:
        address: `tcp://host:port` at which destinations meet this source.
        tensors: a module, or name -> tensor, DTensor, or (tensor, layout[, global shape]). Plain
            tensors are replicated.
        forms: how stored tensors relate to canonical ones, such as
            `reshard_torch.models.transformers_qwen3(config)`. None: they are stored as they are.
        process_group: the ranks of this side; None means the default group, or this process alone
            if there is none.
        buffers: of a module, publish its persistent buffers too, such as running statistics of
            norms. False on both sides leaves them out.
        padding: what stored elements are that no canonical tensor covers: `refuse`, `keep`,
            `zero`; for all, or by stored name.
        token: shared secret of all programs; required unless the address is loopback.
        casts: (source dtype, destination dtype) conversions that are wanted.
        allow_unmatched: shell-style patterns of canonical names that may stay without a partner.
        staging_bytes: memory of this process for chunks under way.
        transport: `auto` goes by the memory that the weights of all programs are in; `shm` moves
            host memory between processes of one machine, `nccl` GPU memory (docs/nccl.md).
        min_destinations: how many destination programs a publish needs at least. Those that took
            part before are waited for too, until they close, die or miss one.
        timeout_s: limit of every wait unless a call gives its own.

    Raises:
        LayoutError, UnsupportedError: naming the tensor that cannot be described, or what `nccl`
            lacks here.
        RendezvousError: the address cannot be used.

    Collective: every rank of the process group.

    Example:
        >>> source = reshard_torch.Source("tcp://10.0.0.1:29500", model)  # doctest: +SKIP
        >>> report = source.publish(version=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str,
        tensors: Tensors,
        *,
        forms: Forms | None = None,
        process_group: dist.ProcessGroup | None = None,
        buffers: bool = True,
        padding: Paddings = "refuse",
        token: str | None = None,
        casts: Casts = (),
        allow_unmatched: Iterable[str] = (),
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        min_destinations: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        side = Side.of_group(process_group)
        self._tensors = tensors
        self._reader = TensorReader(side, forms=forms, buffers=buffers, padding=padding)
        self._end = reshard.Source(
            address,
            (),
            ranks=(side.rank,),
            num_ranks=side.num_ranks,
            process=side.rank,
            num_processes=side.num_ranks,
            token=token,
            casts=casts,
            allow_unmatched=allow_unmatched,
            staging_bytes=staging_bytes,
            transport=transport,
            min_destinations=min_destinations,
            timeout_s=timeout_s,
        )
        with self._end.opening():
            self._end.replace_specs(self._reader.read(tensors).specs)

    @property
    def address(self) -> str | None:
        """Where destinations meet this source; only its rank 0 knows (port 0 picks a port)."""
        return self._end.address

    @property
    def report(self) -> RefitReport | None:
        """The last finished refit."""
        return self._end.report

    @property
    def topology(self) -> Topology | None:
        """As in `reshard.Source.topology`."""
        return self._end.topology

    def publish(
        self,
        tensors: Tensors | None = None,
        *,
        version: SupportsIndex,
        timeout_s: float | None = None,
        verify: bool = True,
    ) -> RefitReport:
        """Moves the weights into every destination, and returns when all have all of them.

        The tensors are read anew, so parameters may have been replaced since; if shapes, dtypes or
        placements changed too, all programs plan anew. They may be changed again as soon as this
        returns or raises.

        Args:
            tensors: the weights; None means those that the constructor got.
            version: must be larger than that of the last finished publish.
            timeout_s: how long to wait for the others. Once all are there, the longest limit that
                any of them gave holds for everybody. None means that of the constructor.
            verify: compare fingerprints of all tensors afterwards.

        Raises:
            LayoutError, PlanError, UnsupportedError: something does not fit; nothing moved.
            TransferTimeout: somebody did not come; the message says who.
            TransportError: a destination failed; the next publish goes on without it.
            VerificationError: values differ after the refit.

        Collective: every rank of the source, and `refit` on every rank of every destination.

        Stream: on GPUs, torch's current stream of the device: weights are read after what is queued
            there, and what is queued there later may change them.
        """
        with self._end.calling():
            if tensors is not None:
                self._tensors = tensors
            with self._end.telling_others():
                current = self._reader.read(self._tensors)
                self._end.replace_specs(current.specs)
                buffers = current.buffers()
                streams = streams_of(buffers)
            return self._end.publish(
                buffers, version=version, verify=verify, timeout_s=timeout_s, streams=streams
            )

    def describe_plan(self) -> str:
        """Returns the summary of the current plan; there is one after the first refit."""
        return self._end.describe_plan()

    def close(self) -> None:
        """Leaves, closes the store, and frees everything; closing twice is fine."""
        self._end.close()

    def __repr__(self) -> str:
        return repr(self._end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
