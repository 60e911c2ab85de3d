"""The exchange among the ranks of a process group, carried by the group's own store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from reshard import MemberWords, RendezvousError, StoreExchange
from reshard_torch.compat import group_store

__all__ = ["exchange_of_group", "exchange_on_store"]

_RANKS = MemberWords(
    "rank",
    "the process group",
    "after one that left a call out, make a new group (torch.distributed.new_group), for ranks "
    "count calls.",
)


def exchange_of_group(group: dist.ProcessGroup | None, label: str) -> StoreExchange:
    """Returns an exchange among the ranks of a group, in its own store.

    Args:
        group: the ranks; None means the default group.
        label: tells this exchange from all others of the group; the same on all ranks.
    """
    store = PrefixStore(f"reshard/{label}", group_store(group))
    return exchange_on_store(store, dist.get_rank(group), dist.get_world_size(group))


def exchange_on_store(store: Store, process: int, num_processes: int) -> StoreExchange:
    """Returns a member's end of an exchange on a torch store that is for this exchange alone."""
    return StoreExchange(_GuardedStore(store), process, num_processes, _RANKS)


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
