"""The engine's end of a refit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from reshard.buffers import Buffer, BufferKey
from reshard.end_arguments import NO_STREAMS
from reshard.refit_end import RefitEnd
from reshard.report import RefitReport
from reshard.tensor_spec import TensorSpec

__all__ = ["Destination", "State"]

State = Literal["empty", "torn", "ready"]


class Destination(RefitEnd):
    """Receives weights.

    Arguments are those of `RefitEnd`, without the role. `group` names the engine program; engines
    that refit from one source need different names.

    Attributes:
        state: `empty` before the first refit, `ready` when all processes of all destinations have a
            whole version, `torn` from the first byte of a refit until then.
        version: the version that the memory holds, or None unless `ready`.
    """

    def __init__(
        self,
        address: str,
        specs: Sequence[TensorSpec],
        *,
        group: str = "destination",
        **options: Any,  # noqa: ANN401 (those of RefitEnd)
    ) -> None:
        self.state: State = "empty"
        self.version: int | None = None
        super().__init__("destination", address, specs, group=group, **options)

    def refit(
        self,
        buffers: Mapping[BufferKey, Buffer],
        *,
        timeout_s: float | None = None,
        streams: Mapping[int, int] = NO_STREAMS,
    ) -> RefitReport:
        """Waits for the source to publish, and returns when this version is whole everywhere.

        Args:
            buffers: local arrays per (rank, stored name), written in place.
            timeout_s: how long to wait for the others. Once all are there, the longest limit that
                any of them gave holds for everybody. None means that of the constructor.
            streams: by rank, the handle of the CUDA stream on which the caller works with its
                memory; 0 is the legacy default stream. Ranks in host memory have none.

        Raises:
            LayoutError, PlanError: something does not fit; nothing was written, on any rank.
            TransferTimeout: somebody did not come; the message says who.
            TransportError: a member failed; `state` tells if anything was written. Calling again
                joins the next publish, which brings everything.
            VerificationError: values differ after the refit; `state` is `torn`.

        Collective: every process of every destination, and `publish` on every process of the
            source.

        Stream: the work is ordered after what the caller queued on its streams so far, and what it
            queues there later comes after the work. Where a rank has no stream, its memory must be
            ready when this is called, and is done with when this returns.
        """
        with self.calling():
            report = self._take_part(
                buffers, version=None, verify=False, timeout_s=timeout_s, streams=streams
            )
            self.state, self.version = "ready", report.version
            return report

    def _before_move(self) -> None:
        self.state, self.version = "torn", None
