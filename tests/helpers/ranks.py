"""Runs one function in several fresh Python processes and collects what each of them did.

    results = run_on_processes(work, num_processes=4, timeout_s=30.0, arguments=(address,))

calls `work(process, num_processes, address)` in four new interpreters; `work` must be importable by
name (a function at the top of a test module is). Before the limit every process writes its Python
stacks to its output; at the limit everything is killed and the error holds all outputs.

`ProcessGroup` is the same with the reins in hand: stop or kill one process, wait until a process
says that it has come somewhere (`tell` in the child, `expect` in the parent), never by sleeping.

The processes are started directly rather than with `multiprocessing`, which would import the test
runner in every one of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import multiprocessing.connection
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["Outcome", "ProcessGroup", "listen", "run_on_processes", "tell"]

_PR_SET_PDEATHSIG = 1
_GRACE_AFTER_FAILURE_S = 10.0  # the others often fail too, a little later, and say more
_KILL_WAIT_S = 10.0

_to_parent: multiprocessing.connection.Connection[Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process did: its value, or why there is none, and everything it wrote."""

    process: int
    value: Any
    error: str | None
    exit_code: int | None
    output: str

    @property
    def is_success(self) -> bool:
        """Says whether the function returned and the process ended by itself."""
        return self.error is None and self.exit_code == 0


def run_on_processes(
    function: Callable[..., Any],
    num_processes: int,
    timeout_s: float,
    *,
    arguments: Sequence[Any] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Returns what `function(process, num_processes, *arguments)` returned in each process.

    Raises:
        RuntimeError: a process raised, died or did not end in time; holds the outputs of all.
    """
    with ProcessGroup(
        function, num_processes, timeout_s, arguments=arguments, environment=environment
    ) as group:
        outcomes = group.finish()
    if not all(outcome.is_success for outcome in outcomes):
        raise RuntimeError(_describe(function, outcomes))
    return [outcome.value for outcome in outcomes]


def tell(value: object) -> None:
    """Sends a value from a child to `ProcessGroup.expect`."""
    _parent().send(("told", value))


def listen(timeout_s: float = 30.0) -> Any:
    """Waits in a child for `ProcessGroup.send` and returns the value."""
    if not _parent().poll(timeout_s):
        raise TimeoutError(f"the test sent nothing for {timeout_s} s")
    return _parent().recv()


class ProcessGroup:
    """Several running processes; leaving the `with` block kills those that are left.

    Args:
        function: called as `function(process, num_processes, *arguments)`; importable by name.
        num_processes: how many processes to start.
        timeout_s: limit from now on for everything that the processes do.
        arguments: picklable values handed to every process.
        environment: variables set on top of this process's.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        num_processes: int,
        timeout_s: float,
        *,
        arguments: Sequence[Any] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise ValueError(f"{function.__qualname__} is not importable by name in a new process")
        self._deadline = time.monotonic() + timeout_s
        self._children: list[_Child] = []
        self._job = pickle.dumps((function, num_processes, tuple(arguments)))
        self._environment = environment or {}
        try:
            for process in range(num_processes):
                self._children.append(self._start(process))
        except BaseException:
            self._kill_all()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill_all()
        if error is not None:
            for child in self._children:
                error.add_note(child.describe())
        for child in self._children:
            child.close()

    def _start(self, process: int) -> _Child:
        remaining_s = self._deadline - time.monotonic()
        return _Child(process, self._job, remaining_s, self._environment)

    def replace(self, process: int) -> None:
        """Kills one process, if it still runs, and starts another one in its place."""
        old = self._children[process]
        if old.popen.poll() is None:
            old.popen.kill()
        old.popen.wait(_KILL_WAIT_S)
        old.close()
        self._children[process] = self._start(process)

    @property
    def num_processes(self) -> int:
        """How many processes were started."""
        return len(self._children)

    def pid(self, process: int) -> int:
        """Returns the process id of one process."""
        return self._children[process].popen.pid

    def signal(self, process: int, number: signal.Signals) -> None:
        """Sends a signal (SIGKILL, SIGSTOP, SIGCONT, ...) to one process."""
        self._children[process].popen.send_signal(number)

    def send(self, process: int, value: object) -> None:
        """Sends a value to `listen` in one process."""
        self._children[process].connection.send(value)

    def expect(self, process: int, timeout_s: float = 30.0) -> Any:
        """Waits for the next value that one process tells, and returns it."""
        child = self._children[process]
        limit = min(self._deadline, time.monotonic() + timeout_s)
        while not child.told:
            remaining = limit - time.monotonic()
            if remaining <= 0 or child.is_finished:
                state = "ended without telling" if child.is_finished else "told nothing in time"
                raise TimeoutError(f"process {process} {state}")
            _pump([child], remaining)
        return child.told.pop(0)

    def wait(self, process: int, timeout_s: float = 30.0) -> Outcome:
        """Waits until one process has ended (or was killed) and returns its outcome."""
        child = self._children[process]
        limit = min(self._deadline, time.monotonic() + timeout_s)
        while not child.is_finished and time.monotonic() < limit:
            _pump([child], limit - time.monotonic())
        return child.outcome()

    def finish(self) -> list[Outcome]:
        """Waits for all processes until the limit, kills the rest, and returns all outcomes."""
        limit = self._deadline
        while waiting := [child for child in self._children if not child.is_finished]:
            if any(child.has_failed for child in self._children):
                limit = min(limit, time.monotonic() + _GRACE_AFTER_FAILURE_S)
            remaining = limit - time.monotonic()
            if remaining <= 0:
                break
            _pump(waiting, remaining)
        self._kill_all()
        return [child.outcome() for child in self._children]

    def _kill_all(self) -> None:
        for child in self._children:
            if child.popen.poll() is None:
                child.popen.kill()
        for child in self._children:
            child.popen.wait(_KILL_WAIT_S)


class _Child:
    """The parent's view of one process."""

    def __init__(
        self, process: int, job: bytes, timeout_s: float, environment: Mapping[str, str]
    ) -> None:
        self.process = process
        self.told: list[Any] = []
        self._end: tuple[Any, str | None] | None = None
        self._is_open = True
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        ours, theirs = socket.socketpair()
        # A point in time rather than a span: a slow start must not carry the dump past the limit.
        dump_at = time.monotonic() + max(timeout_s - 3.0, timeout_s * 0.8)
        call = f"from {__name__} import _run_child; _run_child({theirs.fileno()}, {dump_at})"
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", call],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            )
        self.pidfd = os.pidfd_open(self.popen.pid)
        self.connection = multiprocessing.connection.Connection(ours.detach())
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code will tell
            self.connection.send((process, job))

    @property
    def is_finished(self) -> bool:
        return self.popen.poll() is not None and not self._is_open

    @property
    def has_failed(self) -> bool:
        said_error = self._end is not None and self._end[1] is not None
        return said_error or self.popen.poll() not in (None, 0)

    def receive(self) -> None:
        """Takes one message, or notes that the other end is closed."""
        try:
            kind, *content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._is_open = False
            return
        if kind == "told":
            self.told.append(content[0])
        else:
            self._end = (content[0], content[1])

    def sources(self) -> list[Any]:
        """Returns what becomes readable when there is news of this process."""
        return [self.connection] if self._is_open else [self.pidfd]

    def outcome(self) -> Outcome:
        value, error = self._end or (None, "the function did not return")
        return Outcome(self.process, value, error, self.popen.poll(), self._read_output())

    def describe(self) -> str:
        outcome = self.outcome()
        state = "running" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
        return (
            f"--- process {self.process} ({state}; {outcome.error or 'returned'}), output:\n"
            f"{outcome.output or '(none)'}"
        )

    def close(self) -> None:
        self.connection.close()
        self._output.close()
        os.close(self.pidfd)

    def _read_output(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        # pread leaves the offset alone that the child's writes share.
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")


def _pump(children: Sequence[_Child], timeout_s: float) -> None:
    """Waits for news of any child and takes one message of each that has some."""
    sources = {source: child for child in children for source in child.sources()}
    for ready in multiprocessing.connection.wait(list(sources), timeout_s):
        child = sources[ready]
        if ready is child.connection:
            child.receive()
        else:
            child.popen.wait(_KILL_WAIT_S)


def _describe(function: Callable[..., Any], outcomes: Sequence[Outcome]) -> str:
    lines = [f"{function.__qualname__} failed on {len(outcomes)} processes"]
    for outcome in outcomes:
        state = outcome.error or "returned"
        lines.append(f"--- process {outcome.process} (exit code {outcome.exit_code}): {state}")
        lines.append(outcome.output or "(no output)")
    return "\n".join(lines)


def _parent() -> multiprocessing.connection.Connection[Any, Any]:
    if _to_parent is None:
        raise RuntimeError("tell and listen work only in a process of a ProcessGroup")
    return _to_parent


def _run_child(fd: int, dump_at: float) -> None:
    """Runs the job in a fresh interpreter; the only code that the parent names to it.

    Args:
        fd: the socket to the parent.
        dump_at: time of the monotonic clock, which all processes share, at which to write stacks.
    """
    global _to_parent
    # A test runner in the background of a shell ignores SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(0.001, dump_at - time.monotonic()))
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise RuntimeError("prctl(PR_SET_PDEATHSIG) failed: this process could outlive its test")
    _to_parent = multiprocessing.connection.Connection(fd)
    process, job = _to_parent.recv()
    try:
        function, num_processes, arguments = pickle.loads(job)
        value = function(process, num_processes, *arguments)
    except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it was
        traceback.print_exc()
        _to_parent.send(("end", None, f"{type(error).__name__}: {error}"))
        sys.exit(1)
    try:
        _to_parent.send(("end", value, None))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        _to_parent.send(("end", None, f"the result cannot be sent: {error}"))
        sys.exit(1)
