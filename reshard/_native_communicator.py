"""Communicators of the native library: over shared memory, and over NCCL."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from reshard._native_border import check
from reshard._native_border import ffi as _ffi
from reshard._native_border import lib as _lib
from reshard._native_libraries import CudaLibrary, NcclLibrary
from reshard.errors import PlanError, TransportError
from reshard.exclusive import Exclusive, Hold

__all__ = ["Communicator", "GpuRank", "exclusive", "nanoseconds"]

_SLICE_NS = 100_000_000  # so that Python can handle signals in between
_NS_PER_S = 1_000_000_000
_MAX_TIMEOUT_S = 1e9
# A run ends within a slice of its abort; only a call from inside that run would wait for ever.
_CLOSE_TIMEOUT_S = 30.0

DEFAULT_SLOT_BYTES = 262_144
DEFAULT_SLOTS_PER_RING = 4


class GpuRank(NamedTuple):
    """A rank of this process.

    Attributes:
        rank: its number.
        device: ordinal of its GPU.
        kernels: compiled for the GPU; None means copies by the driver alone, which cannot cast.
    """

    rank: int
    device: int
    kernels: bytes | None = None


class Communicator:
    """Carries bytes between ranks. Make one with `shm` or `nccl`, then `connect`.

    Closes itself when it is collected and at exit; closing twice is fine. Not usable after fork.
    """

    def __init__(self) -> None:
        # Filled by the native library: from then on the finalizer frees it, whatever happens.
        self._out = _ffi.new("reshard_communicator **")
        # Held by connect, a run, and close, which must not overlap. Taken before _handle_lock.
        self._busy = Exclusive()
        # Held by calls that any thread may make at any time, so that the handle outlives them.
        # A signal handler may abort inside of such a call, hence reentrant.
        self._handle_lock = threading.RLock()
        self._finalizer = weakref.finalize(self, _destroy, self._out)

    @classmethod
    def shm(
        cls,
        session_key: str,
        process: int,
        rank_to_process: Sequence[int],
        send_peers: Sequence[int],
        receive_peers: Sequence[int],
        slot_bytes: int = DEFAULT_SLOT_BYTES,
        slots_per_ring: int = DEFAULT_SLOTS_PER_RING,
        *,
        token: bytes = b"",
        num_processes: int | None = None,
    ) -> Communicator:
        """Makes this process's end of a communicator over shared memory; waits for nobody.

        Args:
            session_key: 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'; the same on all processes and new
                for every communicator on this machine.
            process: index of this process.
            rank_to_process: the process that drives each rank; the same on all processes.
            send_peers: processes that this one sends to.
            receive_peers: processes that this one receives from.
            slot_bytes: largest message in bytes; the same on all processes.
            slots_per_ring: messages that may be under way from one process to another.
            token: at most 64 bytes that all processes know.
            num_processes: None means that the last process has a rank.

        Raises:
            PlanError: an argument is out of range.
            TransportError: a live process has the same key and index, or the system refused.
        """
        key = _ffi.new("char[]", session_key.encode())
        token_bytes = _ffi.new("char[]", token)
        tables = [
            _ffi.new("int32_t[]", list(t)) for t in (rank_to_process, send_peers, receive_peers)
        ]
        options = _ffi.new("reshard_shm_options *")
        options.size = _ffi.sizeof("reshard_shm_options")
        options.session_key = key
        options.token, options.token_length = token_bytes, len(token)
        options.process = process
        options.num_processes = num_processes or max(rank_to_process, default=-1) + 1
        options.rank_to_process, options.num_ranks = tables[0], len(rank_to_process)
        options.send_peers, options.num_send_peers = tables[1], len(send_peers)
        options.receive_peers, options.num_receive_peers = tables[2], len(receive_peers)
        options.slot_bytes = slot_bytes
        options.slots_per_ring = slots_per_ring
        made = cls()
        check(_lib.reshard_communicator_create_shm(options, made._out))
        return made

    @classmethod
    def nccl(
        cls,
        nccl: NcclLibrary,
        cuda: CudaLibrary,
        unique_id: bytes,
        ranks: Sequence[int],
        local_ranks: Sequence[GpuRank],
        domains: Sequence[int] | None = None,
    ) -> Communicator:
        """Makes this process's end of a communicator over NCCL; waits for nobody.

        Args:
            nccl: the copy of NCCL; of one version on all processes.
            cuda: the driver.
            unique_id: from `NcclLibrary.make_id` of one process.
            ranks: of all processes, ascending; they may leave out numbers.
            local_ranks: of this process, ascending.
            domains: of each of `ranks`; None means that there is no exchange inside domains.

        Raises:
            PlanError: an argument is out of range.
            TransportError: the driver refused.
        """
        numbers = _ffi.new("int64_t[]", list(ranks))
        own = _ffi.new("int64_t[]", [each.rank for each in local_ranks])
        devices = _ffi.new("int32_t[]", [each.device for each in local_ranks])
        images = [
            _ffi.NULL if each.kernels is None else _ffi.from_buffer(each.kernels)
            for each in local_ranks
        ]
        image_table = _ffi.new("void *[]", [_ffi.cast("void *", image) for image in images])
        image_sizes = _ffi.new("uint64_t[]", [len(each.kernels or b"") for each in local_ranks])
        id_bytes = _ffi.from_buffer(unique_id)
        if len(unique_id) != _lib.RESHARD_NCCL_ID_BYTES:
            raise PlanError(
                f"unique_id: {len(unique_id)} bytes given, {_lib.RESHARD_NCCL_ID_BYTES} needed."
            )
        if domains is not None and len(domains) != len(ranks):
            raise PlanError(f"domains: {len(domains)} given for {len(ranks)} ranks.")
        options = _ffi.new("reshard_nccl_options *")
        options.size = _ffi.sizeof("reshard_nccl_options")
        options.nccl, options.cuda = nccl.handle, cuda.handle
        options.id = id_bytes
        options.ranks, options.num_ranks = numbers, len(ranks)
        options.local_ranks, options.devices = own, devices
        options.images, options.image_sizes = image_table, image_sizes
        options.num_local_ranks = len(local_ranks)
        places = _ffi.NULL if domains is None else _ffi.new("int64_t[]", list(domains))
        options.domains = places
        made = cls()
        check(_lib.reshard_communicator_create_nccl(options, made._out))
        return made

    def connect(self, timeout_s: float, *, while_waiting: Callable[[], None] | None = None) -> None:
        """Pairs up with all peers.

        Args:
            timeout_s: how long to wait for them.
            while_waiting: called about every tenth of a second; what it raises ends the wait.

        Raises:
            TransferTimeout: names the processes that are missing.
            TransportError: a peer is set up differently, died or gave up.

        Collective: every process, in any order.
        """
        timeout_ns = nanoseconds(timeout_s)
        with exclusive(self._busy, "communicator"):
            while True:
                handle = self._open_handle()
                status = _lib.reshard_communicator_connect(handle, timeout_ns, _SLICE_NS)
                if status != _lib.RESHARD_STATUS_IN_PROGRESS:
                    break
                if while_waiting is not None:
                    while_waiting()
        check(status)

    def check_peers(self) -> None:
        """Raises TransportError when a peer died or anybody aborted; cheap, any thread."""
        with self._handle_lock:
            check(_lib.reshard_communicator_check_peers(self._open_handle()))

    def abort(self, reason: str) -> None:
        """Makes the current run of all connected processes fail with `reason`; any thread."""
        with self._handle_lock:
            # A reason may name a file with any bytes; to tell it matters more than its spelling.
            text = reason.encode(errors="backslashreplace")
            check(_lib.reshard_communicator_abort(self._open_handle(), text))

    def close(self) -> None:
        """Frees the communicator; a run that is under way on another thread is aborted first."""
        if not self._finalizer.alive:
            return
        if self._busy.is_of_parent:
            self._finalizer()  # does nothing in a forked child
            return
        try:
            self._free(0.0)
        except BlockingIOError:
            self.abort("the communicator was closed during a run.")
            try:
                self._free(_CLOSE_TIMEOUT_S)
            except BlockingIOError:
                raise TransportError(
                    f"communicator: still in use {_CLOSE_TIMEOUT_S} s after its abort."
                ) from None

    def _free(self, timeout_s: float) -> None:
        with self._busy.hold(timeout_s=timeout_s) as hold:
            if not hold.is_outermost:
                raise TransportError(
                    "communicator: closed inside of a run of the same thread, as from a signal "
                    "handler. Abort it there, and close it after the run."
                )
            with self._handle_lock:
                self._finalizer()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_handle(self) -> Any:  # noqa: ANN401
        if not self._finalizer.alive:
            raise TransportError("communicator: used after close().")
        return self._out[0]


def _destroy(out: Any) -> None:  # noqa: ANN401 (a cffi pointer has no public type)
    _lib.reshard_communicator_destroy(out[0])


def exclusive(busy: Exclusive, what: str) -> Hold:
    """Holds what one thread at a time may run; raises instead of waiting for another one."""
    text = f"{what}: another thread runs it. Use one {what} per thread."
    return busy.hold(lambda: TransportError(text))


def nanoseconds(timeout_s: float) -> int:
    """Returns a time limit in the unit of the native library."""
    if not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise PlanError(f"timeout_s {timeout_s} is not above 0 and at most {_MAX_TIMEOUT_S:g}.")
    return max(1, round(timeout_s * _NS_PER_S))
