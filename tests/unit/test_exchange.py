"""The exchange within one process: all payloads to all, errors to all, limits kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from reshard.errors import PlanError, RendezvousError, ReshardError, TransferTimeout
from reshard.exchange import Exchange, SingleProcessExchange, ThreadExchange


def _run(members: list[ThreadExchange], work: Callable[[ThreadExchange], object]) -> list[object]:
    """Returns what `work` returned or raised for each member, each in its own thread."""
    results: list[object] = [None] * len(members)

    def run(member: ThreadExchange) -> None:
        try:
            results[member.process] = work(member)
        except ReshardError as error:
            results[member.process] = error

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()
    return results


def _exchange(name: str, timeout_s: float = 10.0) -> Callable[[ThreadExchange], list[bytes]]:
    return lambda member: member.exchange(
        name, f"{name} {member.process}".encode(), timeout_s=timeout_s
    )


def test_every_carrier_is_an_exchange() -> None:
    carriers: list[Exchange] = [SingleProcessExchange(), *ThreadExchange.create(2)]
    assert [(carrier.num_processes, carrier.process) for carrier in carriers] == [
        (1, 0),
        (2, 0),
        (2, 1),
    ]


def test_one_process_gets_its_own_payload() -> None:
    assert SingleProcessExchange().exchange("a", b"x", timeout_s=0.0) == [b"x"]


def test_one_process_that_failed_is_closed() -> None:
    exchange = SingleProcessExchange()
    exchange.fail(PlanError("first"))
    exchange.fail(PlanError("second"))
    with pytest.raises(RendezvousError, match="'a': closed by an earlier error: first"):
        exchange.exchange("a", b"x", timeout_s=1.0)


@pytest.mark.parametrize("num_processes", [1, 2, 5])
def test_everybody_gets_all_payloads_in_order_many_times(num_processes: int) -> None:
    def work(member: ThreadExchange) -> list[list[bytes]]:
        return [_exchange(f"round {i % 3}")(member) for i in range(100)]

    results = _run(ThreadExchange.create(num_processes), work)
    expected = [
        [f"round {i % 3} {process}".encode() for process in range(num_processes)]
        for i in range(100)
    ]
    assert results == [expected] * num_processes


def test_a_result_belongs_to_its_caller() -> None:
    def work(member: ThreadExchange) -> list[bytes]:
        gathered = _exchange("a")(member)
        gathered.append(b"mine")
        return gathered

    assert [len(r) for r in _run(ThreadExchange.create(2), work)] == [3, 3]  # type: ignore[arg-type]


def test_another_name_is_told_to_all() -> None:
    def work(member: ThreadExchange) -> list[bytes]:
        return _exchange("digest" if member.process else "done")(member)

    results = _run(ThreadExchange.create(3), work)
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "while process" in str(result)


def test_a_failure_reaches_all_as_the_same_class() -> None:
    def work(member: ThreadExchange) -> object:
        if member.process == 1:
            member.fail(PlanError("names differ"))
            return None
        return _exchange("a")(member)

    results = _run(ThreadExchange.create(3), work)
    for result in (results[0], results[2]):
        assert type(result) is PlanError
        assert str(result) == "process 1: names differ"


def test_an_error_is_raised_once_and_then_the_exchange_is_closed() -> None:
    left, right = ThreadExchange.create(2)
    right.fail(PlanError("names differ"))
    with pytest.raises(PlanError):
        left.exchange("a", b"", timeout_s=5.0)
    for member in (left, right):
        with pytest.raises(RendezvousError, match="closed by an earlier error"):
            member.exchange("b", b"", timeout_s=5.0)


def test_a_new_exchange_knows_nothing_of_an_old_error() -> None:
    left, _ = ThreadExchange.create(2)
    left.fail(PlanError("old"))
    assert _run(ThreadExchange.create(2), _exchange("a")) == [[b"a 0", b"a 1"]] * 2


def test_a_limit_names_the_silent_and_reaches_all() -> None:
    members = ThreadExchange.create(4)
    started = time.monotonic()
    results = _run(members[:2], _exchange("a", 0.3))
    assert 0.3 <= time.monotonic() - started < 2.0
    for result in results:
        assert type(result) is TransferTimeout
        assert "exchange 'a': 2 of 4 processes came within 0.3 s. Silent: process 2, 3." in str(
            result
        )
    with pytest.raises(TransferTimeout):
        members[2].exchange("a", b"", timeout_s=5.0)


def test_the_shortest_limit_counts_for_all() -> None:
    def work(member: ThreadExchange) -> object:
        if member.process == 2:
            return None
        return _exchange("a", 0.2 if member.process == 0 else 30.0)(member)

    results = _run(ThreadExchange.create(3), work)
    assert [type(result) for result in results] == [TransferTimeout, TransferTimeout, type(None)]


def test_while_waiting_is_called_at_least_every_20_ms() -> None:
    left, _ = ThreadExchange.create(2)
    times: list[float] = []
    with pytest.raises(TransferTimeout):
        left.exchange("a", b"", timeout_s=0.5, while_waiting=lambda: times.append(time.monotonic()))
    assert len(times) >= 10  # 50 on an idle machine


def test_what_while_waiting_raises_ends_the_wait_and_reaches_all() -> None:
    def work(member: ThreadExchange) -> object:
        if member.process == 0:
            return _exchange("a")(member)

        def dead_peer() -> None:
            raise TransferTimeout("rank 7 is dead", rank=1, peer=7)

        return member.exchange("a", b"", timeout_s=10.0, while_waiting=dead_peer)

    members = ThreadExchange.create(3)
    results = _run(members[:2], work)
    assert [str(result) for result in results] == ["process 1: rank 7 is dead", "rank 7 is dead"]
    for result in results:
        assert isinstance(result, TransferTimeout)
        assert (result.rank, result.peer) == (1, 7)
