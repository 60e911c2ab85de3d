"""Memory of the caller that a GPU may still use after a refit failed: held until it is done.

What a failed run had queued may wait for a stream that is stuck and write later. Arrays that nobody
held by then would be somebody else's memory, as JAX's go back to a pool at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["free_idle_memory", "hold_while_busy"]

# Guards _held; the native library is called under it, and calls nothing of ours.
_lock = threading.Lock()
_held: list[object] = []


def hold_while_busy(owners: Iterable[object]) -> None:
    """Holds whatever keeps memory alive, if any GPU of this process has something left to do.

    It is let go by the first call of `free_idle_memory` that finds them idle.
    """
    with _lock:
        _held.extend(owners)
    free_idle_memory()


def free_idle_memory() -> None:
    """Lets go what was held, if nothing that failed runs left is queued any more."""
    from reshard._native_libraries import count_gpu_leftovers

    with _lock:
        is_idle = bool(_held) and count_gpu_leftovers() == 0
        owners = _held[:] if is_idle else []
        if is_idle:
            _held.clear()
    del owners  # outside of the lock: what ends with them may be anybody's code
