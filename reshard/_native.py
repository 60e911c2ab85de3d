"""Handles of the native library: programs, communicators, sums."""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from reshard._native_border import check, is_abort
from reshard._native_border import ffi as _ffi
from reshard._native_border import lib as _lib
from reshard.errors import (
    PlanError,
    TransportError,
)
from reshard.exclusive import Exclusive, Hold
from reshard.run_stats import ProgramInfo, RunStats

__all__ = [
    "Communicator",
    "Program",
    "ProgramInfo",
    "RunStats",
    "check",
    "fingerprints",
    "has_equal_structs",
    "is_abort",
    "show_versions",
]

# A run is cut into slices so that Python can handle signals between them.
_SLICE_NS = 100_000_000
_NS_PER_S = 1_000_000_000
_MAX_TIMEOUT_S = 1e9
# A run ends within a slice of its abort; only a call from inside that run would wait for ever.
_CLOSE_TIMEOUT_S = 30.0

DEFAULT_SLOT_BYTES = 262_144
DEFAULT_SLOTS_PER_RING = 4


class Communicator:
    """Carries bytes between processes. Make one with `Communicator.shm`, then `connect`.

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
        timeout_ns = _nanoseconds(timeout_s)
        with _exclusive(self._busy, "communicator"):
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


class Program:
    """What one process sends, receives and zero-fills in every run.

    Args:
        streams: rows of 3: direction (0 send, 1 receive), source rank, destination rank.
        operations: rows of 6 + 2 * ndim: stream, buffer, offset in bytes, memory dtype code, wire
            dtype code, ndim, sizes (outermost first), strides in bytes.
        zeros: rows of 4 + 2 * ndim: buffer, offset in bytes, element size, ndim, sizes, strides.
        extents: rows of 2, one per buffer: the byte range that may be touched.
        num_buffers: how many addresses a run takes.
        chunk_bytes: largest message; the same on both ends of every stream.

    Raises:
        PlanError: a table is wrong; names table, row and values.
        UnsupportedError: a cast does not exist.
    """

    def __init__(
        self,
        streams: array[int],
        operations: array[int],
        zeros: array[int],
        extents: array[int],
        num_buffers: int,
        chunk_bytes: int,
    ) -> None:
        tables = _ffi.new("reshard_program_tables *")
        tables.size = _ffi.sizeof("reshard_program_tables")
        borrowed = []
        for name, table in (
            ("streams", streams),
            ("operations", operations),
            ("zeros", zeros),
            ("extents", extents),
        ):
            view = _int64_view(name, table)
            borrowed.append(view)
            setattr(tables, name, view)
            setattr(tables, f"{name}_length", len(table))
        tables.num_buffers = num_buffers
        tables.chunk_bytes = chunk_bytes
        out = _ffi.new("reshard_program **")
        check(_lib.reshard_program_create(tables, out))
        self._handle: Any = _ffi.gc(out[0], _lib.reshard_program_destroy)
        self._busy = Exclusive()

    def describe(self) -> ProgramInfo:
        """Returns what a run of this program moves."""
        info = _ffi.new("reshard_program_info *")
        info.size = _ffi.sizeof("reshard_program_info")
        check(_lib.reshard_program_describe(self._open_handle(), info))
        return ProgramInfo(*(getattr(info, name) for name in ProgramInfo.__annotations__))

    def run(
        self,
        communicator: Communicator | None,
        addresses: array[int],
        *,
        run_id: int,
        timeout_s: float,
        num_threads: int = 1,
    ) -> RunStats:
        """Moves everything once; returns when all bytes are in place at both ends.

        Args:
            communicator: carries bytes between processes; None when all streams are local.
            addresses: one address per buffer (typecode 'Q'). The memory must stay alive and, where
                it is received into, untouched until the call returns.
            run_id: the same on all processes of a run, new for each run.
            timeout_s: seconds for the whole run.
            num_threads: threads that may copy.

        Raises:
            PlanError: the arguments do not fit the program; nothing moved.
            TransferTimeout: the time was over; names who was silent.
            TransportError: a peer died, aborted or disagrees. The communicator is aborted and the
                received data is incomplete.

        Collective: every process of the communicator runs its program with the same `run_id`.
        """
        options = _ffi.new("reshard_run_options *")
        options.size = _ffi.sizeof("reshard_run_options")
        options.run_id = run_id
        options.timeout_ns = _nanoseconds(timeout_s)
        options.num_threads = num_threads
        stats = _ffi.new("reshard_run_stats *")
        stats.size = _ffi.sizeof("reshard_run_stats")
        pointers = _ffi.cast("void *const *", _ffi.from_buffer("uint64_t[]", addresses))
        carrier_busy = self._busy if communicator is None else communicator._busy
        with _exclusive(self._busy, "program"), _exclusive(carrier_busy, "communicator"):
            carrier = _ffi.NULL if communicator is None else communicator._open_handle()
            handle = self._open_handle()
            check(_lib.reshard_program_begin(handle, carrier, pointers, len(addresses), options))
            check(_progress_to_end(handle, stats))
        return RunStats(*(getattr(stats, name) for name in RunStats.__annotations__))

    def close(self) -> None:
        """Frees the program; closing twice is fine."""
        if self._busy.is_of_parent:
            return
        with _exclusive(self._busy, "program"):
            handle, self._handle = self._handle, None
            if handle is not None:
                _ffi.release(handle)

    def _open_handle(self) -> Any:  # noqa: ANN401 (a cffi pointer has no public type)
        if self._handle is None:
            raise PlanError("program: used after close().")
        return self._handle


def _exclusive(busy: Exclusive, what: str) -> Hold:
    """Holds what one thread at a time may run; raises instead of waiting for another one."""
    text = f"{what}: another thread runs it. Use one {what} per thread."
    return busy.hold(lambda: TransportError(text))


def _nanoseconds(timeout_s: float) -> int:
    """Returns a time limit in the unit of the native library."""
    if not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise PlanError(f"timeout_s {timeout_s} is not above 0 and at most {_MAX_TIMEOUT_S:g}.")
    return max(1, round(timeout_s * _NS_PER_S))


def _int64_view(name: str, table: array[int]) -> Any:  # noqa: ANN401
    """Returns a cffi pointer to the values of an array of typecode 'q'."""
    if table.typecode != "q":
        raise PlanError(f"{name} table: typecode {table.typecode!r} is not 'q'.")
    return _ffi.from_buffer("int64_t[]", table) if len(table) else _ffi.NULL


def _progress_to_end(handle: Any, stats: Any) -> int:  # noqa: ANN401
    """Drives a begun run; an exception between two slices (Ctrl-C) cancels it."""
    is_over = False
    try:
        while True:
            status: int = _lib.reshard_program_progress(handle, _SLICE_NS, stats)
            if status != _lib.RESHARD_STATUS_IN_PROGRESS:
                is_over = True
                return status
    finally:
        if not is_over:
            _lib.reshard_program_cancel(handle, b"the run was interrupted")


def fingerprints(table: array[int], addresses: array[int], num_slots: int) -> array[int]:
    """Returns the sums of fingerprints of regions, one per slot (typecode 'Q').

    Args:
        table: rows of 8 + 3 * ndim: slot, buffer, offset in bytes, memory dtype code, stored dtype
            code, seed (as a signed 64-bit number), ndim, sizes, strides in bytes, index strides,
            index base.
        addresses: one address per buffer (typecode 'Q'); the caller answers for what is touched.
        num_slots: how many sums.
    """
    sums = array("Q", bytes(8 * num_slots))
    pointers = _ffi.cast("void *const *", _ffi.from_buffer("uint64_t[]", addresses))
    regions, out = _int64_view("regions", table), _ffi.from_buffer("uint64_t[]", sums)
    check(_lib.reshard_fingerprint(regions, len(table), pointers, len(addresses), out, num_slots))
    return sums


def show_versions() -> dict[str, str]:
    """Returns version, file and CPU features of the native library, for bug reports."""
    return {
        "native version": _ffi.string(_lib.reshard_version()).decode(),
        "cpu features": _ffi.string(_lib.reshard_cpu_features()).decode(),
    }


def has_equal_structs() -> bool:
    """Says whether binding and library are of one build, by the sizes of all structs."""
    names = ("program_tables", "program_info", "run_options", "run_stats", "shm_options")
    sizes = _ffi.new("size_t[]", len(names))
    count = _lib.reshard_abi_sizes(sizes, len(names))
    ours = [_ffi.sizeof(f"reshard_{name}") for name in names]
    return count == len(names) and ours == list(sizes)
