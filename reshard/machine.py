"""Which machine a process runs on, and what joins it to others."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reshard.errors import UnsupportedError
from reshard.network_cards import find_cards
from reshard.topology import Topology

__all__ = [
    "NVLINK_BYTES_PER_SECOND",
    "Machine",
    "check_one_machine",
    "discovered_topology",
    "num_copy_threads",
    "this_machine",
]


NVLINK_BYTES_PER_SECOND = Topology.dgx_h100(1).link_bytes_per_second
"""What joins the GPUs of a machine, unless somebody knows better."""

_MAX_COPY_THREADS = 64  # a few saturate the memory


class Machine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place that processes must share to share memory.

    Attributes:
        host: name, for messages.
        boot_id: what the kernel calls this boot; differs between machines.
        network_namespace: abstract UNIX sockets are seen within one namespace only.
        num_cards: network cards whose speed is known.
        card_bytes_per_second: of one of them, in each direction; 0 if there are none.
    """

    host: str
    boot_id: str
    network_namespace: int
    num_cards: int = 0
    card_bytes_per_second: float = 0.0


def this_machine() -> Machine:
    """Returns where this process runs."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/net").stat().st_ino
    return Machine(socket.gethostname(), boot_id, namespace, *find_cards())


def discovered_topology(
    ranks: Sequence[Sequence[int]], machines: Sequence[Machine], link_rate: float
) -> Topology:
    """Returns where ranks are by what their processes report; a machine's memory is a domain.

    Rates that nobody knows are those of `Topology.one_host`. Where machines differ, the fewest
    cards and the slowest ones count.

    Args:
        ranks: of each process, in the numbers of the plan; all from 0 on.
        machines: where each process runs.
        link_rate: bytes per second at which ranks of one machine reach each other; 0 if unknown.
    """
    place_of = {rank: machines[p].boot_id for p, own in enumerate(ranks) for rank in own}
    places = [(place_of[rank], place_of[rank]) for rank in sorted(place_of)]
    known = [each for each in machines if each.num_cards]
    unknown = Topology.one_host(1)
    return Topology.of_places(
        places,
        nics_per_host=min([each.num_cards for each in known], default=unknown.nics_per_host),
        nic_bytes_per_second=min(
            [each.card_bytes_per_second for each in known], default=unknown.nic_bytes_per_second
        ),
        link_bytes_per_second=link_rate or unknown.link_bytes_per_second,
    )


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
                "with networks of their own: this version moves host memory through shared memory "
                "of one machine. Start all processes on one machine in one network namespace, or "
                "keep the weights on GPUs, for NCCL."
            )
