"""Starts the processes of a benchmark, drives them in step and ends them, whatever happens.

The controller sends every process the same command and waits for all the answers. A process that
fails prints its traceback and ends; a process that does not answer in time prints the stacks of
its threads and is killed. Either way the whole team ends and the caller gets one error.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

__all__ = ["Team", "TeamError", "Worker", "free_port"]

_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG
_STACK_SIGNAL = signal.SIGUSR1
_GRACE_S = 5.0
# Every process computes with one thread: eight of them share the cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

Pipe = multiprocessing.connection.Connection


class TeamError(Exception):
    """A process of the benchmark failed, died or did not answer in time."""


class Worker(Protocol):
    """What runs in each process: its public methods are the commands."""

    def close(self) -> None:
        """Releases everything; the process ends after it."""


def _serve(make_worker: Callable[..., Worker], rank: int, arguments: tuple[Any, ...]) -> None:
    """Runs in the child: carries out commands until the controller says close or goes away."""
    pipe: Pipe = arguments[0]
    faulthandler.register(_STACK_SIGNAL, all_threads=True)
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    worker = make_worker(rank, *arguments[1:])
    pipe.send(None)
    while True:
        try:
            name, values = pipe.recv()
        except EOFError:
            return
        if name == "close":
            worker.close()
            pipe.send(None)
            return
        pipe.send(getattr(worker, name)(*values))


def free_port() -> int:
    """Returns a TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Team:
    """Processes that carry out the same commands side by side.

    Args:
        make_worker: called in each process as `make_worker(rank, *arguments)`.
        num_processes: how many to start.
        arguments: the same for every process; must pickle.
        start_timeout_s: limit for all of them to have made their worker.
    """

    def __init__(
        self,
        make_worker: Callable[..., Worker],
        num_processes: int,
        *arguments: object,
        start_timeout_s: float = 120.0,
    ) -> None:
        os.environ.update(_ENVIRONMENT)
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Pipe] = []
        self._processes = []
        for rank in range(num_processes):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(make_worker, rank, (theirs, *arguments)),
                name=f"benchmark-{rank}",
                daemon=False,
            )
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        try:
            self._answers("start", range(num_processes), start_timeout_s)
        except TeamError:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids in order of rank."""
        return [process.pid or 0 for process in self._processes]

    def call(
        self,
        command: str,
        *values: object,
        timeout_s: float = 120.0,
        ranks: range | list[int] | None = None,
    ) -> list[Any]:
        """Carries out one command on all processes (or on `ranks`) and returns their answers."""
        chosen = range(len(self._pipes)) if ranks is None else ranks
        self.post(command, *values, ranks=chosen)
        return self._answers(command, chosen, timeout_s)

    def post(self, command: str, *values: object, ranks: range | list[int]) -> None:
        """Sends a command without waiting; `collect` fetches the answers."""
        for rank in ranks:
            try:
                self._pipes[rank].send((command, values))
            except BrokenPipeError:
                raise self._failure(command, rank) from None

    def collect_some(self, ranks: list[int], timeout_s: float) -> list[Any]:
        """Returns the answers to a posted command of those that answer in time; no failures."""
        deadline = time.monotonic() + timeout_s
        answers = []
        waiting = [self._pipes[rank] for rank in ranks]
        while waiting:
            left = deadline - time.monotonic()
            ready = multiprocessing.connection.wait(waiting, max(0.0, left))
            if not ready:
                break
            for pipe in [pipe for pipe in waiting if pipe in ready]:
                waiting.remove(pipe)
                with contextlib.suppress(EOFError, ConnectionResetError):
                    answers.append(pipe.recv())
        return answers

    def collect(self, command: str, ranks: range | list[int], timeout_s: float) -> list[Any]:
        """Returns the answers to a posted command."""
        return self._answers(command, ranks, timeout_s)

    def close(self) -> None:
        """Ends all processes in order; kills what does not end."""
        self.call("close")
        for process in self._processes:
            process.join(_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """Ends all processes at once; harmless when they have ended."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join(_GRACE_S)

    def kill_rank(self, rank: int) -> float:
        """Kills one process and returns the time (CLOCK_MONOTONIC) just before."""
        moment = time.monotonic()
        os.kill(self.pids[rank], signal.SIGKILL)
        return moment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def _answers(self, command: str, ranks: range | list[int], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        waiting = {self._pipes[rank]: rank for rank in ranks}
        while waiting:
            left = deadline - time.monotonic()
            ready = multiprocessing.connection.wait(list(waiting), max(0.0, left))
            if not ready:
                silent = sorted(waiting.values())
                self._dump_stacks()
                message = f"{command}: ranks {silent} gave no answer within {timeout_s:.0f} s"
                raise TeamError(message)
            for pipe in [pipe for pipe in waiting if pipe in ready]:
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    raise self._failure(command, rank) from None
        return [answers[rank] for rank in ranks]

    def _failure(self, command: str, rank: int) -> TeamError:
        self._processes[rank].join(_GRACE_S)
        code = self._processes[rank].exitcode
        return TeamError(f"{command}: rank {rank} ended with exit code {code} (traceback above)")

    def _dump_stacks(self) -> None:
        """Makes every living process print the stacks of its threads."""
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, _STACK_SIGNAL)
        time.sleep(1.0)  # gives them time to write before they are killed; nothing depends on it
