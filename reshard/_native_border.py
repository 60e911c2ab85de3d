"""The binding to the native library, and its status codes as exceptions.

Only modules whose names begin with `_native` see `ffi` and `lib`. Importing them loads the native
library, so modules that must work without one import them where they need it.
"""

from __future__ import annotations

from pathlib import Path

from reshard.errors import (
    NativeLibraryError,
    PlanError,
    ReshardError,
    TransferTimeout,
    TransportError,
    UnsupportedError,
)
from reshard.versions import explain_unbuilt

try:
    from reshard._native_bindings import ffi, lib
except ImportError as error:
    raise NativeLibraryError(explain_unbuilt(Path(__file__).resolve().parent, error)) from error

__all__ = ["check", "ffi", "has_cause_elsewhere", "is_abort", "lib"]

_EXCEPTIONS: dict[int, type[Exception]] = {
    lib.RESHARD_STATUS_INVALID_ARGUMENT: PlanError,
    lib.RESHARD_STATUS_UNSUPPORTED: UnsupportedError,
    lib.RESHARD_STATUS_OUT_OF_MEMORY: MemoryError,
    lib.RESHARD_STATUS_SYSTEM: TransportError,
    lib.RESHARD_STATUS_TIMEOUT: TransferTimeout,
    lib.RESHARD_STATUS_PEER_LOST: TransportError,
    lib.RESHARD_STATUS_ABORTED: TransportError,
    lib.RESHARD_STATUS_PROTOCOL: TransportError,
    lib.RESHARD_STATUS_INVALID_STATE: TransportError,
    lib.RESHARD_STATUS_INTERNAL: ReshardError,
}


def check(status: int) -> None:
    """Raises the exception of a status code with the text of the calling thread's last error.

    Raises:
        PlanError: invalid_argument.
        UnsupportedError: unsupported.
        MemoryError: out_of_memory.
        TransferTimeout: timeout.
        TransportError: system, peer_lost, aborted, protocol, invalid_state.
        ReshardError: internal, or a code that this module does not know.
    """
    if status == lib.RESHARD_STATUS_OK:
        return
    message = ffi.string(lib.reshard_last_error()).decode(errors="replace")
    exception = _EXCEPTIONS.get(status, ReshardError)
    if not issubclass(exception, TransportError):
        raise exception(message or f"native status {status}")
    ranks = ffi.new("int64_t[2]")
    lib.reshard_last_error_ranks(ranks, ranks + 1)
    rank, peer = (int(value) if value >= 0 else None for value in ranks)
    raise exception(message, rank=rank, peer=peer, status=status)


def has_cause_elsewhere(error: TransportError) -> bool:
    """Says whether only others know why a run ended: it was aborted, or NCCL lost somebody."""
    is_lost = error.status == int(lib.RESHARD_STATUS_PEER_LOST) and error.peer is None
    return is_abort(error) or is_lost


def is_abort(error: TransportError) -> bool:
    """Says whether a run ended because another process gave up; the cause is then over there."""
    return error.status == int(lib.RESHARD_STATUS_ABORTED)
