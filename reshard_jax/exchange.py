"""The exchange among the processes of a JAX job, carried by JAX's own coordination service."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from reshard import MemberWords, RendezvousError, SingleProcessExchange, StoreExchange
from reshard_jax.compat import coordination_client

__all__ = ["JobExchange", "next_exchange"]

JobExchange = StoreExchange | SingleProcessExchange

_PROCESSES = MemberWords(
    "process",
    "the JAX job",
    "after one that left a call out, start the job anew, for processes count calls.",
)
_calls = itertools.count(1)


def next_exchange() -> JobExchange:
    """Returns an exchange of its own for the next call of the job; processes count calls alike.

    So this comes first in a call, before anything that may fail on one process alone.

    Raises:
        RendezvousError: the job has several processes and no coordination service.
    """
    number, num_processes = next(_calls), jax.process_count()
    if num_processes == 1:
        return SingleProcessExchange()
    client = coordination_client()
    if client is None:
        raise RendezvousError(
            f"this JAX job has {num_processes} processes and no coordination service to "
            "carry words between them. Call jax.distributed.initialize() before JAX is used."
        )
    store = _JobStore(client, f"reshard/{number}")
    return StoreExchange(store, jax.process_index(), num_processes, _PROCESSES)


class _JobStore:
    """A corner of the coordination service, whose failures are errors of this library.

    Args:
        client: of the coordination service.
        prefix: of all keys of this store.
    """

    def __init__(self, client: Any, prefix: str) -> None:  # noqa: ANN401 - a class without a name
        self._client = client
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        with _guarded():
            self._client.key_value_set_bytes(self._path(key), value)

    def set_once(self, key: str, value: bytes) -> None:
        with _guarded("ALREADY_EXISTS"):
            self._client.key_value_set_bytes(self._path(key), value)

    def get(self, key: str) -> bytes:
        with _guarded():
            return bytes(self._client.key_value_try_get_bytes(self._path(key)))

    def add(self, key: str, amount: int) -> int:
        with _guarded():
            return int(self._client.key_value_increment(self._path(key), amount))

    def has(self, keys: Sequence[str]) -> bool:
        return all(map(self._has, keys))

    def _has(self, key: str) -> bool:
        with _guarded("NOT_FOUND"):
            self._client.key_value_try_get_bytes(self._path(key))
            return True
        return False

    def delete(self, key: str) -> None:
        with _guarded():
            self._client.key_value_delete(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key}"


@contextlib.contextmanager
def _guarded(expected: str | None = None) -> Iterator[None]:
    """Turns what the service raises into an error; one that begins with `expected` ends quietly."""
    try:
        yield
    except RuntimeError as error:  # jax.errors.JaxRuntimeError
        if expected is not None and str(error).startswith(expected):
            return
        raise RendezvousError(
            f"JAX's coordination service failed ({str(error).splitlines()[0]}); the process that "
            "hosts it may be gone. Start the job anew."
        ) from error
