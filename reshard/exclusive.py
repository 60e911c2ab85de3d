"""A lock for what one thread at a time may be in, which an exception at any moment does not leak.

Ctrl-C, and signal handlers that raise, come between any two steps of Python. A plain lock that was
taken just then would stay taken, and whoever cleans up would wait for itself.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["Exclusive", "Hold"]


class Exclusive:
    """A lock that its thread may take again inside."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()  # typeshed does not know `_is_owned`
        self.outermost: Callable[[], Hold | None] = _nobody
        self._pid = os.getpid()

    @property
    def is_of_parent(self) -> bool:
        """True in a forked child, where a thread that holds it may not exist."""
        return os.getpid() != self._pid

    @property
    def is_mine(self) -> bool:
        """True if this thread holds it."""
        return bool(self.lock._is_owned())

    def hold(
        self, refuse: Callable[[], Exception] = BlockingIOError, *, timeout_s: float = 0.0
    ) -> Hold:
        """Returns what takes it as long as a `with` lasts.

        Args:
            refuse: makes what the `with` raises where another thread holds it.
            timeout_s: how long to wait for that one.
        """
        return Hold(self, refuse, timeout_s)


def _nobody() -> None:
    return None


class Hold:
    """Holds an `Exclusive`; the outermost hold of a thread gives it back whatever happened.

    Attributes:
        is_outermost: whether its thread holds it no further out; known once it is taken.
    """

    __slots__ = ("__weakref__", "_exclusive", "_has_taken", "_refuse", "_timeout_s", "is_outermost")

    def __init__(
        self, exclusive: Exclusive, refuse: Callable[[], Exception], timeout_s: float
    ) -> None:
        self._exclusive = exclusive
        self._refuse = refuse
        self._timeout_s = timeout_s
        self._has_taken = False
        self.is_outermost = True

    def __enter__(self) -> Self:
        exclusive = self._exclusive
        # An interrupt just as a hold ends leaves the lock taken, but nobody refers to that hold.
        self.is_outermost = not exclusive.is_mine or exclusive.outermost() is None
        try:
            self._has_taken = exclusive.lock.acquire(timeout=self._timeout_s)
            if not self._has_taken:
                raise self._refuse()
            if self.is_outermost:
                exclusive.outermost = weakref.ref(self)
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        exclusive = self._exclusive
        if not exclusive.is_mine:
            return
        if self.is_outermost:
            while exclusive.is_mine:
                exclusive.lock.release()
        elif self._has_taken:
            exclusive.lock.release()
