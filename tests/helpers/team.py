"""Processes that stay up and do one call after the other, each when the test says so.

    with Team(4) as team:
        team.start(0, open_source, specs)          # open_source(desk, specs) in process 0
        address = team.result(0).value
        answers = team.call([1, 2, 3], open_destination, address)

A call is a function `(desk, *arguments)` that is importable by name; `desk` is a namespace of the
process that lives as long as it does. What a call raises comes back as an `Answer`.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from helpers.ranks import ProcessGroup, listen, tell

__all__ = ["Answer", "Desk", "Team", "kinds_of"]

Desk = SimpleNamespace

_LIFE_S = 600.0
_START_S = 120.0
_CALL_S = 60.0
_END_S = 30.0


@dataclass(frozen=True)
class Answer:
    """What a call returned or raised.

    Attributes:
        value: what it returned.
        kinds: names of the classes of what it raised, most special first; empty if it returned.
        message: text of what it raised.
        trace: where.
        seconds: how long the call took.
    """

    value: Any
    kinds: tuple[str, ...]
    message: str
    trace: str
    seconds: float

    @property
    def is_success(self) -> bool:
        return not self.kinds

    def get(self) -> Any:
        """Returns the value; fails the test if the call raised."""
        assert self.is_success, self.trace
        return self.value


class Team:
    """Several processes; leaving the `with` block ends them.

    Args:
        num_processes: how many.
        life_s: limit for everything that they do.
        environment: variables set on top of this process's.
    """

    def __init__(
        self,
        num_processes: int,
        *,
        life_s: float = _LIFE_S,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.num_processes = num_processes
        self._lost: set[int] = set()
        self._stopped: set[int] = set()
        self._busy: set[int] = set()
        group = ProcessGroup(_serve, num_processes, life_s, environment=environment)
        self._group = group.__enter__()
        try:
            for process in range(num_processes):
                group.expect(process, _START_S)
        except BaseException as error:
            group.__exit__(type(error), error, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                for process in set(self._stopped):
                    self.kill(process)
                for process in range(self.num_processes):
                    if process not in self._lost:
                        self._group.send(process, None)
                for process in range(self.num_processes):
                    outcome = self._group.wait(process, _END_S)
                    assert outcome.is_success or process in self._lost, outcome
        finally:
            self._group.__exit__(kind, error, trace)

    def start(self, process: int, function: Callable[..., Any], *arguments: object) -> None:
        """Begins a call; its answer is fetched by `result`."""
        self._busy.add(process)
        self._group.send(process, (function, arguments))

    def result(self, process: int, timeout_s: float = _CALL_S) -> Answer:
        """Waits for the answer of the call that a process does."""
        answer = self._group.expect(process, timeout_s)
        assert isinstance(answer, Answer), answer
        self._busy.discard(process)
        return answer

    def call(
        self,
        processes: Iterable[int],
        function: Callable[..., Any],
        *arguments: object,
        timeout_s: float = _CALL_S,
    ) -> list[Answer]:
        """Does one call on several processes at once and returns all answers."""
        chosen = list(processes)
        for process in chosen:
            self.start(process, function, *arguments)
        return [self.result(process, timeout_s) for process in chosen]

    def values(
        self,
        processes: Iterable[int],
        function: Callable[..., Any],
        *arguments: object,
        timeout_s: float = _CALL_S,
    ) -> list[Any]:
        """Does one call on several processes and returns the values; fails where one raised."""
        return [a.get() for a in self.call(processes, function, *arguments, timeout_s=timeout_s)]

    def wait_for_word(self, process: int, word: str, timeout_s: float = _CALL_S) -> None:
        """Waits until the call that a process does has told a word."""
        told = self._group.expect(process, timeout_s)
        assert told == word, told

    def say(self, process: int, word: str) -> None:
        """Sends a word to a call that listens."""
        self._group.send(process, word)

    def kill(self, process: int) -> float:
        """Kills a process and returns when, on the monotonic clock that all processes share."""
        self._lost.add(process)
        self._stopped.discard(process)
        when = time.monotonic()
        self._group.signal(process, signal.SIGKILL)
        return when

    def wait_until_gone(self, process: int) -> None:
        """Waits until the kernel has taken back all that a killed process had, its ports too."""
        outcome = self._group.wait(process, _END_S)
        assert outcome.exit_code == -signal.SIGKILL, outcome

    def stop(self, process: int) -> None:
        """Stops a process; `go_on` lets it go on, `kill` ends it."""
        self._group.signal(process, signal.SIGSTOP)
        self.wait_until_stopped(process)

    def wait_until_stopped(self, process: int, timeout_s: float = _CALL_S) -> None:
        """Waits until a process stands still, by `stop` or of its own accord."""
        pid = self._group.pid(process)
        deadline = time.monotonic() + timeout_s
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is None:
            assert time.monotonic() < deadline, f"process {process} did not stop"
            os.sched_yield()
        self._stopped.add(process)

    def go_on(self, process: int) -> None:
        """Lets a stopped process go on."""
        self._stopped.discard(process)
        self._group.signal(process, signal.SIGCONT)

    def idle(self) -> list[int]:
        """Returns the processes that can do a call."""
        gone = self._lost | self._stopped | self._busy
        return [process for process in range(self.num_processes) if process not in gone]

    def replace_lost(self) -> None:
        """Starts new processes for those that were killed, or that a failed test left in a call."""
        missing = sorted(self._lost | self._stopped | self._busy)
        for process in missing:
            self._group.replace(process)
        for process in missing:
            self._group.expect(process, _START_S)
        for state in (self._lost, self._stopped, self._busy):
            state.clear()

    def pid(self, process: int) -> int:
        """Returns the process id of a process."""
        return self._group.pid(process)


def _serve(process: int, num_processes: int) -> None:
    desk = Desk(process=process, num_processes=num_processes)
    tell("ready")
    while (job := listen(_LIFE_S)) is not None:
        function, arguments = job
        start = time.monotonic()
        try:
            answer = Answer(function(desk, *arguments), (), "", "", 0.0)
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it was
            kinds = tuple(kind.__name__ for kind in type(error).__mro__[:-1])
            answer = Answer(None, kinds, str(error), traceback.format_exc(), 0.0)
        seconds = time.monotonic() - start
        tell(Answer(answer.value, answer.kinds, answer.message, answer.trace, seconds))


def kinds_of(answers: Sequence[Answer]) -> list[str]:
    """Returns the class of what each call raised, or an empty text."""
    return [answer.kinds[0] if answer.kinds else "" for answer in answers]
