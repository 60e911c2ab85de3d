"""Which process is behind which TCP connection of a store, so that a dead one is found by it.

ZeroMQ names a process by its routing id and a connection that ended by its file descriptor. Its
events come from one thread and its messages from another way, so either may be read first, and a
descriptor may be accepted again before the hello of its former owner is read. Descriptor and number
of its acceptance together name one connection.
"""

from __future__ import annotations

__all__ = ["Connections"]


class Connections:
    """The connections of a store."""

    def __init__(self) -> None:
        self._acceptances: dict[int, int] = {}
        self._processes: dict[tuple[int, int], bytes] = {}
        self._ended_unknown: set[tuple[int, int]] = set()

    def accept(self, descriptor: int) -> None:
        """Notes that a connection was accepted."""
        self._ended_unknown.discard(self._key(descriptor))
        self._acceptances[descriptor] = self._acceptances.get(descriptor, 0) + 1

    def end(self, descriptor: int) -> bytes | None:
        """Notes that a connection ended; returns the process behind it, if that said hello."""
        key = self._key(descriptor)
        process = self._processes.pop(key, None)
        if process is None:
            self._ended_unknown.add(key)
        return process

    def hello(self, descriptor: int, process: bytes) -> list[bytes]:
        """Notes who is behind a connection.

        Returns:
            The processes that are gone: this one, if its connection has ended already, and one
            whose hello was read so late that the descriptor was this one's by then.
        """
        key = self._key(descriptor)
        if key in self._ended_unknown:
            self._ended_unknown.discard(key)
            return [process]
        before = self._processes.get(key, process)
        self._processes[key] = process
        return [before] if before != process else []

    def _key(self, descriptor: int) -> tuple[int, int]:
        return descriptor, self._acceptances.get(descriptor, 0)
