"""Communicators over shared memory whose processes are threads of this one."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from reshard import _native
from reshard.errors import PlanError, ReshardError, TransferTimeout, TransportError

SEND, RECEIVE, U8 = 0, 1, 1
_numbers = itertools.count()


def new_key():
    return f"python-{os.getpid()}-{next(_numbers)}"


def make_pair(key=None, **changes):
    """Returns two unconnected ends: process 0 sends to process 1."""
    key = key or new_key()
    first = _native.Communicator.shm(key, 0, [0, 1], [1], [], **changes)
    second = _native.Communicator.shm(key, 1, [0, 1], [], [0])
    return first, second


def both(first, second):
    """Runs two functions on two threads and returns what each returned or raised."""

    def outcome(function):
        try:
            return function()
        except ReshardError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return tuple(
            future.result() for future in [pool.submit(outcome, f) for f in (first, second)]
        )


@contextmanager
def connected_pair():
    first, second = make_pair()
    with first, second:
        assert both(lambda: first.connect(10), lambda: second.connect(10)) == (None, None)
        yield first, second


def one_stream(direction, nbytes):
    return _native.Program(
        array("q", [direction, 0, 1]),
        array("q", [0, 0, 0, U8, U8, 1, nbytes, 1]),
        array("q"),
        array("q", [0, nbytes]),
        1,
        4096,
    )


def run(program, communicator, data, run_id=1, timeout_s=10.0):
    addresses = array("Q", [data.ctypes.data])
    return program.run(communicator, addresses, run_id=run_id, timeout_s=timeout_s)


def test_bytes_cross_and_both_ends_count_them():
    sender, receiver = one_stream(SEND, 100_000), one_stream(RECEIVE, 100_000)
    with connected_pair() as (first, second):
        for run_id in range(1, 4):
            source = np.random.default_rng(run_id).integers(0, 256, 100_000, np.uint8)
            destination = np.zeros(100_000, np.uint8)
            sent, received = both(
                lambda source=source, run_id=run_id: run(sender, first, source, run_id),
                lambda data=destination, run_id=run_id: run(receiver, second, data, run_id),
            )
            np.testing.assert_array_equal(destination, source)
            assert (sent.bytes_sent, sent.bytes_received, sent.chunks) == (100_000, 0, 25)
            assert (received.bytes_sent, received.bytes_received) == (0, 100_000)
            assert sent.peak_staging_bytes == received.peak_staging_bytes == 4 * 262_144
            assert 0 < received.ns_unpack <= received.ns_total


def test_a_timeout_names_ranks_as_attributes():
    data = np.zeros(10, np.uint8)
    with connected_pair() as (_, second):
        with pytest.raises(TransferTimeout, match="rank 0 -> rank 1") as caught:
            run(one_stream(RECEIVE, 10), second, data, timeout_s=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.rank, caught.value.peer) == (1, 0)
        assert not _native.is_abort(caught.value)


def test_different_programs_are_a_transport_error_on_both_ends():
    with connected_pair() as (first, second):
        outcomes = both(
            lambda: run(one_stream(SEND, 10), first, np.zeros(10, np.uint8)),
            lambda: run(one_stream(RECEIVE, 11), second, np.zeros(11, np.uint8)),
        )
        assert all(type(each) is TransportError for each in outcomes)
        assert any("10 bytes" in str(each) and "11 bytes" in str(each) for each in outcomes)


def test_a_reason_with_a_file_name_of_any_bytes_is_told():
    first, second = make_pair()
    with first, second:
        both(lambda: first.connect(5), lambda: second.connect(5))
        first.abort("cannot read " + os.fsdecode(b"caf\xe9.bin"))
        with pytest.raises(TransportError, match=r"cannot read caf\\udce9\.bin"):
            second.check_peers()


def test_an_abort_reaches_the_other_end_and_later_runs():
    data = np.zeros(10, np.uint8)
    with connected_pair() as (first, second):
        first.abort("out of paper.")
        for _ in range(2):
            with pytest.raises(TransportError, match=r"process 0 \(rank 0\): out of paper\.") as it:
                run(one_stream(RECEIVE, 10), second, data)
            assert _native.is_abort(it.value)
        with pytest.raises(TransportError, match="this process: out of paper"):
            first.check_peers()


def test_check_peers_is_quiet_while_all_is_well_and_after_an_orderly_close():
    with connected_pair() as (first, second):
        first.check_peers()
        second.close()
        first.check_peers()
        with pytest.raises(TransportError, match="closed its communicator") as caught:
            run(one_stream(SEND, 10), first, np.zeros(10, np.uint8))
        assert (caught.value.rank, caught.value.peer) == (0, 1)


def test_a_closed_communicator_says_so():
    first, second = make_pair()
    for end in (first, second):
        end.close()
        end.close()
    for use in (
        lambda: first.connect(1),
        first.check_peers,
        lambda: first.abort(""),
        lambda: run(one_stream(SEND, 1), first, np.zeros(1, np.uint8)),
    ):
        with pytest.raises(TransportError, match=r"used after close\(\)"):
            use()


def test_a_missing_peer_is_named():
    with _native.Communicator.shm(new_key(), 1, [0, 1, 1], [], [0]) as end:
        with pytest.raises(TransferTimeout, match=r"process 0 \(rank 0\) did not dial"):
            end.connect(0.05)
        with pytest.raises(TransportError, match="aborted by this process"):
            end.connect(0.05)


def test_ends_with_different_slots_refuse_each_other():
    first, second = make_pair(slot_bytes=8192)
    with first, second:
        outcomes = both(lambda: first.connect(10), lambda: second.connect(10))
        assert all("slot_bytes" in str(each) for each in outcomes)


def test_a_key_in_use_is_refused():
    key = new_key()
    first, second = make_pair(key)
    with first, second, pytest.raises(TransportError, match="exists already"):
        make_pair(key)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bad key", 0, [0], [], []), "session key 'bad key'"),
        (("key", 3, [0, 1], [], []), "process 3 is not in 0..1"),
        (("key", 0, [0, 1], [0], []), "names this process"),
        (("key", 0, [0, 1], [1], [], 3), "slot_bytes 3"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        _native.Communicator.shm(*arguments)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_must_be_one(timeout_s):
    first, second = make_pair()
    with first, second, pytest.raises(PlanError, match="timeout_s"):
        first.connect(timeout_s)


def test_a_run_before_connect_is_refused():
    first, second = make_pair()
    with first, second, pytest.raises(TransportError, match="not connected"):
        run(one_stream(SEND, 1), first, np.zeros(1, np.uint8))


def test_closing_on_another_thread_ends_a_run():
    data = np.zeros(10, np.uint8)
    with connected_pair() as (_, second):
        program = one_stream(RECEIVE, 10)
        started = threading.Event()

        def work():
            started.set()
            return run(program, second, data)

        def stop():
            started.wait(10)
            second.close()

        outcome, _ = both(work, stop)
        assert isinstance(outcome, TransportError)


def test_two_threads_cannot_run_one_program_at_once():
    program = one_stream(RECEIVE, 10)
    barrier = threading.Barrier(2)

    def work():
        barrier.wait(10)
        run(program, second, np.zeros(10, np.uint8), timeout_s=3)

    with connected_pair() as (_, second):
        outcomes = both(work, work)
    assert sorted(type(each).__name__ for each in outcomes) == ["TransferTimeout", "TransportError"]
    assert any("another thread runs it" in str(each) for each in outcomes)


class Interrupted(Exception):
    """Stands for KeyboardInterrupt, which would end the test session if it came late."""


def test_an_interrupt_ends_a_run_and_tells_the_peer():
    def interrupt(signum, frame):
        raise Interrupted

    data = np.zeros(10, np.uint8)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with connected_pair() as (first, second):
            program = one_stream(RECEIVE, 10)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            start = time.monotonic()
            with pytest.raises(Interrupted):
                run(program, second, data, timeout_s=60)
            assert time.monotonic() - start < 10
            with pytest.raises(TransportError, match="interrupted"):
                first.check_peers()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_communicators_and_programs_leave_nothing_behind():
    def count():
        own = Path("/proc/self")
        mappings = (own / "maps").read_text().count("memfd:reshard")
        return len(list((own / "fd").iterdir())), len(list((own / "task").iterdir())), mappings

    def has_more(now, then):
        return any(a > b for a, b in zip(now, then, strict=True))

    def cycle():
        data = np.zeros(5000, np.uint8)
        with connected_pair() as (first, second):
            both(
                lambda: run(one_stream(SEND, 5000), first, data),
                lambda: run(one_stream(RECEIVE, 5000), second, data.copy()),
            )
            if next(_numbers) % 2:
                first.abort("test")

    cycle()
    before = count()
    for _ in range(100):
        cycle()
    # A joined thread may be listed for a moment longer, here and in what was counted before.
    limit = time.monotonic() + 10
    while has_more(count(), before) and time.monotonic() < limit:
        os.sched_yield()
    assert not has_more(count(), before), (count(), before)
