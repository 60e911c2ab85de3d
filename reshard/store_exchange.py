"""An exchange over any store of keys and values, such as the one that a launcher brings anyway.

A store fits better than collectives: an error is a key that everybody sees whatever they wait for,
a silent member can be named, and a wait that is given up leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from reshard.error_report import ErrorReport, rebuild_error, report_error
from reshard.errors import RendezvousError, ReshardError, TransferTimeout

__all__ = ["KeyValueStore", "MemberWords", "StoreExchange"]

# torch's TCPStore refuses values of more than 8 MiB.
_MAX_VALUE_BYTES: Final = 4 << 20
_ERROR: Final = "error"
_NUM_LEFT: Final = "left"
_FIRST_PAUSE_S: Final = 0.0002
_LAST_PAUSE_S: Final = 0.01


class KeyValueStore(Protocol):
    """What an exchange needs of a store, which may be for this exchange alone.

    Everything raises RendezvousError where the store is gone.
    """

    def set(self, key: str, value: bytes) -> None:
        """Writes a key that nobody has written."""

    def set_once(self, key: str, value: bytes) -> None:
        """Writes a key unless somebody has."""

    def get(self, key: str) -> bytes:
        """Returns the value of a key that is there."""

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, 0 at first, and returns the sum."""

    def has(self, keys: Sequence[str]) -> bool:
        """Says whether all keys are there."""

    def delete(self, key: str) -> None:
        """Removes a key that is there."""


@dataclass(frozen=True, slots=True)
class MemberWords:
    """How messages speak of the members.

    Attributes:
        noun: what one of them is, such as "rank".
        whole: what all of them are, such as "the process group".
        remedy: what to do after a member left a call out, as a sentence.
    """

    noun: str
    whole: str
    remedy: str


class StoreExchange:
    """Implements `reshard.exchange.Exchange` on a store.

    Args:
        store: for this exchange alone.
        process: index of this member.
        num_processes: how many members there are.
        words: for messages.
    """

    hub = None  # the store may be anybody's

    def __init__(
        self, store: KeyValueStore, process: int, num_processes: int, words: MemberWords
    ) -> None:
        self._store = store
        self._process = process
        self._num_processes = num_processes
        self._words = words
        self._round = 0
        self._closed_by = ""
        self._has_left = False

    @property
    def num_processes(self) -> int:
        """How many members there are."""
        return self._num_processes

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
            RendezvousError: the store is gone, or the members disagree about the name.
        """
        if self._closed_by:
            raise RendezvousError(
                f"exchange {name!r}: closed by an earlier error: {self._closed_by}"
            )
        current, self._round = self._round, self._round + 1
        keys = [f"{current}/{member}" for member in range(self._num_processes)]
        try:
            self._post(keys[self._process], name, payload)
            self._wait(name, keys, time.monotonic() + timeout_s, timeout_s, while_waiting)
            answers = [self._take(name, member, key) for member, key in enumerate(keys)]
            # Everybody came here, so everybody has read what this member gave before.
            self._drop(f"{current - 1}/{self._process}")
        except BaseException as error:
            self.fail(error)
            raise
        return answers

    def fail(self, error: BaseException, *, culprit: int | None = None) -> None:
        """Closes the exchange; every other member raises this error in its open or next call."""
        if self._closed_by:
            return
        origin = f"{self._words.noun} {self._process}"
        report = report_error(error, origin=origin, process=self._process)
        self._closed_by = report.message
        numbers = report.process, report.rank, report.peer, report.status
        with contextlib.suppress(RendezvousError):  # without a store the others see that themselves
            self._store.set_once(
                _ERROR, json.dumps((report.kind, report.message, *numbers)).encode()
            )

    def leave(self) -> None:
        """Ends this member's part, after success or an error; leaving twice is fine, never raises.

        The last to leave empties the store: until then somebody may still read an error or a
        payload. If a member dies before, its exchange stays in the store.
        """
        if self._has_left:
            return
        self._has_left = True
        with contextlib.suppress(RendezvousError):  # a store that is gone has nothing left to empty
            if self._store.add(_NUM_LEFT, 1) == self._num_processes:
                self._empty()

    def _empty(self) -> None:
        # Nobody is more than one round ahead of or behind another, and whoever failed in a round
        # did not drop what it gave in the one before.
        for index in range(max(0, self._round - 2), self._round + 1):
            for member in range(self._num_processes):
                self._drop(f"{index}/{member}")
        for key in (_ERROR, _NUM_LEFT):
            if self._store.has([key]):
                self._store.delete(key)

    def _post(self, key: str, name: str, payload: bytes) -> None:
        starts = range(0, len(payload), _MAX_VALUE_BYTES)
        for index, start in enumerate(starts):
            self._store.set(f"{key}/{index}", payload[start : start + _MAX_VALUE_BYTES])
        self._store.set(key, json.dumps((name, len(starts))).encode())

    def _wait(
        self,
        name: str,
        keys: Sequence[str],
        deadline: float,
        timeout_s: float,
        while_waiting: Callable[[], None] | None,
    ) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            if self._store.has([_ERROR]):
                raise _error_of(self._store.get(_ERROR))
            if self._store.has(keys):
                return
            if time.monotonic() > deadline:
                self._time_out(name, keys, timeout_s)
            if while_waiting is not None:
                while_waiting()
            time.sleep(pause_s)  # stores have no wait that an error could end
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _time_out(self, name: str, keys: Sequence[str], timeout_s: float) -> None:
        noun = self._words.noun
        silent = [str(member) for member, key in enumerate(keys) if not self._store.has([key])]
        raise TransferTimeout(
            f"exchange {name!r}: {len(keys) - len(silent)} of {len(keys)} {_plural(noun)} came "
            f"within {timeout_s:.1f} s. Silent: {noun} {', '.join(silent)} of {self._words.whole}. "
            f"Every {noun} has to make every call. One that is late raises this too, and all may "
            f"call again; {self._words.remedy}"
        )

    def _take(self, name: str, member: int, key: str) -> bytes:
        other_name, num_parts = json.loads(self._store.get(key))
        noun = self._words.noun
        if other_name != name:
            raise RendezvousError(
                f"{noun} {self._process} is in exchange {name!r} and {noun} {member} in exchange "
                f"{other_name!r}: {_plural(noun)} of {self._words.whole} called different things. "
                f"All {_plural(noun)} have to make the same calls in the same order."
            )
        return b"".join(self._store.get(f"{key}/{index}") for index in range(num_parts))

    def _drop(self, key: str) -> None:
        if self._store.has([key]):
            _, num_parts = json.loads(self._store.get(key))
            for index in range(num_parts):
                self._store.delete(f"{key}/{index}")
            self._store.delete(key)


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _error_of(data: bytes) -> ReshardError:
    return rebuild_error(ErrorReport(*json.loads(data)))
