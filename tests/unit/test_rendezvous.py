"""Processes that meet at a store, played by threads: refits form, fail, and go on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from helpers.threads import wait_until

from reshard.control_messages import Begin, Request
from reshard.errors import LayoutError, PlanError, RendezvousError, ReshardError, TransferTimeout
from reshard.exchange import Exchange
from reshard.local_member import local_member
from reshard.membership import Membership
from reshard.rendezvous import Go, Rendezvous
from reshard.store import StoreGoneError
from reshard.store_server import StoreServer

WAIT_S = 20.0
ResultT = TypeVar("ResultT")


def _open(
    address: str, name: str, process: int = 0, num_processes: int = 1, token: str | None = None
) -> Rendezvous:
    """Returns a registered process; a name that starts with "source" is a source."""
    member = local_member(
        "source" if name.startswith("source") else "destination",
        name,
        process=process,
        num_processes=num_processes,
        ranks=[process],
        num_ranks=num_processes,
    )
    rendezvous = Rendezvous(address, member, token=token)
    rendezvous.connect(WAIT_S)
    return rendezvous


@contextlib.contextmanager
def _team(*names: str) -> Iterator[tuple[StoreServer, list[Rendezvous]]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(StoreServer("tcp://127.0.0.1:0"))
        members = [stack.enter_context(_open(server.address, name)) for name in names]
        yield server, members


def _together(*calls: Callable[[], ResultT]) -> list[ResultT | ReshardError]:
    """Returns what each call returned or raised, all of them run at the same time."""

    def run(call: Callable[[], ResultT]) -> ResultT | ReshardError:
        try:
            return call()
        except ReshardError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(WAIT_S) for future in [pool.submit(run, call) for call in calls]]


def _begin(members: Sequence[Rendezvous], **options: float) -> list[Go]:
    def call(member: Rendezvous) -> Callable[[], Go]:
        return lambda: member.begin(b"", **{"timeout_s": WAIT_S, **options})  # type: ignore[arg-type]

    results = _together(*map(call, members))
    for result in results:
        assert isinstance(result, Go), result
    return [result for result in results if isinstance(result, Go)]


def _has_lost_its_store(member: Rendezvous) -> bool:
    return member._client is not None and member._client.is_lost


@contextlib.contextmanager
def _waiting(server: StoreServer, member: Rendezvous) -> Iterator[concurrent.futures.Future[Go]]:
    """A begin that the store has received and not answered."""
    before = server.messages_received
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(member.begin, timeout_s=WAIT_S)
        wait_until(lambda: server.messages_received > before)
        yield future


@contextlib.contextmanager
def _waiting_in_exchange(
    server: StoreServer, member: Rendezvous, go: Go
) -> Iterator[concurrent.futures.Future[list[bytes]]]:
    """An exchange that the store has received and not answered."""
    before = server.messages_received
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        exchange = member.exchange_of(go)
        future = pool.submit(exchange.exchange, "done", b"", timeout_s=WAIT_S)
        wait_until(lambda: server.messages_received > before)
        yield future


def _exchange(
    members: Sequence[Rendezvous], goes: Sequence[Go], name: str = "done"
) -> list[list[bytes] | ReshardError]:
    def call(member: Rendezvous, go: Go) -> Callable[[], list[bytes]]:
        return lambda: member.exchange_of(go).exchange(
            name, f"{name} {go.process}".encode(), timeout_s=WAIT_S
        )

    return _together(*map(call, members, goes))


def test_a_refit_is_one_request_for_begin_and_one_for_each_exchange() -> None:
    with _team("source", "engine", "other") as (server, members):
        _begin(members)
        before = server.messages_received
        goes = _begin(members)
        assert _exchange(members, goes) == [[b"done 0", b"done 1", b"done 2"]] * 3
        assert server.messages_received == before + 2 * len(members)


def test_every_member_learns_of_all_members_and_payloads() -> None:
    with _team("source", "engine") as (_, members):
        results = _together(
            lambda: members[0].begin(b"from source", timeout_s=WAIT_S, version=4),
            lambda: members[1].begin(b"from engine", timeout_s=WAIT_S),
        )
        for index, go in enumerate(results):
            assert isinstance(go, Go)
            assert (go.epoch, go.refit, go.version, go.process) == (1, 1, 4, index)
            assert go.payloads == (b"from source", b"from engine")
            assert [member.group for member in go.members] == ["source", "engine"]
            assert all(member.pid > 0 and member.host for member in go.members)


def test_members_are_known_in_later_refits_of_an_epoch() -> None:
    with _team("source", "engine") as (_, members):
        first = _begin(members)
        second = _begin(members)
        assert [(go.epoch, go.refit) for go in second] == [(1, 2), (1, 2)]
        assert second[0].members == second[1].members == first[0].members


def test_the_carrier_of_an_epoch_is_an_exchange() -> None:
    with _team("source", "engine") as (_, members):
        goes = _begin(members)
        exchange: Exchange = members[1].exchange_of(goes[1])
        assert (exchange.num_processes, exchange.process) == (2, 1)


def test_large_payloads_travel() -> None:
    with _team("source", "engine") as (_, members):
        payload = bytes(range(256)) * (1 << 14)
        goes = _begin(members)
        results = _together(
            *(
                lambda m=member, go=go: m.exchange_of(go).exchange(
                    "layouts", payload, timeout_s=WAIT_S
                )
                for member, go in zip(members, goes, strict=True)
            )
        )
        assert results == [[payload, payload]] * 2


def test_a_failure_reaches_all_with_its_class_and_ends_with_the_epoch() -> None:
    with _team("source", "engine", "other") as (_, members):
        goes = _begin(members)
        exchanges = [member.exchange_of(go) for member, go in zip(members, goes, strict=True)]
        exchanges[1].fail(PlanError("names differ"))
        for exchange in (exchanges[0], exchanges[2]):
            with pytest.raises(PlanError, match=r"destination 'engine' process 0 .*: names differ"):
                exchange.exchange("done", b"", timeout_s=WAIT_S)
        for exchange in exchanges:
            with pytest.raises(RendezvousError, match="closed by an earlier error"):
                exchange.exchange("done", b"", timeout_s=WAIT_S)
        goes = _begin(members)
        assert [go.epoch for go in goes] == [2, 2, 2]
        assert _exchange(members, goes)[0] == [b"done 0", b"done 1", b"done 2"]


def test_what_while_waiting_raises_reaches_all_and_the_culprit_can_be_named_after_it() -> None:
    with _team("source", "engine", "silent") as (server, members):
        goes = _begin(members)

        def dead_peer() -> None:
            raise TransferTimeout("rank 2 is dead", rank=0, peer=2)

        def source() -> None:
            exchange = members[0].exchange_of(goes[0])
            try:
                exchange.exchange("done", b"", timeout_s=WAIT_S, while_waiting=dead_peer)
            except TransferTimeout as error:
                exchange.fail(error, culprit=2)
                raise

        results = _together(
            source,
            lambda: members[1].exchange_of(goes[1]).exchange("done", b"", timeout_s=WAIT_S),
        )
        for result in results:
            assert type(result) is TransferTimeout
            assert str(result).endswith("rank 2 is dead")
            assert (result.rank, result.peer) == (0, 2)
        assert [go.epoch for go in _begin(members[:2])] == [2, 2]
        with _waiting(server, members[2]) as waiting:
            assert [go.epoch for go in _begin(members[:2])] == [3, 3]
            assert waiting.result(WAIT_S).process == 2


def test_a_stale_exchange_does_not_disturb_a_later_refit() -> None:
    with _team("source", "engine") as (_, members):
        old = _begin(members)
        stale = members[0].exchange_of(old[0])
        goes = _begin(members)
        with pytest.raises(RendezvousError, match="epoch 1, refit 1 is over"):
            stale.exchange("done", b"", timeout_s=WAIT_S)
        stale.fail(PlanError("late"))
        assert _exchange(members, goes) == [[b"done 0", b"done 1"]] * 2


def test_a_silent_destination_is_dropped_and_rejoins() -> None:
    with _team("source", "engine", "silent") as (server, members):
        started = time.monotonic()
        results = _together(*(lambda m=m: m.begin(timeout_s=0.5) for m in members[:2]))
        assert 0.4 < time.monotonic() - started < 3.0
        for result in results:
            assert isinstance(result, TransferTimeout)
            assert "destination 'silent' process 0" in str(result)
        assert [len(go.members) for go in _begin(members[:2])] == [2, 2]
        with _waiting(server, members[2]) as waiting:
            assert [len(go.members) for go in _begin(members[:2])] == [3, 3]
            assert waiting.result(WAIT_S).process == 2


def test_a_begin_that_is_interrupted_is_withdrawn() -> None:
    with _team("source", "engine") as (server, members):

        def interrupt() -> None:
            raise KeyboardInterrupt

        before = server.messages_received
        with pytest.raises(KeyboardInterrupt):
            members[0].begin(timeout_s=WAIT_S, while_waiting=interrupt)
        # Begin and withdrawal; another connection's begin could overtake the second.
        wait_until(lambda: server.messages_received == before + 2)
        with pytest.raises(TransferTimeout, match=r"source 'source' process 0 .*gave up"):
            members[1].begin(timeout_s=0.2)
        assert [go.epoch for go in _begin(members)] == [1, 1]


def test_a_begin_is_withdrawn_when_the_refit_has_formed_already() -> None:
    with _team("source", "engine") as (server, members):
        goes = _begin(members)
        with _waiting_in_exchange(server, members[0], goes[0]) as waiting:
            members[1].withdraw()  # as after an interrupt just behind begin
            members[1].withdraw()
            with pytest.raises(RendezvousError, match=r"engine.* gave up just as the refit began"):
                waiting.result(5.0)
        assert [go.epoch for go in _begin(members)] == [2, 2]


def test_a_begin_that_never_was_is_not_withdrawn() -> None:
    with _team("source", "engine") as (_, members):
        goes = _begin(members)
        with pytest.raises(LayoutError, match="timeout_s="):
            members[1].begin(timeout_s=-1.0)
        members[1].withdraw()
        assert _exchange(members, goes) == [[b"done 0", b"done 1"]] * 2


def test_many_refits_fail_and_leave_nothing_in_the_way_of_the_next() -> None:
    with _team("source", "engine") as (_, members):
        for number in range(1, 101):
            goes = _begin(members)
            assert [go.epoch for go in goes] == [number, number]
            members[number % 2].exchange_of(goes[number % 2]).fail(PlanError(f"error {number}"))
            with pytest.raises(PlanError, match=f"error {number}$"):
                members[1 - number % 2].exchange_of(goes[1 - number % 2]).exchange(
                    "done", b"", timeout_s=WAIT_S
                )
        assert _exchange(members, _begin(members)) == [[b"done 0", b"done 1"]] * 2


def test_leaving_ends_the_wait_of_the_others() -> None:
    with _team("source", "engine") as (server, members), _waiting(server, members[1]) as waiting:
        members[0].close()
        with pytest.raises(RendezvousError, match=r"source 'source' process 0 .* left"):
            waiting.result(5.0)


def test_a_closed_rendezvous_names_itself() -> None:
    with _team("source") as (_, members):
        members[0].close()
        members[0].close()
        with pytest.raises(RendezvousError, match="is closed; open a new one"):
            members[0].begin(timeout_s=1.0)
        with pytest.raises(RendezvousError, match="not connected"):
            members[0].exchange_of(Go(1, 1, None, (), (), 0))


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(timeout_s: float) -> None:
    with _team("source") as (_, members), pytest.raises(LayoutError, match="timeout_s="):
        members[0].begin(timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"role": "trainer"}, "role='trainer'"),
        ({"group": ""}, "group=''.* is not a name of 1 to 256"),
        ({"group": "x" * 257}, "group=.* of 257 characters is not a name of 1 to 256"),
        ({"group": "caf\udce9"}, "UTF-8 cannot encode"),
        ({"group": None}, "group=None is not a name"),
        ({"ranks": []}, "ranks has 0 numbers"),
        ({"ranks": [-1]}, "ranks=-1 is not a whole number from 0 to 3"),
        ({"ranks": [1, 4]}, "ranks=4 is not a whole number from 0 to 3"),
        ({"ranks": [1, 2, 1]}, "ranks has 1 2 times"),
        ({"ranks": [0.5]}, "ranks=0.5 is not a whole number"),
        ({"ranks": [0], "num_ranks": 0}, "num_ranks=0 is not a whole number from 1"),
        ({"num_ranks": 1 << 31}, "num_ranks=2147483648 is not"),
        ({"num_processes": 0}, "num_processes=0 is not"),
        ({"process": -1}, "process=-1 is not a whole number from 0 to 1"),
        ({"process": 2}, "process=2 is not a whole number from 0 to 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_member_that_no_store_would_take_is_refused_at_once(
    changes: dict[str, Any], words: str
) -> None:
    fine: dict[str, Any] = {
        "role": "source",
        "group": "trainer",
        "ranks": [0, 1],
        "num_ranks": 4,
        "process": 1,
        "num_processes": 2,
    }
    local_member(**fine)
    with pytest.raises(LayoutError, match=words):
        local_member(**(fine | changes))


def test_the_whole_numbers_of_numpy_can_be_sent() -> None:
    two: Any = np.int64(2)
    member = local_member("source", "trainer", ranks=list(np.arange(2)), num_ranks=two)
    assert (member.ranks, member.num_ranks) == ((0, 1), 2)
    assert {type(number) for number in (*member.ranks, member.num_ranks)} == {int}


@pytest.mark.parametrize(
    "option",
    [
        {"min_destinations": 0},
        {"min_destinations": 1.5},
        {"last_epoch": -1},
        {"last_epoch": 1 << 30},
        {"max_message_bytes": 0},
        {"heartbeat_interval_s": 0.0},
        {"heartbeat_timeout_s": float("inf")},
    ],
    ids=str,
)
def test_an_option_that_no_store_would_take_is_refused_at_once(option: dict[str, Any]) -> None:
    member = local_member("source", "trainer", ranks=[0], num_ranks=1)
    ((name, value),) = option.items()
    with pytest.raises(LayoutError, match=f"{name}={value} is not"):
        Rendezvous("tcp://127.0.0.1:1", member, **option)


def test_a_new_store_is_joined_with_larger_epochs() -> None:
    with _team("source", "engine") as (server, members):
        address = server.address
        for _ in range(3):
            goes = _begin(members)
            members[0].exchange_of(goes[0]).fail(PlanError("next epoch"))
        members[0].close()
        server.close()
        wait_until(lambda: _has_lost_its_store(members[1]))
        with StoreServer(address), _open(address, "source") as source:
            goes = _begin([source, members[1]])
            assert [go.epoch for go in goes] == [4, 4]
            assert members[1].last_epoch == 4


def test_no_store_is_told_of_members_that_another_one_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would leave out the members of an epoch of its own that has the same number."""
    known: list[int] = []
    receive = Membership.receive

    def record(self: Membership, sender: bytes, request: Request, data: bytes, now: float) -> None:
        if isinstance(request, Begin):
            known.append(request.known_epoch)
        receive(self, sender, request, data, now)

    monkeypatch.setattr(Membership, "receive", record)
    with _team("source", "engine") as (server, members):
        for _ in range(2):
            _begin(members)
        server.close()
        wait_until(lambda: all(map(_has_lost_its_store, members)))
        with StoreServer(server.address):
            for member in members:
                member.connect(WAIT_S)
            for go in _begin(members):
                assert [each.group for each in go.members] == ["source", "engine"]
    assert known == [0, 0, 1, 1, 0, 0]


def test_a_store_that_ended_is_told_once_and_then_waited_for() -> None:
    with _team("source", "engine") as (server, members):
        address = server.address
        _begin(members)
        server.close()
        started = time.monotonic()
        with pytest.raises(RendezvousError, match=f"the store at {address} is gone"):
            members[1].begin(timeout_s=WAIT_S)
        assert time.monotonic() - started < 5.0
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(members[1].begin, timeout_s=WAIT_S)
            concurrent.futures.wait([waiting], timeout=0.3)
            assert not waiting.done()
            with StoreServer(address), _open(address, "source") as source:
                go = source.begin(timeout_s=WAIT_S)
                assert waiting.result(WAIT_S).epoch == go.epoch == 2


def test_a_store_that_ends_during_an_exchange_is_told_once() -> None:
    with _team("source", "engine") as (server, members):
        goes = _begin(members)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            exchange = members[1].exchange_of(goes[1])
            waiting = pool.submit(exchange.exchange, "done", b"", timeout_s=WAIT_S)
            concurrent.futures.wait([waiting], timeout=0.2)
            server.close()
            with pytest.raises(RendezvousError, match=r"was closed|is gone"):
                waiting.result(5.0)
        with (
            StoreServer(server.address),
            _open(server.address, "source") as source,
        ):
            assert len(_begin([source, members[1]])) == 2


def test_a_store_that_ended_is_gone_for_an_exchange() -> None:
    with _team("source", "engine") as (server, members):
        goes = _begin(members)
        exchange = members[1].exchange_of(goes[1])
        server.close()
        with pytest.raises(StoreGoneError):
            exchange.exchange("done", b"", timeout_s=WAIT_S)
        exchange.fail(PlanError("nobody hears it"))


@pytest.mark.parametrize("is_in_exchange", [False, True])
def test_what_ended_a_refit_is_told_although_the_store_is_gone_by_then(
    is_in_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _team("source", "engine") as (server, members):
        goes = _begin(members)
        source, engine = (m.exchange_of(go) for m, go in zip(members, goes, strict=True))
        source.fail(PlanError("the source cannot go on"))
        members[0].close()
        server.close()
        if is_in_exchange:  # both come between its first look and its wait
            looks = iter([lambda *_: None])
            look = engine._client.end_of
            monkeypatch.setattr(engine._client, "end_of", lambda *of: next(looks, look)(*of))
        with pytest.raises(PlanError, match="the source cannot go on"):
            engine.exchange("done", b"", timeout_s=WAIT_S)
        with pytest.raises(RendezvousError, match=r"closed by an earlier error: .* cannot go on"):
            engine.exchange("done", b"", timeout_s=WAIT_S)


def test_a_process_that_does_not_fit_is_refused_when_it_connects() -> None:
    with (
        _team("source", "engine") as (server, _),
        pytest.raises(RendezvousError, match="is registered already"),
    ):
        _open(server.address, "engine")


def test_two_programs_of_several_processes() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(StoreServer("tcp://127.0.0.1:0", token="a secret of sixteen"))
        members = [
            stack.enter_context(_open(server.address, name, i, 3, token="a secret of sixteen"))
            for name in ("source", "engine")
            for i in range(3)
        ]
        for refit in range(1, 6):
            goes = _begin(members)
            assert [go.process for go in goes] == list(range(6))
            assert [go.refit for go in goes] == [refit] * 6
            expected = [f"done {i}".encode() for i in range(6)]
            assert _exchange(members, goes) == [expected] * 6
