"""The trainer's end of a refit."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from reshard.buffers import Buffer, BufferKey
from reshard.copy_rate import probe_copy_rate
from reshard.end_arguments import NO_STREAMS
from reshard.errors import LayoutError
from reshard.refit_end import RefitEnd
from reshard.report import RefitReport
from reshard.store_server import StoreServer
from reshard.tensor_spec import TensorSpec

__all__ = ["Source"]

_MAX_VERSION = (1 << 62) - 1  # what every message of the control plane can hold


class Source(RefitEnd):
    """Publishes weights; process 0 of the source program hosts the store at the address.

    Arguments are those of `RefitEnd`, without the role. `group` may be left out.

    Example: see `reshard_torch.Source` and `reshard_jax.Source`, which make specs and buffers out
    of framework objects.
    """

    def __init__(
        self,
        address: str,
        specs: Sequence[TensorSpec],
        *,
        process: int = 0,
        group: str = "source",
        token: str | None = None,
        **options: Any,  # noqa: ANN401 (those of RefitEnd)
    ) -> None:
        self._version = -1
        self._server = StoreServer(address, token=token) if process == 0 else None
        meeting = address if self._server is None else self._server.local_address
        try:
            super().__init__(
                "source", meeting, specs, process=process, group=group, token=token, **options
            )
        except BaseException:
            self._close_server()
            raise
        if process == 0:
            self._copy_rate = probe_copy_rate()

    @property
    def address(self) -> str | None:
        """Where destinations meet this source; only its process 0 knows (port 0 picks a port)."""
        return None if self._server is None else self._server.address

    def publish(
        self,
        buffers: Mapping[BufferKey, Buffer],
        *,
        version: SupportsIndex,
        verify: bool = True,
        timeout_s: float | None = None,
        streams: Mapping[int, int] = NO_STREAMS,
    ) -> RefitReport:
        """Moves the weights into every destination, and returns when all have all of them.

        The memory of `buffers` may be changed again as soon as this returns or raises.

        Args:
            buffers: local arrays per (rank, stored name).
            version: a whole number from 0 to 2**62 - 1, larger than that of the last finished
                publish; NumPy, torch and JAX integers are taken too.
            verify: compare fingerprints of all tensors afterwards.
            timeout_s: how long to wait for the others. Once all are there, the longest limit that
                any of them gave holds for everybody. None means that of the constructor.
            streams: by rank, the handle of the CUDA stream on which the caller works with its
                memory; 0 is the legacy default stream. Ranks in host memory have none.

        Raises:
            LayoutError, PlanError: something does not fit; nothing moved, on any rank.
            TransferTimeout: somebody did not come; the message says who.
            TransportError: a destination failed; it is torn, and the next publish goes on without
                it.
            VerificationError: values differ after the refit.

        Collective: every process of the source, and `refit` on every process of every destination.

        Stream: the work is ordered after what the caller queued on its streams so far, and what it
            queues there later comes after the work. Where a rank has no stream, its memory must be
            ready when this is called, and is done with when this returns.
        """
        with self.calling():
            with self.telling_others():
                number = self._next_version(version)
            report = self._take_part(
                buffers, version=number, verify=verify, timeout_s=timeout_s, streams=streams
            )
            self._version = number
            return report

    def _next_version(self, given: SupportsIndex) -> int:
        number = _read_version(given)
        if number <= self._version:
            raise LayoutError(
                f"version {number} was published before (last was {self._version}). "
                f"Versions have to grow: give {self._version + 1} or more."
            )
        return number

    def _free(self) -> None:
        super()._free()
        self._close_server()

    def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _read_version(given: object) -> int:
    """Returns a version as a number; booleans and floats are slips, not versions."""
    is_bool = isinstance(given, bool) or str(getattr(given, "dtype", "")).endswith("bool")
    try:
        number = -1 if is_bool else operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= _MAX_VERSION:
        raise LayoutError(
            f"version={given!r} is not a version. Give a whole number from 0 to 2**62 - 1, such as "
            "the number of the training step."
        )
    return number
