"""Which processes can share memory."""

from __future__ import annotations

import os

import pytest

from reshard import UnsupportedError
from reshard.machine import Machine, check_one_machine, num_copy_threads, this_machine


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
