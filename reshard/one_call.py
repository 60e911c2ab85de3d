"""One call at a time of an object that threads share, and a close that ends the one under way."""

from __future__ import annotations

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
        self._caller = ""

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call.

        Raises:
            LayoutError: another thread is in one.
        """
        if not self._lock.acquire(blocking=False):
            raise LayoutError(
                f"{self._what}: thread {self._caller!r} is in a call of it, and "
                f"{threading.current_thread().name!r} made another. Make one call at a time: wait "
                "for the first to return, or close this to end it."
            )
        try:
            self._caller = threading.current_thread().name
            yield
        finally:
            self._lock.release()

    @contextmanager
    def closing(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """The end: makes a call of another thread raise, and waits until it has.

        Args:
            interrupt: makes the call of another thread raise soon; called from this one.

        Raises:
            TransferTimeout: the call did not end within half a minute.
        """
        if not self._lock.acquire(blocking=False):
            interrupt()
            if not self._lock.acquire(timeout=_CLOSE_S):
                raise TransferTimeout(
                    f"{self._what}: thread {self._caller!r} is still in a call {_CLOSE_S} s after "
                    "it was told to end. Nothing was freed; close it again later."
                )
        try:
            yield
        finally:
            self._lock.release()
