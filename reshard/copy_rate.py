"""How fast this machine copies memory: the yardstick of a refit within one machine."""

from __future__ import annotations

import mmap
import os
import time

__all__ = ["one_copy_seconds", "probe_copy_rate"]

# Larger than the last-level cache of most machines, smaller than the default staging budget; one
# half is read, the other written.
_PROBE_BYTES = 48 << 20
_PROBE_ROUNDS = 3


def probe_copy_rate() -> float:
    """Returns bytes per second of one thread copying memory that is in no cache (about 50 ms)."""
    half = _PROBE_BYTES // 2
    best = float("inf")
    with mmap.mmap(-1, _PROBE_BYTES) as region, memoryview(region) as view:
        source, target = view[:half], view[half:]
        for page in range(0, _PROBE_BYTES, mmap.PAGESIZE):
            view[page] = 1
        for _ in range(_PROBE_ROUNDS):
            start = time.perf_counter()
            target[:] = source
            best = min(best, time.perf_counter() - start)
        source.release()
        target.release()
    return half / best


def one_copy_seconds(nbytes_in: list[int], copy_rate: float) -> float:
    """Returns the time in which destinations could copy their bytes once, out of shared memory.

    Args:
        nbytes_in: bytes that each destination process receives.
        copy_rate: bytes per second of one thread; 0 where it was not probed.

    Returns:
        Seconds; 0 if the rate is unknown. The processes copy side by side, as far as there are
        cores; no refit by memory copies between processes can be faster than the busiest of them,
        or than all of them on all cores.
    """
    if copy_rate <= 0:
        return 0.0
    cores = len(os.sched_getaffinity(0))
    return max(max(nbytes_in, default=0), sum(nbytes_in) / cores) / copy_rate
