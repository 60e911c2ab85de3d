"""The exchange among the ranks of a process group, carried by the group's own store.

A store fits better than collectives: an error is a key that everybody sees whatever they wait for,
a silent rank can be named, and a wait that is given up leaves nothing behind in the group.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from reshard import RendezvousError, ReshardError, TransferTimeout
from reshard.error_report import ErrorReport, rebuild_error, report_error
from reshard_torch.compat import group_store

__all__ = ["StoreExchange"]

# TCPStore refuses values of more than 8 MiB.
_MAX_VALUE_BYTES = 4 << 20
_ERROR = "error"
_NUM_LEFT = "left"
_FIRST_PAUSE_S = 0.0002
_LAST_PAUSE_S = 0.01


class StoreExchange:
    """Implements `reshard.exchange.Exchange` on a torch store.

    Args:
        store: for this exchange alone.
        process: index of this member.
        num_processes: how many members there are.
    """

    hub = None  # the store may be anybody's, and torch does not tell whose

    def __init__(self, store: Store, process: int, num_processes: int) -> None:
        self._store = _GuardedStore(store)
        self._process = process
        self._num_processes = num_processes
        self._round = 0
        self._closed_by = ""
        self._has_left = False

    @classmethod
    def of_group(cls, group: dist.ProcessGroup | None, label: str) -> StoreExchange:
        """Returns an exchange among the ranks of a group, in its own store.

        Args:
            group: the ranks; None means the default group.
            label: tells this exchange from all others of the group; the same on all ranks.
        """
        store = PrefixStore(f"reshard/{label}", group_store(group))
        return cls(store, dist.get_rank(group), dist.get_world_size(group))

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
        report = report_error(error, origin=f"rank {self._process}", process=self._process)
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
                silent = [str(rank) for rank, key in enumerate(keys) if not self._store.has([key])]
                raise TransferTimeout(
                    f"exchange {name!r}: {len(keys) - len(silent)} of {len(keys)} ranks came "
                    f"within {timeout_s:.1f} s. Silent: rank {', '.join(silent)} of the process "
                    "group. Every rank has to make every call. One that is late raises this too, "
                    "and all may call again; after one that left a call out, make a new group "
                    "(torch.distributed.new_group), for ranks count calls."
                )
            if while_waiting is not None:
                while_waiting()
            time.sleep(pause_s)  # a store of torch has no wait that an error could end
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _take(self, name: str, member: int, key: str) -> bytes:
        other_name, num_parts = json.loads(self._store.get(key))
        if other_name != name:
            raise RendezvousError(
                f"rank {self._process} is in exchange {name!r} and rank {member} in exchange "
                f"{other_name!r}: ranks of the group called different things. All ranks have to "
                "make the same calls in the same order."
            )
        return b"".join(self._store.get(f"{key}/{index}") for index in range(num_parts))

    def _drop(self, key: str) -> None:
        if self._store.has([key]):
            _, num_parts = json.loads(self._store.get(key))
            for index in range(num_parts):
                self._store.delete(f"{key}/{index}")
            self._store.delete(key)


class _GuardedStore:
    """A torch store whose failures are errors of this library."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        with _guarded():
            self._store.set(key, value)  # type: ignore[arg-type]  # bytes are right, stubs say str

    def set_once(self, key: str, value: bytes) -> None:
        with _guarded():
            self._store.compare_set(key, "", value)  # type: ignore[arg-type]  # as above

    def get(self, key: str) -> bytes:
        with _guarded():
            return bytes(self._store.get(key))

    def add(self, key: str, amount: int) -> int:
        with _guarded():
            return int(self._store.add(key, amount))

    def has(self, keys: Sequence[str]) -> bool:
        with _guarded():
            return bool(self._store.check(list(keys)))

    def delete(self, key: str) -> None:
        with _guarded():
            self._store.delete_key(key)


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what torch raises for all faults of stores
        raise RendezvousError(
            f"the store of the process group failed ({error}); the rank that hosts it may be gone. "
            "Make the process group anew."
        ) from error


def _error_of(data: bytes) -> ReshardError:
    return rebuild_error(ErrorReport(*json.loads(data)))
