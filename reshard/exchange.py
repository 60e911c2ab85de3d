"""The one collective of the control plane: everybody posts a few bytes, everybody gets all of them.

A session knows no more of the control plane than `Exchange`. Who carries it is the caller's choice:
a store (`reshard.rendezvous`), threads of one process, or nothing where there is one process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from reshard.error_report import ErrorReport, rebuild_error, report_error
from reshard.errors import RendezvousError

__all__ = ["Exchange", "SingleProcessExchange", "ThreadExchange"]

_SLICE_S: Final = 0.01
_INTERRUPTIBLE_SLICE_S: Final = 0.2


class Exchange(Protocol):
    """What the members of one epoch have in common."""

    @property
    def num_processes(self) -> int:
        """How many members there are."""

    @property
    def process(self) -> int:
        """The index of this member."""

    @property
    def hub(self) -> int | None:
        """The member through which all words go, so that none come once it died; None if none."""

    def exchange(
        self,
        name: str,
        payload: bytes,
        *,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """Gives a payload to all members and returns the payloads of all, ordered by member.

        Args:
            name: which exchange this is; the same on all members.
            payload: bytes of this member; each member may have another length.
            timeout_s: how long to wait for the others.
            while_waiting: called at least every 20 ms; what it raises ends the wait and fails the
                exchange for all members.

        Raises:
            ReshardError: a member failed; the class is that of its error, on every member.
            TransferTimeout: somebody did not come; the message says who.
            RendezvousError: a member left or died, or the members disagree about the name.

        Collective: every member, in the same order. After an error the exchange is closed; another
        call raises RendezvousError.
        """

    def fail(self, error: BaseException, *, culprit: int | None = None) -> None:
        """Closes the exchange; every other member raises this error in its open or next call.

        Raises nothing and waits a moment at most, until the others' words are on their way, so it
        can be called while an exception is handled. An earlier error stands.

        Args:
            error: what happened here; a class of `reshard.errors` arrives as itself.
            culprit: index of the member that is to blame, or None.
        """


class SingleProcessExchange:
    """The exchange of one process with itself."""

    num_processes = 1
    process = 0
    hub = None

    def __init__(self) -> None:
        self._error: ErrorReport | None = None

    def exchange(
        self,
        name: str,
        payload: bytes,
        *,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """Returns the payload; see `Exchange.exchange`."""
        if self._error is not None:
            raise _closed(name, self._error)
        return [payload]

    def fail(self, error: BaseException, *, culprit: int | None = None) -> None:
        """Closes the exchange; see `Exchange.fail`."""
        self._error = self._error or report_error(error)


class ThreadExchange:
    """The exchange of several members in one process, each used by one thread.

    Example:
        >>> left, right = ThreadExchange.create(2)
    """

    hub = None

    def __init__(self, board: _Board, process: int) -> None:
        self._board = board
        self._process = process
        self._is_told = False

    @classmethod
    def create(cls, num_processes: int) -> list[ThreadExchange]:
        """Returns the members of a new exchange, in order."""
        board = _Board(num_processes)
        return [cls(board, process) for process in range(num_processes)]

    @property
    def num_processes(self) -> int:
        """How many members there are."""
        return self._board.num_processes

    @property
    def process(self) -> int:
        """The index of this member."""
        return self._process

    def exchange(
        self,
        name: str,
        payload: bytes,
        *,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """Waits for the payloads of all members; see `Exchange.exchange`."""
        if self._is_told and self._board.error is not None:
            raise _closed(name, self._board.error)
        slice_s = _INTERRUPTIBLE_SLICE_S if while_waiting is None else _SLICE_S
        deadline = time.monotonic() + timeout_s
        round_number = self._board.post(self._process, name, payload)
        while True:
            remaining_s = deadline - time.monotonic()
            gathered = self._board.wait(round_number, max(0.0, min(slice_s, remaining_s)))
            if gathered is not None:
                return list(gathered)
            if self._board.error is not None:
                self._is_told = True
                raise rebuild_error(self._board.error)
            if remaining_s <= 0:
                self._board.time_out(round_number, timeout_s)
            elif while_waiting is not None:
                self._call(while_waiting)

    def fail(self, error: BaseException, *, culprit: int | None = None) -> None:
        """Closes the exchange for all members; see `Exchange.fail`."""
        self._is_told = True
        origin = f"process {self._process}"
        self._board.close(report_error(error, origin=origin, process=self._process))

    def _call(self, while_waiting: Callable[[], None]) -> None:
        try:
            while_waiting()
        except BaseException as error:
            self.fail(error)
            raise


class _Board:
    """What the members of a ThreadExchange share.

    `_condition` guards everything; no other lock is taken while it is held, and no caller's code
    runs under it.
    """

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        self.error: ErrorReport | None = None
        self._condition = threading.Condition()
        self._round = 0
        self._name = ""
        self._posts: dict[int, bytes] = {}
        self._gathered: Sequence[bytes] = ()

    def post(self, process: int, name: str, payload: bytes) -> int:
        """Adds a member's payload and returns the number of the round that it belongs to."""
        with self._condition:
            if self.error is None and self._posts and name != self._name:
                self._close(
                    f"process {process} enters exchange {name!r} while process "
                    f"{min(self._posts)} waits in exchange {self._name!r}."
                )
            if self.error is not None:
                return self._round
            self._name = name
            self._posts[process] = payload
            current = self._round
            if len(self._posts) == self.num_processes:
                self._gathered = [self._posts[index] for index in range(self.num_processes)]
                self._posts = {}
                self._round += 1
                self._condition.notify_all()
            return current

    def wait(self, round_number: int, timeout_s: float) -> Sequence[bytes] | None:
        """Returns the payloads of a round, or None if it is not over after `timeout_s`.

        A member asks for its own round only, and the next cannot end without it, so the payloads of
        one round are enough to keep.
        """
        with self._condition:
            if self._round == round_number and self.error is None:
                self._condition.wait(timeout_s)
            return self._gathered if self._round > round_number else None

    def time_out(self, round_number: int, timeout_s: float) -> None:
        """Closes the exchange because somebody did not come, unless they just did."""
        with self._condition:
            if self._round > round_number:
                return
            silent = [str(i) for i in range(self.num_processes) if i not in self._posts]
            self._close(
                f"exchange {self._name!r}: {len(self._posts)} of {self.num_processes} processes "
                f"came within {timeout_s:.1f} s. Silent: process {', '.join(silent)}.",
                "TransferTimeout",
            )

    def close(self, report: ErrorReport) -> None:
        """Closes the exchange with an error unless an earlier one did."""
        with self._condition:
            self.error = self.error or report
            self._condition.notify_all()

    def _close(self, text: str, kind: str = "RendezvousError") -> None:
        self.error = self.error or ErrorReport(kind, text)
        self._condition.notify_all()


def _closed(name: str, report: ErrorReport) -> RendezvousError:
    return RendezvousError(f"exchange {name!r}: closed by an earlier error: {report.message}")
