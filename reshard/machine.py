"""Which machine a process runs on, as far as shared memory is concerned."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reshard.errors import UnsupportedError

__all__ = ["Machine", "check_one_machine", "num_copy_threads", "this_machine"]


_MAX_COPY_THREADS = 64  # a few saturate the memory


class Machine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place that processes must share to share memory.

    Attributes:
        host: name, for messages.
        boot_id: what the kernel calls this boot; differs between machines.
        network_namespace: abstract UNIX sockets are seen within one namespace only.
    """

    host: str
    boot_id: str
    network_namespace: int


def this_machine() -> Machine:
    """Returns where this process runs."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/net").stat().st_ino
    return Machine(socket.gethostname(), boot_id, namespace)


def num_copy_threads(machines: Sequence[Machine], process: int, num_ranks: int) -> int:
    """Returns how many threads of a process may copy: one per rank, within its share of the cores.

    Args:
        machines: where each process runs.
        process: which of them this is.
        num_ranks: how many ranks it drives.
    """
    num_neighbours = [each.boot_id for each in machines].count(machines[process].boot_id)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, min(num_ranks, num_cores // num_neighbours, _MAX_COPY_THREADS))


def check_one_machine(names: Sequence[str], machines: Sequence[Machine]) -> None:
    """Checks that all processes can reach each other through shared memory.

    Raises:
        UnsupportedError: naming two that cannot.
    """
    for name, machine in zip(names, machines, strict=True):
        first = machines[0]
        if (machine.boot_id, machine.network_namespace) != (first.boot_id, first.network_namespace):
            raise UnsupportedError(
                f"{names[0]} runs on {first.host} and {name} on {machine.host}, or in containers "
                "with networks of their own: this version moves bytes through shared memory of one "
                "machine. Start all processes on one machine in one network namespace."
            )
