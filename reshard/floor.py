"""How fast this machine copies memory: the yardstick of a refit within one machine."""

from __future__ import annotations

import os
import time

__all__ = ["one_copy_seconds", "probe_copy_rate"]

_PROBE_BYTES = 8 << 20
_PROBE_ROUNDS = 3


def probe_copy_rate() -> float:
    """Returns bytes per second of one thread copying memory, best of a few rounds (about 5 ms)."""
    source, target = bytearray(_PROBE_BYTES), bytearray(_PROBE_BYTES)
    best = float("inf")
    for _ in range(_PROBE_ROUNDS):
        start = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - start)
    return _PROBE_BYTES / best


def one_copy_seconds(nbytes_in: list[int], copy_rate: float) -> float:
    """Returns the time in which destinations could copy their bytes once, out of shared memory.

    Args:
        nbytes_in: bytes that each destination process receives.
        copy_rate: bytes per second of one thread.

    The processes copy side by side, as far as there are cores; no refit by memory copies between
    processes can be faster than the busiest of them, or than all of them on all cores.
    """
    cores = len(os.sched_getaffinity(0))
    return max(max(nbytes_in, default=0), sum(nbytes_in) / cores) / copy_rate
