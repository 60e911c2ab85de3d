"""Which processes can share memory."""

from __future__ import annotations

import dataclasses
import os

import pytest

from reshard import Topology, UnsupportedError
from reshard.machine import (
    Machine,
    check_one_machine,
    discovered_topology,
    num_copy_threads,
    this_machine,
)


def test_two_processes_of_one_machine_say_the_same():
    assert this_machine() == this_machine()
    check_one_machine(["a", "b"], [this_machine(), this_machine()])


HERE = Machine("node1", "boot", 7)


@pytest.mark.parametrize("other", [Machine("node2", "other boot", 7), Machine("node1", "boot", 8)])
def test_processes_that_cannot_share_memory_are_named(other):
    with pytest.raises(
        UnsupportedError, match=f"a runs on node1 and b on {other.host}.*one machine"
    ):
        check_one_machine(["a", "b"], [HERE, other])


def test_the_name_of_the_host_alone_does_not_matter():
    check_one_machine(["a", "b"], [HERE, Machine("alias", "boot", 7)])


@pytest.mark.parametrize(
    ("cores", "processes", "ranks", "expected"),
    [(16, 1, 8, 8), (16, 4, 8, 4), (2, 3, 4, 1), (64, 4, 1, 1), (6, 4, 2, 1)],
)
def test_a_process_copies_with_a_thread_per_rank_within_its_share_of_cores(
    cores, processes, ranks, expected, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    machines = [Machine("elsewhere", "another boot", 7)] + [HERE] * processes
    assert num_copy_threads(machines, 1, ranks) == expected


def test_a_topology_is_made_of_what_processes_report():
    """Ranks of a side lie on two machines in turn; one of these has slower cards, and fewer."""
    fast, slow = Machine("a", "boot a", 7, 8, 50e9), Machine("b", "boot b", 7, 4, 25e9)
    found = discovered_topology([(0, 2), (1,), (4, 3)], [fast, slow, slow], 11e9)
    assert found.hosts == found.domains == (0, 1, 0, 1, 1)
    assert (found.nics_per_host, found.nic_bytes_per_second) == (4, 25e9)
    assert found.link_bytes_per_second == 11e9
    assert found.name == "discovered"


def test_what_nobody_reports_is_as_on_one_host():
    found = discovered_topology([(0,), (1,)], [HERE, HERE], 0.0)
    usual = Topology.one_host(2)
    assert found == dataclasses.replace(usual, name="discovered")
    known = Machine("node1", "boot", 7, 2, 1e9)
    found = discovered_topology([(0,), (1,)], [HERE, known], 0.0)
    assert (found.nics_per_host, found.nic_bytes_per_second) == (2, 1e9)
