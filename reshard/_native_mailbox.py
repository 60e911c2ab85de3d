"""Mailboxes: where the devices of a compiled program of XLA meet the end that refits for them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from reshard._native_border import check
from reshard._native_border import ffi as _ffi
from reshard._native_border import lib as _lib
from reshard._native_libraries import CudaLibrary
from reshard.errors import (
    LayoutError,
    PlanError,
    TransferTimeout,
    TransportError,
    UnsupportedError,
    VerificationError,
)

__all__ = ["Answering", "Mailbox", "MailboxCall", "xla_handler"]

_NS_PER_S = 1_000_000_000

# What an answer may be; the first that fits.
_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (LayoutError, _lib.RESHARD_STATUS_INVALID_ARGUMENT),
    (PlanError, _lib.RESHARD_STATUS_INVALID_ARGUMENT),
    (UnsupportedError, _lib.RESHARD_STATUS_UNSUPPORTED),
    (VerificationError, _lib.RESHARD_STATUS_PROTOCOL),
    (TransferTimeout, _lib.RESHARD_STATUS_TIMEOUT),
    (TransportError, _lib.RESHARD_STATUS_ABORTED),
    (MemoryError, _lib.RESHARD_STATUS_OUT_OF_MEMORY),
)


class MailboxCall(NamedTuple):
    """A call of a compiled program that all devices of this process have made.

    Attributes:
        site: from which place in programs.
        timeout_s: what is left of its limit; may be negative.
        operands: addresses, per device of the site and then per operand. Memory without elements
            has an address that means nothing.
        versions: per device; 0 without a version.
        streams: per device, the CUDA stream that the program works on; 0 for host memory.
    """

    site: int
    timeout_s: float
    operands: tuple[tuple[int, ...], ...]
    versions: tuple[int, ...]
    streams: tuple[int, ...]


class Mailbox:
    """Where the devices of a compiled program meet whoever serves their calls.

    A program calls `xla_handler` once per device, each call on a thread of its own, and all of them
    wait for one answer. One thread serves: `wait`, then `answering`. Any thread may do the rest.

    Attributes:
        key: what programs know it by; a number that no other mailbox of this process ever has.
    """

    def __init__(self) -> None:
        out = _ffi.new("reshard_mailbox **")
        check(_lib.reshard_mailbox_create(out))
        self._handle: Any = _ffi.gc(out[0], _lib.reshard_mailbox_destroy)
        self.key = int(_lib.reshard_mailbox_key(out[0]))
        self.is_closed = False

    def add_site(
        self,
        devices: Sequence[int],
        operand_sizes: Sequence[int],
        *,
        num_results: int,
        has_version: bool,
    ) -> int:
        """Returns the number of a new place in programs from which devices call.

        Args:
            devices: of this process, as XLA numbers them.
            operand_sizes: elements of each operand on each device.
            num_results: the first so many operands are the results, written in place.
            has_version: whether operand 0 is a version, one int32 or int64.

        Raises:
            PlanError: a device is named twice, or none.
        """
        site = _ffi.new("reshard_mailbox_site *")
        site.size = _ffi.sizeof("reshard_mailbox_site")
        ids = _ffi.new("int32_t[]", list(devices))
        sizes = _ffi.new("int64_t[]", list(operand_sizes))
        site.devices, site.num_devices = ids, len(devices)
        site.operand_sizes, site.num_operands = sizes, len(operand_sizes)
        site.num_results, site.has_version = num_results, has_version
        number = _ffi.new("int64_t *")
        check(_lib.reshard_mailbox_add_site(self._handle, site, number))
        return int(number[0])

    def wait(self, slice_s: float) -> MailboxCall | None:
        """Takes the next call; None if there is none within the slice, or the mailbox is closed.

        What is taken has to be answered: until then its devices wait without a limit, because their
        memory is in use.
        """
        call = _ffi.new("reshard_mailbox_call *")
        call.size = _ffi.sizeof("reshard_mailbox_call")
        status = _lib.reshard_mailbox_wait(self._handle, round(slice_s * _NS_PER_S), call)
        is_none = status == _lib.RESHARD_STATUS_IN_PROGRESS
        if is_none or (status == _lib.RESHARD_STATUS_ABORTED and self.is_closed):
            return None
        check(status)
        count = int(call.num_devices)
        flat = _ffi.unpack(_ffi.cast("uintptr_t *", call.operands), int(call.num_operands))
        width = len(flat) // count
        return MailboxCall(
            int(call.site),
            int(call.timeout_ns) / _NS_PER_S,
            tuple(tuple(flat[i * width : (i + 1) * width]) for i in range(count)),
            tuple(_ffi.unpack(call.versions, count)),
            tuple(_ffi.unpack(call.streams, count)),
        )

    def answering(self) -> Answering:
        """What happens in a `with` of it is the answer to the call that was taken."""
        return Answering(self)

    def close(self, reason: str) -> None:
        """Fails all calls that are not taken, and all later ones; closing twice is fine."""
        self.is_closed = True
        check(_lib.reshard_mailbox_close(self._handle, reason.encode()))

    def _answer(self, error: BaseException | None) -> None:
        status, words = _lib.RESHARD_STATUS_OK, ""
        if error is not None:
            status = _status_of(error)
            words = f"{type(error).__name__}: {error}"
        # A message ends at its first zero, wherever that came from.
        check(_lib.reshard_mailbox_answer(self._handle, status, words.encode()))


class Answering:
    """Answers a call with success, or with the error that ends the `with`.

    An error goes to the program whose call it is, which raises it; it is not raised here as well.

    Args:
        mailbox: of which a call was taken.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._mailbox._answer(error)
        return isinstance(error, Exception)


def xla_handler(platform: str) -> int:
    """Returns the address of the function that programs of a platform call.

    Args:
        platform: `cpu`, or `CUDA`, which opens the CUDA driver.

    Raises:
        UnsupportedError: the driver cannot be opened.
    """
    name = "reshard_xla_refit"
    if platform == "CUDA":
        _lib.reshard_xla_use_cuda(CudaLibrary().handle)
        name = "reshard_xla_refit_cuda"
    return int(_ffi.cast("uintptr_t", _ffi.addressof(_lib, name)))


def _status_of(error: BaseException) -> int:
    # An error of the native run has its own code; those of the control plane have none.
    if isinstance(error, TransportError) and error.status is not None:
        return error.status
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return int(_lib.RESHARD_STATUS_INTERNAL)
