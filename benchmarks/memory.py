"""Reads how much memory a process uses now and at most, from /proc.

The peak is the kernel's own high-water mark of the resident set, which it resets on request; so a
short peak between two samples cannot be missed. Shared memory that is mapped and touched counts in
full in every process that maps it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import pathlib

__all__ = [
    "Memory",
    "descendants_cpu_seconds",
    "descendants_of",
    "proportional_bytes_of",
    "read_memory",
    "reset_peak",
    "settle",
    "shared_bytes_of",
]

_CLEAR_PEAK = "5"  # proc(5), clear_refs: reset the peak resident set size


@dataclasses.dataclass(frozen=True)
class Memory:
    """Resident bytes of one process, as /proc/PID/status has them.

    `files` are pages of ordinary files, which here is program code; `peak` is the high-water mark
    of `resident`.
    """

    resident: int
    peak: int
    anonymous: int
    shared: int
    files: int


def read_memory() -> Memory:
    """Returns the resident memory of this process."""
    fields = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if value.strip().endswith(" kB"):
            fields[key] = int(value.split()[0]) * 1024
    return Memory(
        resident=fields["VmRSS"],
        peak=fields["VmHWM"],
        anonymous=fields["RssAnon"],
        shared=fields["RssShmem"],
        files=fields["RssFile"],
    )


def reset_peak() -> None:
    """Sets the high-water mark of this process to what it uses now."""
    pathlib.Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)


def settle() -> None:
    """Gives freed memory back to the system, so that it cannot hide what comes next."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def descendants_of(pid: int) -> list[int]:
    """Returns the process ids of all living descendants."""
    found: list[int] = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants_of(int(child))]
    return found


def descendants_cpu_seconds() -> float:
    """Returns the processor time that living descendants of this process have used."""
    ticks = 0
    for pid in descendants_of(os.getpid()):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime: fields 14 and 15 of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def proportional_bytes_of(pid: int) -> int:
    """Returns the resident memory of a process, shared pages divided among those that map them."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def shared_bytes_of(folder: pathlib.Path) -> int:
    """Returns the bytes that the files below a folder of shared memory occupy."""
    blocks = [path.stat().st_blocks for path in folder.rglob("*") if path.is_file()]
    return 512 * sum(blocks)
