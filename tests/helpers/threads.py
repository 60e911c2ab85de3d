"""What tests need of a second thread: one that is inside of something, and a wait for one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

__all__ = ["WAIT_S", "inside_elsewhere", "wait_until"]

WAIT_S = 10.0


@contextlib.contextmanager
def inside_elsewhere(
    context: contextlib.AbstractContextManager[object], until: threading.Event | None = None
) -> Iterator[None]:
    """Another thread is inside of a context until this one ends, or an event comes."""
    is_in, may_end = threading.Event(), threading.Event() if until is None else until

    def stay() -> None:
        with context:
            is_in.set()
            assert may_end.wait(WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(stay)
        try:
            assert is_in.wait(WAIT_S)
            yield
        finally:
            may_end.set()
        other.result(WAIT_S)


def wait_until(condition: Callable[[], object], limit_s: float = WAIT_S) -> None:
    """Waits for what another thread does and tells nobody about."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.002)
