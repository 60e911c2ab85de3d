"""One call at a time of an object that threads share, and a close that ends the one under way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reshard.errors import LayoutError, TransferTimeout

__all__ = ["OneCall"]

_CLOSE_S = 30.0


class OneCall:
    """Refuses a call while another thread is in one; calls inside calls are fine.

    Args:
        what: how messages name the object.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._depth = 0  # of calls inside calls; guarded by the lock
        self._holder = ""
        self._free_later: Callable[[], None] | None = None

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call.

        Raises:
            LayoutError: another thread is in one, or closes the object.
        """
        if not self._lock.acquire(blocking=False):
            raise LayoutError(
                f"{self._what}: thread {self._holder!r} is in a call of it, and "
                f"{threading.current_thread().name!r} made another. Make one call at a time: wait "
                "for the first to return."
            )
        try:
            self._depth += 1
            self._holder = threading.current_thread().name
            yield
        finally:
            self._depth -= 1
            free = self._free_later
            try:
                if self._depth == 0 and free is not None:
                    self._free_later = None
                    free()
            finally:
                self._lock.release()

    def close(self, interrupt: Callable[[], None], free: Callable[[], None]) -> None:
        """Frees the object as soon as nobody is in a call of it.

        A call of another thread is made to raise, and waited for. A call of this thread, which a
        signal handler has interrupted, is made to raise, and frees the object when it ends. In a
        forked child, where other threads do not exist, the object is freed at once.

        Args:
            interrupt: makes a call that is under way raise soon.
            free: frees everything; may be called again and again.

        Raises:
            TransferTimeout: the call of another thread did not end within half a minute.
        """
        if os.getpid() != self._pid:
            free()
            return
        if not self._lock.acquire(blocking=False):
            interrupt()
            if not self._lock.acquire(timeout=_CLOSE_S):
                raise TransferTimeout(
                    f"{self._what}: thread {self._holder!r} is still in a call {_CLOSE_S} s after "
                    "it was told to end. Nothing was freed; close it again later."
                )
        try:
            if self._depth:
                self._free_later = free
                interrupt()
                return
            self._holder = f"{threading.current_thread().name}, which closes it"
            free()
        finally:
            self._lock.release()
