"""Real Python processes over the shm transport: bytes arrive; a killed or stopped one is named."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import time
from array import array

import numpy as np
import pytest
from helpers.ranks import ProcessGroup, listen, run_on_processes, tell

from reshard import _native
from reshard.errors import TransferTimeout, TransportError

pytestmark = pytest.mark.processes

SEND, RECEIVE, U8 = 0, 1, 1
NBYTES = 700_000
_numbers = itertools.count()


def new_key():
    return f"processes-{os.getpid()}-{next(_numbers)}"


def content(src, dst, run_id):
    seed = int.from_bytes(hashlib.sha256(f"{src}/{dst}/{run_id}".encode()).digest()[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, NBYTES, np.uint8)


def connect_mesh(process, num_processes, key):
    """Everybody sends to everybody; one rank per process."""
    others = [p for p in range(num_processes) if p != process]
    communicator = _native.Communicator.shm(key, process, range(num_processes), others, others)
    communicator.connect(30)
    streams = [[SEND, process, p] for p in others] + [[RECEIVE, p, process] for p in others]
    operations = [[s, s, 0, U8, U8, 1, NBYTES, 1] for s in range(len(streams))]
    program = _native.Program(
        array("q", itertools.chain(*streams)),
        array("q", itertools.chain(*operations)),
        array("q"),
        array("q", [0, NBYTES] * len(streams)),
        len(streams),
        262_144,
    )
    return communicator, program, others


def run_once(process, communicator, program, others, run_id, timeout_s):
    sent = [content(process, p, run_id) for p in others]
    received = [np.zeros(NBYTES, np.uint8) for _ in others]
    addresses = array("Q", [each.ctypes.data for each in sent + received])
    program.run(communicator, addresses, run_id=run_id, timeout_s=timeout_s)
    for p, data in zip(others, received, strict=True):
        np.testing.assert_array_equal(data, content(p, process, run_id))


def exchange_a_few_times(process, num_processes, key):
    communicator, program, others = connect_mesh(process, num_processes, key)
    with communicator:
        for run_id in range(5):
            run_once(process, communicator, program, others, run_id, 30)


def exchange_until_something_breaks(process, num_processes, key, timeouts):
    communicator, program, others = connect_mesh(process, num_processes, key)
    with communicator:
        run_id = 0
        while True:
            try:
                run_once(process, communicator, program, others, run_id, timeouts[process])
            except TransportError as error:
                return type(error).__name__, str(error), error.rank, error.peer, time.monotonic()
            tell(run_id)
            run_id += 1


def connect_when_told(process, num_processes, key):
    if process == 1:
        _native.Communicator.shm(key, 1, [0, 1], [0], [0])
        tell("made")
        listen(60)
    listen(60)
    with _native.Communicator.shm(key, 0, [0, 1], [1], [1]) as communicator:
        try:
            communicator.connect(1)
        except TransportError as error:
            return type(error).__name__, str(error)
    return None


def test_every_byte_arrives_between_four_processes():
    run_on_processes(exchange_a_few_times, 4, 60, arguments=[new_key()])


def test_survivors_name_a_killed_process():
    with ProcessGroup(
        exchange_until_something_breaks, 3, 60, arguments=[new_key(), [30] * 3]
    ) as group:
        for _ in range(3):
            group.expect(1)
        killed = time.monotonic()
        group.signal(1, signal.SIGKILL)
        outcomes = [group.wait(process).value for process in (0, 2)]
    for _, message, _, _, when in outcomes:
        assert "process 1 (rank 1)" in message
        assert "died" in message
        assert when - killed < 2
    assert 1 in [peer for *_, peer, _ in outcomes]


def test_a_stopped_process_is_named_at_the_deadline_and_told_when_it_goes_on():
    with ProcessGroup(
        exchange_until_something_breaks, 2, 60, arguments=[new_key(), [4, 60]]
    ) as group:
        group.expect(1)
        group.signal(1, signal.SIGSTOP)
        name, message, rank, peer, _ = group.wait(0).value
        group.signal(1, signal.SIGCONT)
        late = group.wait(1).value
    assert (name, rank, peer) == (TransferTimeout.__name__, 0, 1)
    assert "process 1" in message
    assert "took longer than 4 s" in late[1]


def test_a_process_killed_before_it_connects_is_named():
    with ProcessGroup(connect_when_told, 2, 60, arguments=[new_key()]) as group:
        group.expect(1)
        group.signal(1, signal.SIGKILL)
        group.wait(1)
        group.send(0, "go")
        name, message = group.wait(0).value
    assert name == TransferTimeout.__name__
    assert "process 1 (rank 1) is not there" in message
