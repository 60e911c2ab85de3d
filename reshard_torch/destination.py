"""The torch engine's end of a refit."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Literal, Self

import torch.distributed as dist

import reshard
from reshard import DEFAULT_STAGING_BYTES, Casts, Forms, Paddings, RefitReport, Topology, Transport
from reshard_torch.side import Side
from reshard_torch.streams import streams_of
from reshard_torch.tensors import TensorReader, Tensors

__all__ = ["Destination"]


class Destination:
    """Receives weights into a module or named tensors, in place: their addresses stay the same.

    Args:
        address: `tcp://host:port` of the source.
        tensors: a module, or name -> tensor, DTensor, or (tensor, layout[, global shape]). Plain
            tensors are replicated. A tensor that occupies memory with gaps or in another order of
            dims is written as it is.
        forms: how stored tensors relate to canonical ones, such as
            `reshard_torch.models.transformers_qwen3(config)`. None: they are stored as they are.
        process_group: the ranks of this side; None means the default group, or this process alone
            if there is none.
        buffers: of a module, receive its persistent buffers too, such as running statistics of
            norms. False on both sides leaves them out.
        padding: what stored elements are that no canonical tensor covers: `refuse`, `keep`,
            `zero`; for all, or by stored name.
        token: shared secret of all programs; required unless the address is loopback.
        casts: (source dtype, destination dtype) conversions that are wanted.
        allow_unmatched: shell-style patterns of canonical names that may stay without a partner.
        group: name of this program; programs that refit from one source need different names.
        staging_bytes: memory of this process for chunks under way.
        transport: `auto` goes by the memory that the weights of all programs are in; `shm` moves
            host memory between processes of one machine, `nccl` GPU memory (docs/nccl.md).
        timeout_s: limit of every wait unless a call gives its own.

    Raises:
        LayoutError, UnsupportedError: naming the tensor that cannot be described, or what `nccl`
            lacks here.
        RendezvousError: the address is malformed, or lacks a token. Whether somebody is there shows
            in the first refit.

    Collective: every rank of the process group.

    Example:
        >>> destination = reshard_torch.Destination(  # doctest: +SKIP
        ...     "tcp://10.0.0.1:29500", model,
        ...     forms=reshard_torch.models.transformers_qwen3(model.config))
        >>> version = destination.refit(timeout_s=60)  # doctest: +SKIP
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
        group: str = "destination",
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        timeout_s: float = 60.0,
    ) -> None:
        side = Side.of_group(process_group)
        self._tensors = tensors
        self._reader = TensorReader(side, forms=forms, buffers=buffers, padding=padding)
        self._end = reshard.Destination(
            address,
            (),
            ranks=(side.rank,),
            num_ranks=side.num_ranks,
            process=side.rank,
            num_processes=side.num_ranks,
            token=token,
            casts=casts,
            allow_unmatched=allow_unmatched,
            group=group,
            staging_bytes=staging_bytes,
            transport=transport,
            timeout_s=timeout_s,
        )
        with self._end.opening():
            self._end.replace_specs(self._reader.read(tensors).specs)

    @property
    def state(self) -> Literal["empty", "torn", "ready"]:
        """`empty` before the first refit, `ready` with a whole version, else `torn`."""
        return self._end.state

    @property
    def version(self) -> int | None:
        """The version that the tensors hold, or None unless `state` is `ready`."""
        return self._end.version

    @property
    def report(self) -> RefitReport | None:
        """The last finished refit."""
        return self._end.report

    @property
    def topology(self) -> Topology | None:
        """As in `reshard.Source.topology`."""
        return self._end.topology

    def fingerprints(self) -> dict[str, int]:
        """Returns the fingerprint per canonical name of the last refit; empty if not verified."""
        report = self._end.report
        return {} if report is None else dict(report.fingerprints)

    def refit(self, *, timeout_s: float | None = None) -> int:
        """Waits for the source to publish, writes everything in place, and returns the version.

        Nothing may read or write the tensors meanwhile. Autograd is told that they changed.

        Args:
            timeout_s: how long to wait for the others. Once all are there, the longest limit that
                any of them gave holds for everybody. None means that of the constructor.

        Raises:
            LayoutError, PlanError, UnsupportedError: something does not fit; nothing was written.
            TransferTimeout: somebody did not come; the message says who.
            TransportError: a member failed; `state` tells if anything was written. Calling again
                joins the next publish, which brings everything.
            VerificationError: values differ after the refit; `state` is `torn`.

        Collective: every rank of every destination, and `publish` on every rank of the source.

        Stream: on GPUs, torch's current stream of the device: weights are written after what is
            queued there, and what is queued there later reads the new ones. CUDA graphs that hold
            their addresses see them too.
        """
        with self._end.calling():
            with self._end.telling_others():
                current = self._reader.read(self._tensors)
                self._end.replace_specs(current.specs)
                buffers = current.buffers()
                streams = streams_of(buffers)
            try:
                report = self._end.refit(buffers, timeout_s=timeout_s, streams=streams)
            finally:
                current.mark_written()
            current.check_unmoved()
            return report.version

    def describe_plan(self) -> str:
        """Returns the summary of the current plan; there is one after the first refit."""
        return self._end.describe_plan()

    def close(self) -> None:
        """Leaves and frees everything; closing twice is fine."""
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
