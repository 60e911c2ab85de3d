"""Which processes can share memory."""

from __future__ import annotations

import pytest

from reshard import UnsupportedError
from reshard.machine import Machine, check_one_machine, this_machine


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
