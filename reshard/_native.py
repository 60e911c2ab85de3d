"""Handles of the native library: programs, sums; communicators are in `_native_communicator`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from reshard._native_border import check, has_cause_elsewhere, is_abort
from reshard._native_border import ffi as _ffi
from reshard._native_border import lib as _lib
from reshard._native_communicator import Communicator, exclusive, nanoseconds
from reshard.errors import PlanError
from reshard.exclusive import Exclusive
from reshard.run_stats import ProgramInfo, RoundsInfo, RunStats

__all__ = [
    "Communicator",
    "Program",
    "ProgramInfo",
    "RoundsInfo",
    "Run",
    "RunStats",
    "check",
    "fingerprints",
    "has_cause_elsewhere",
    "has_equal_structs",
    "is_abort",
    "show_versions",
]

_SLICE_S = 0.1  # so that Python can handle signals in between


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
        hops, spans, num_rounds, num_groups, messages_per_pair: for programs that move in rounds
            over NCCL, as `reshard.h` describes them.

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
        *,
        hops: array[int] | None = None,
        spans: array[int] | None = None,
        rules: array[float] | None = None,
        changes: array[int] | None = None,
        num_rounds: int = 0,
        num_groups: int = 1,
        messages_per_pair: int = 1,
    ) -> None:
        tables = _ffi.new("reshard_program_tables *")
        tables.size = _ffi.sizeof("reshard_program_tables")
        borrowed = []
        for name, table in (
            ("streams", streams),
            ("operations", operations),
            ("zeros", zeros),
            ("extents", extents),
            ("hops", array("q") if hops is None else hops),
            ("spans", array("q") if spans is None else spans),
            ("changes", array("q") if changes is None else changes),
        ):
            view = _int64_view(name, table)
            borrowed.append(view)
            setattr(tables, name, view)
            setattr(tables, f"{name}_length", len(table))
        numbers = array("d") if rules is None else rules
        tables.rules, tables.rules_length = _float64_view("rules", numbers), len(numbers)
        borrowed.append(tables.rules)
        tables.num_buffers = num_buffers
        tables.chunk_bytes = chunk_bytes
        tables.num_rounds = num_rounds
        tables.num_groups = num_groups
        tables.messages_per_pair = messages_per_pair
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

    def describe_rounds(
        self, ranks: Sequence[int], domains: Sequence[int] | None = None
    ) -> RoundsInfo:
        """Returns what some ranks do in the rounds of this program.

        Args:
            ranks: of one process, ascending.
            domains: of every rank from 0 on; None means that there is no exchange inside domains.
        """
        info = _ffi.new("reshard_rounds_info *")
        info.size = _ffi.sizeof("reshard_rounds_info")
        own = _ffi.new("int64_t[]", list(ranks))
        places = _ffi.NULL if domains is None else _ffi.new("int64_t[]", list(domains))
        count = 0 if domains is None else len(domains)
        handle = self._open_handle()
        check(_lib.reshard_program_describe_rounds(handle, own, len(ranks), places, count, info))
        return RoundsInfo(*(getattr(info, name) for name in RoundsInfo.__annotations__))

    def run(
        self,
        communicator: Communicator | None,
        addresses: array[int],
        *,
        run_id: int,
        timeout_s: float,
        num_threads: int = 1,
        streams: Sequence[int] = (),
    ) -> RunStats:
        """Moves everything once; returns when all bytes are in place at both ends.

        Args:
            communicator: carries bytes between processes; None when all streams are local.
            addresses: one address per buffer (typecode 'Q'). The memory must stay alive and, where
                it is received into, untouched until the call returns.
            run_id: the same on all processes of a run, new for each run.
            timeout_s: seconds for the whole run.
            num_threads: threads that may copy.
            streams: on GPUs, the CUDA stream of the caller's work per local rank, ascending; none
                means the default stream of each.

        Raises:
            PlanError: the arguments do not fit the program; nothing moved.
            TransferTimeout: the time was over; names who was silent.
            TransportError: a peer died, aborted or disagrees. The communicator is aborted and the
                received data is incomplete.

        Collective: every process of the communicator runs its program with the same `run_id`.
        """
        with self.begin(
            communicator,
            addresses,
            run_id=run_id,
            timeout_s=timeout_s,
            num_threads=num_threads,
            streams=streams,
        ) as run:
            while run.stats is None:
                run.progress(_SLICE_S)
            return run.stats

    @contextmanager
    def begin(
        self,
        communicator: Communicator | None,
        addresses: array[int],
        *,
        run_id: int,
        timeout_s: float,
        num_threads: int = 1,
        streams: Sequence[int] = (),
    ) -> Iterator[Run]:
        """Begins a run, as `run` does, which the caller drives; left unfinished it is cancelled."""
        options = _ffi.new("reshard_run_options *")
        options.size = _ffi.sizeof("reshard_run_options")
        options.run_id = run_id
        options.timeout_ns = nanoseconds(timeout_s)
        options.num_threads = num_threads
        handles = _ffi.new("uint64_t[]", list(streams))
        options.streams, options.num_streams = handles if streams else _ffi.NULL, len(streams)
        pointers = _ffi.cast("void *const *", _ffi.from_buffer("uint64_t[]", addresses))
        carrier_busy = self._busy if communicator is None else communicator._busy
        with exclusive(self._busy, "program"), exclusive(carrier_busy, "communicator"):
            carrier = _ffi.NULL if communicator is None else communicator._open_handle()
            run = Run(self._open_handle())
            try:
                check(
                    _lib.reshard_program_begin(
                        run.program, carrier, pointers, len(addresses), options
                    )
                )
                yield run
            finally:
                run.cancel()

    def close(self) -> None:
        """Frees the program; closing twice is fine."""
        if self._busy.is_of_parent:
            return
        with exclusive(self._busy, "program"):
            handle, self._handle = self._handle, None
            if handle is not None:
                _ffi.release(handle)

    def _open_handle(self) -> Any:  # noqa: ANN401 (a cffi pointer has no public type)
        if self._handle is None:
            raise PlanError("program: used after close().")
        return self._handle


def _int64_view(name: str, table: array[int]) -> Any:  # noqa: ANN401
    """Returns a cffi pointer to the values of an array of typecode 'q'."""
    if table.typecode != "q":
        raise PlanError(f"{name} table: typecode {table.typecode!r} is not 'q'.")
    return _ffi.from_buffer("int64_t[]", table) if len(table) else _ffi.NULL


def _float64_view(name: str, table: array[float]) -> Any:  # noqa: ANN401
    """Returns a cffi pointer to the values of an array of typecode 'd'."""
    if table.typecode != "d":
        raise PlanError(f"{name} table: typecode {table.typecode!r} is not 'd'.")
    return _ffi.from_buffer("double[]", table) if len(table) else _ffi.NULL


class Run:
    """A run that was begun.

    Attributes:
        stats: what was done, once the run is over.

    Args:
        program: native handle.
    """

    def __init__(self, program: Any) -> None:  # noqa: ANN401
        self.program = program
        self.stats: RunStats | None = None
        self._is_over = False

    def progress(self, slice_s: float) -> None:
        """Goes on for about `slice_s`; does nothing once the run is over.

        Raises:
            TransportError: as `Program.run` does; the run is over then.
        """
        if self._is_over:
            return
        stats = _ffi.new("reshard_run_stats *")
        stats.size = _ffi.sizeof("reshard_run_stats")
        status = _lib.reshard_program_progress(self.program, round(slice_s * 1e9), stats)
        if status == _lib.RESHARD_STATUS_IN_PROGRESS:
            return
        self._is_over = True
        check(status)
        self.stats = RunStats(*(getattr(stats, name) for name in RunStats.__annotations__))

    def cancel(self) -> None:
        """Ends the run if it is not over, and aborts its communicator."""
        if not self._is_over:
            _lib.reshard_program_cancel(self.program, b"the run was interrupted")


def fingerprints(
    table: array[int],
    addresses: array[int],
    num_slots: int,
    communicator: Communicator | None = None,
    timeout_s: float = 60.0,
    *,
    rules: array[float] | None = None,
) -> array[int]:
    """Returns the sums of fingerprints of regions, one per slot (typecode 'Q').

    Args:
        table: rows of 9 + 3 * ndim: slot, buffer, offset in bytes, memory dtype code, stored dtype
            code, row of `rules` or -1, seed (as a signed 64-bit number), ndim, sizes, strides in
            bytes, index strides, index base.
        addresses: one address per buffer (typecode 'Q'); the caller answers for what is touched.
        num_slots: how many sums.
        communicator: for memory of GPUs, the one over NCCL that their ranks are in.
        timeout_s: limit for GPUs.
        rules: by which values change before they are summed up, as a program has them.

    Raises:
        UnsupportedError: there are no compiled kernels for the GPUs.
    """
    sums = array("Q", bytes(8 * num_slots))
    pointers = _ffi.cast("void *const *", _ffi.from_buffer("uint64_t[]", addresses))
    regions, out = _int64_view("regions", table), _ffi.from_buffer("uint64_t[]", sums)
    numbers = array("d") if rules is None else rules
    given = regions, len(table), _float64_view("rules", numbers), len(numbers)
    arguments = *given, pointers, len(addresses), out, num_slots
    if communicator is None:
        check(_lib.reshard_fingerprint(*arguments))
    else:
        handle, limit = communicator._open_handle(), nanoseconds(timeout_s)
        with exclusive(communicator._busy, "communicator"):
            check(_lib.reshard_communicator_fingerprint(handle, *arguments, limit))
    return sums


def show_versions() -> dict[str, str]:
    """Returns version, file and CPU features of the native library, for bug reports."""
    return {
        "native version": _ffi.string(_lib.reshard_version()).decode(),
        "cpu features": _ffi.string(_lib.reshard_cpu_features()).decode(),
    }


def has_equal_structs() -> bool:
    """Says whether binding and library are of one build, by the sizes of all structs."""
    names = (
        "program_tables",
        "program_info",
        "run_options",
        "rounds_info",
        "run_stats",
        "shm_options",
        "nccl_options",
    )
    sizes = _ffi.new("size_t[]", len(names))
    count = _lib.reshard_abi_sizes(sizes, len(names))
    ours = [_ffi.sizeof(f"reshard_{name}") for name in names]
    return count == len(names) and ours == list(sizes)
