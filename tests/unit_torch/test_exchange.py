"""The exchange on a torch store: everybody gets everything, and errors reach all members."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch.distributed import HashStore  # noqa: E402

from reshard import (  # noqa: E402
    LayoutError,
    RendezvousError,
    StoreExchange,
    TransferTimeout,
    TransportError,
)
from reshard_torch.exchange import exchange_on_store  # noqa: E402

pytestmark = pytest.mark.torch

TIMEOUT_S = 20.0


def _members(count: int, store: HashStore | None = None) -> list[StoreExchange]:
    shared = HashStore() if store is None else store
    return [exchange_on_store(shared, process, count) for process in range(count)]


def _run(members: list[StoreExchange], step: Callable[[StoreExchange], object]) -> list[object]:
    """Runs a step of every member in a thread of its own; exceptions are results too."""

    def caught(member: StoreExchange) -> object:
        try:
            return step(member)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(caught, members))


def test_everybody_gets_everything_in_order() -> None:
    members = _members(3)
    for length in (0, 1, 1000):
        results = _run(
            members,
            lambda m: m.exchange(
                "specs",
                bytes([m.process]) * (length * m.process),  # noqa: B023
                timeout_s=TIMEOUT_S,
            ),
        )
        assert results == [[b"", b"\1" * length, b"\2" * (2 * length)]] * 3


def test_payloads_larger_than_a_value_of_the_store() -> None:
    large = bytes(range(256)) * (5 << 12)  # 5 MiB
    results = _run(_members(2), lambda m: m.exchange("specs", large, timeout_s=TIMEOUT_S))
    assert results == [[large, large]] * 2


def test_one_member_alone() -> None:
    (member,) = _members(1)
    assert member.exchange("x", b"a", timeout_s=0.0) == [b"a"]


def test_silent_members_are_named() -> None:
    members = _members(3)
    start = time.monotonic()
    results = _run(members[:2], lambda m: m.exchange("plan", b"", timeout_s=0.3))
    assert time.monotonic() - start < 5.0
    assert all(isinstance(result, TransferTimeout) for result in results)
    assert all("exchange 'plan': 2 of 3 ranks came" in str(result) for result in results)
    assert all("Silent: rank 2" in str(result) for result in results)
    with pytest.raises(TransferTimeout):
        members[2].exchange("plan", b"", timeout_s=TIMEOUT_S)
    with pytest.raises(RendezvousError, match="closed by an earlier error"):
        members[0].exchange("plan", b"", timeout_s=TIMEOUT_S)


def test_an_error_reaches_those_who_wait_and_keeps_its_class() -> None:
    members = _members(3)

    def step(member: StoreExchange) -> object:
        if member.process == 1:
            member.fail(LayoutError("w: wrong shape"))
            return None
        return member.exchange("specs", b"", timeout_s=TIMEOUT_S)

    results = _run(members, step)
    for result in (results[0], results[2]):
        assert isinstance(result, LayoutError)
        assert "rank 1: w: wrong shape" in str(result)


def test_the_first_error_stands() -> None:
    first, second, third = _members(3)
    first.fail(LayoutError("first"))
    second.fail(LayoutError("second"))
    with pytest.raises(LayoutError, match="first"):
        third.exchange("specs", b"", timeout_s=TIMEOUT_S)


def test_ranks_of_a_transport_error_arrive() -> None:
    first, second = _members(2)
    first.fail(TransportError("lost", rank=3, peer=5, status=7))
    with pytest.raises(TransportError) as caught:
        second.exchange("specs", b"", timeout_s=TIMEOUT_S)
    assert (caught.value.rank, caught.value.peer, caught.value.status) == (3, 5, 7)


def test_what_is_raised_while_waiting_fails_the_exchange_for_all() -> None:
    members = _members(3)

    def died() -> None:
        raise TransportError("process 2 died")

    def step(member: StoreExchange) -> object:
        callback = died if member.process == 0 else None
        return member.exchange("done", b"", timeout_s=TIMEOUT_S, while_waiting=callback)

    results = _run(members[:2], step)
    assert all(isinstance(result, TransportError) for result in results)
    assert all("process 2 died" in str(result) for result in results)


def test_waiting_calls_back_often() -> None:
    first, _ = _members(2)
    calls: list[float] = []
    with pytest.raises(TransferTimeout):
        first.exchange(
            "done", b"", timeout_s=0.5, while_waiting=lambda: calls.append(time.monotonic())
        )
    assert len(calls) > 10


def test_different_names() -> None:
    results = _run(_members(2), lambda m: m.exchange(f"call {m.process}", b"", timeout_s=TIMEOUT_S))
    assert all(isinstance(result, RendezvousError) for result in results)
    assert "exchange 'call 0'" in str(results[0])
    assert "exchange 'call 1'" in str(results[0])


def test_nothing_is_left_in_the_store() -> None:
    store = HashStore()
    members = _members(3, store)
    before = store.num_keys()
    for _ in range(5):
        _run(members, lambda m: m.exchange("specs", b"abc", timeout_s=TIMEOUT_S))
    members[2].fail(LayoutError("late"))
    for member in members:
        member.leave()
        member.leave()
    assert store.num_keys() == before


def test_an_error_stays_until_the_last_member_has_left() -> None:
    store = HashStore()
    members = _members(3, store)
    before = store.num_keys()
    _run(members, lambda m: m.exchange("specs", b"abc", timeout_s=TIMEOUT_S))
    members[1].fail(LayoutError("w: wrong shape"))
    members[1].leave()
    for member in (members[0], members[2]):
        assert store.num_keys() > before
        with pytest.raises(LayoutError, match="w: wrong shape"):
            member.exchange("plan", b"abc", timeout_s=TIMEOUT_S)
        member.leave()
    assert store.num_keys() == before


@pytest.mark.parametrize("last", [0, 1, 2])
def test_all_rounds_of_a_failed_exchange_are_dropped(last: int) -> None:
    """Whoever leaves last, and however far it came."""
    store = HashStore()
    members = _members(3, store)
    before = store.num_keys()
    for _ in range(2):
        _run(members, lambda m: m.exchange("specs", b"abc", timeout_s=TIMEOUT_S))
    results = _run(members[:2], lambda m: m.exchange("plan", b"abc", timeout_s=0.1))
    assert all(isinstance(result, TransferTimeout) for result in results)
    for member in (*(m for m in members if m.process != last), members[last]):
        member.leave()
    assert store.num_keys() == before


class _BrokenStore(HashStore):
    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Connection reset by peer")

    def add(self, key: str, amount: int) -> int:
        raise RuntimeError("Connection reset by peer")

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        raise RuntimeError("Connection reset by peer")


def test_store_that_is_gone() -> None:
    member = exchange_on_store(_BrokenStore(), 0, 2)
    with pytest.raises(RendezvousError, match="store of the process group failed"):
        member.exchange("specs", b"", timeout_s=TIMEOUT_S)
    member.fail(LayoutError("never raises"))
    member.leave()
