"""One call at a time of an object that threads share, and a close that ends the one under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from reshard.errors import LayoutError, TransferTimeout
from reshard.exclusive import Exclusive

__all__ = ["Call", "OneCall"]

_CLOSE_S = 30.0


class OneCall:
    """Refuses a call while another thread is in one; calls inside calls are fine.

    Args:
        what: how messages name the object.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._busy = Exclusive()
        self._holder = ""
        self._free_later: Callable[[], None] | None = None

    def calling(self) -> Call:
        """A call, as long as a `with` lasts.

        Raises:
            LayoutError: another thread is in one, or closes the object.
        """
        return Call(self)

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
        if self._busy.is_of_parent:
            free()
            return
        try:
            self._free_now(0.0, interrupt, free)
        except BlockingIOError:
            interrupt()
            try:
                self._free_now(_CLOSE_S, interrupt, free)
            except BlockingIOError:
                raise TransferTimeout(
                    f"{self._what}: thread {self._holder!r} is still in a call {_CLOSE_S} s after "
                    "it was told to end. Nothing was freed; close it again later."
                ) from None

    def _refusal(self) -> LayoutError:
        return LayoutError(
            f"{self._what}: thread {self._holder!r} is in a call of it, and "
            f"{threading.current_thread().name!r} made another. Make one call at a time: wait for "
            "the first to return."
        )

    def _free_now(
        self, timeout_s: float, interrupt: Callable[[], None], free: Callable[[], None]
    ) -> None:
        with self._busy.hold(timeout_s=timeout_s) as hold:
            if not hold.is_outermost:
                self._free_later = free
                interrupt()
                return
            self._holder = f"{threading.current_thread().name}, which closes it"
            free()


class Call:
    """A call of an object of `OneCall`."""

    __slots__ = ("_calls", "_hold")

    def __init__(self, calls: OneCall) -> None:
        self._calls = calls
        self._hold = calls._busy.hold(calls._refusal)

    def __enter__(self) -> None:
        self._hold.__enter__()
        self._calls._holder = threading.current_thread().name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        calls = self._calls
        free = calls._free_later if self._hold.is_outermost else None
        try:
            if free is not None:
                calls._free_later = None
                free()
        finally:
            self._hold.__exit__(kind, error, trace)
