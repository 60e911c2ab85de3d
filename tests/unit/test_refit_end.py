"""Both ends of a refit in one process: what is refused when they are made, and who is told what."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.threads import wait_until

from reshard import Layout, Mesh, Shard, TensorSpec
from reshard._native import Communicator
from reshard.destination import Destination
from reshard.errors import (
    LayoutError,
    PlanError,
    RendezvousError,
    TransferTimeout,
    TransportError,
)
from reshard.loopback import buffer_of_array
from reshard.rendezvous import Rendezvous
from reshard.source import Source

LOOPBACK = "tcp://127.0.0.1:0"
WAIT_S = 30.0
PROMPT_S = 10.0
SPEC = TensorSpec("w", (8, 4), "float32", Layout(Mesh.of(x=1), (Shard(0),)))
W = np.arange(32, dtype=np.float32).reshape(8, 4)


class Pair:
    """A source, a destination, and a thread for each."""

    def __init__(self, source: Source, destination: Destination, pool: Any) -> None:
        self.source, self.destination, self._pool = source, destination, pool
        self.array = np.zeros_like(W)
        self._own = {(0, "w"): buffer_of_array(W)}
        self._wanted = {(0, "w"): buffer_of_array(self.array)}

    def refit(self, version: int, *, timeout_s: float = WAIT_S) -> list[BaseException | None]:
        """Returns what the source's call raised, and the destination's."""
        calls = [
            self._pool.submit(self.source.publish, self._own, version=version),
            self._pool.submit(self.destination.refit, self._wanted, timeout_s=timeout_s),
        ]
        return [call.exception(WAIT_S) for call in calls]

    def check_that_a_refit_works(self, version: int) -> None:
        self.array[...] = 0
        assert self.refit(version) == [None, None]
        assert np.array_equal(self.array, W)


@pytest.fixture
def pair() -> Iterator[Pair]:
    options: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": WAIT_S}
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        source = stack.enter_context(Source(LOOPBACK, [SPEC], **options))
        assert source.address is not None
        destination = stack.enter_context(Destination(source.address, [SPEC], **options))
        yield Pair(source, destination, pool)


@pytest.mark.parametrize(
    "option",
    [
        {"group": ""},
        {"ranks": []},
        {"num_ranks": 0},
        {"min_destinations": 0},
        {"staging_bytes": 0},
        {"staging_bytes": -1},
        {"process": 2, "num_processes": 2},
        {"ranks": [0, 0]},
        {"ranks": [1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("end", [Source, Destination])
def test_an_argument_out_of_range_is_refused_at_once(
    end: type[Source | Destination], option: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": WAIT_S}
    with pytest.raises(LayoutError, match=next(iter(option))):
        end(LOOPBACK, [SPEC], **(options | option))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"timeout_s": None}, "timeout_s=None is not a number of seconds"),
        ({"timeout_s": "60"}, "timeout_s='60' is not a number"),
        ({"staging_bytes": "64MiB"}, "staging_bytes='64MiB' is not a whole number"),
        ({"token": 1234}, "the token is no text"),
    ],
)
@pytest.mark.parametrize("end", [Source, Destination])
def test_an_argument_of_another_type_is_refused_at_once(
    end: type[Source | Destination], option: dict[str, Any], message: str
) -> None:
    options: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": WAIT_S}
    with pytest.raises((LayoutError, RendezvousError), match=message):
        end(LOOPBACK, [SPEC], **(options | option))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:29540", "", None, 29540, "tcp://127.0.0.1:99999", "tcp://10.0.0.1:1"]
)
def test_an_address_that_cannot_be_is_refused_at_once(address: Any) -> None:
    with pytest.raises(RendezvousError, match=r"form tcp://|is None|over 65535|not a loopback"):
        Destination(address, [SPEC], ranks=[0], num_ranks=1)


def test_a_limit_of_months_is_waited_with(pair: Pair) -> None:
    assert pair.refit(1, timeout_s=3e6) == [None, None]
    pair.check_that_a_refit_works(2)


def test_an_error_with_a_file_name_of_any_bytes_reaches_the_other_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("cannot read " + os.fsdecode(b"caf\xe9.bin"))

    pair.check_that_a_refit_works(1)
    with monkeypatch.context() as changed:
        changed.setattr(pair.destination, "_before_move", fail)
        started = time.monotonic()
        told, raised = pair.refit(2)
        assert time.monotonic() - started < PROMPT_S
    assert type(raised) is OSError
    assert isinstance(told, RendezvousError)
    assert "OSError: cannot read caf\\udce9.bin" in str(told)
    pair.check_that_a_refit_works(3)


@pytest.mark.parametrize("where", ["begin", "exchange_of"])
def test_an_interrupt_just_after_the_refit_formed_reaches_the_other_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    original = getattr(Rendezvous, where)

    def interrupted(self: Rendezvous, *arguments: object, **options: object) -> None:
        original(self, *arguments, **options)
        raise KeyboardInterrupt

    pair.check_that_a_refit_works(1)
    with monkeypatch.context() as changed:
        rendezvous = pair.destination._rendezvous
        changed.setattr(rendezvous, where, interrupted.__get__(rendezvous))
        started = time.monotonic()
        told, raised = pair.refit(2)
        assert time.monotonic() - started < PROMPT_S
    assert isinstance(raised, KeyboardInterrupt)
    assert isinstance(told, TransportError)
    pair.check_that_a_refit_works(3)


def test_an_interrupt_between_begin_and_the_session_reaches_the_other_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    pair.check_that_a_refit_works(1)
    with monkeypatch.context() as changed:
        changed.setattr(pair.destination, "_session_of", interrupt)
        told, raised = pair.refit(2)
    assert isinstance(raised, KeyboardInterrupt)
    assert "KeyboardInterrupt" in str(told)
    pair.check_that_a_refit_works(3)


def test_an_epoch_that_makes_no_run_id_is_refused(pair: Pair) -> None:
    pair.destination._rendezvous._last_epoch = 1 << 31
    started = time.monotonic()
    with pytest.raises(RendezvousError, match="<= 1073741823"):
        pair.destination._rendezvous.connect(WAIT_S)
    assert time.monotonic() - started < PROMPT_S


def _wait_until_it_waits(pair: Pair) -> None:
    """Returns once the store has got the destination's wish to refit."""
    server = pair.source._server
    assert server is not None
    wait_until(server._loop._membership._registry.waiting)


def test_a_second_call_of_another_thread_is_refused_and_the_first_goes_on(pair: Pair) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(pair.destination.refit, pair._wanted)
        _wait_until_it_waits(pair)
        with pytest.raises(LayoutError, match="is in a call of it"):
            pair.destination.refit(pair._wanted)
        pair.source.publish(pair._own, version=1)
        assert first.result(WAIT_S).version == 1
    assert np.array_equal(pair.array, W)


@pytest.mark.parametrize("has_refitted", [False, True], ids=["new", "refitted"])
def test_closing_ends_the_wait_of_another_thread(pair: Pair, has_refitted: bool) -> None:
    """As the shutdown of an engine does while its thread waits for the next version."""
    if has_refitted:
        pair.check_that_a_refit_works(1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.destination.refit, pair._wanted)
        _wait_until_it_waits(pair)
        pair.destination.close()
        with pytest.raises(RendezvousError, match="closed while this call waited"):
            waiting.result(WAIT_S)
    with pytest.raises(LayoutError, match="closed; make a new one"):
        pair.destination.refit(pair._wanted)


def test_closing_ends_the_search_of_another_thread_for_a_store() -> None:
    options: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": 1e6}
    with concurrent.futures.ThreadPoolExecutor(1) as pool, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        destination = Destination(address, [SPEC], **options)
        array = {(0, "w"): buffer_of_array(np.zeros_like(W))}
        searching = pool.submit(destination.refit, array)
        silent.settimeout(WAIT_S)
        with silent.accept()[0]:
            destination.close()
            with pytest.raises(RendezvousError, match="closed"):
                searching.result(WAIT_S)


def test_a_wait_that_nobody_ends_keeps_the_plan(pair: Pair) -> None:
    """An engine that asks often and briefly made everybody plan anew for every refit."""
    pair.check_that_a_refit_works(1)
    plan = pair.destination._session
    assert plan is not None
    for end, call in (
        (pair.destination, lambda: pair.destination.refit(pair._wanted, timeout_s=0.05)),
        (pair.source, lambda: pair.source.publish(pair._own, version=2, timeout_s=0.05)),
    ):
        session = end._session
        with pytest.raises(TransferTimeout):
            call()
        assert end._session is session
        assert "1 tensor, " in end.describe_plan()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"timeout_s": limit}, "not a number of sec")
            for limit in (-1, float("nan"), "5", True, float("inf"))
        ),
        *(({"verify": flag}, "neither True nor False") for flag in (1, None, "yes", 0.0)),
    ],
    ids=str,
)
def test_an_option_that_is_none_is_told_to_both_sides_at_once(
    pair: Pair, options: dict[str, Any], message: str
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.destination.refit, pair._wanted)
        _wait_until_it_waits(pair)
        with pytest.raises(LayoutError, match=message):
            pair.source.publish(pair._own, version=1, **options)
        with pytest.raises(LayoutError, match=rf"source 'source' process 0.*{message}"):
            waiting.result(WAIT_S)
    pair.check_that_a_refit_works(1)


def test_of_several_engines_the_one_that_does_not_fit_is_named() -> None:
    options: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": WAIT_S}
    other = TensorSpec("w", (4, 4), "float32", Layout(Mesh.of(x=1), (Shard(0),)))
    small = np.zeros((4, 4), np.float32)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        source = stack.enter_context(Source(LOOPBACK, [SPEC], min_destinations=2, **options))
        address = str(source.address)
        right = stack.enter_context(Destination(address, [SPEC], group="right", **options))
        wrong = stack.enter_context(Destination(address, [other], group="wrong", **options))
        calls = [
            pool.submit(right.refit, {(0, "w"): buffer_of_array(np.zeros_like(W))}),
            pool.submit(wrong.refit, {(0, "w"): buffer_of_array(small)}),
        ]
        message = r"of several destinations, that of destination 'wrong' process 0.*\n.*\(8, 4\)"
        with pytest.raises(PlanError, match=message):
            source.publish({(0, "w"): buffer_of_array(W)}, version=1)
        for call in calls:
            with pytest.raises(PlanError, match=message):
                call.result(WAIT_S)


def test_a_close_from_a_signal_handler_ends_the_call_that_it_interrupted(pair: Pair) -> None:
    """As SIGTERM does of an engine that waits for the next version."""
    closed: list[bool] = []

    def close(*_: object) -> None:
        pair.destination.close()
        closed.append(True)

    before = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(RendezvousError, match="closed while this call waited"):
            pair.destination.refit(pair._wanted)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert closed == [True]
    with pytest.raises(LayoutError, match="closed; make a new one"):
        pair.destination.refit(pair._wanted)


def test_a_close_while_peers_are_connected_ends_the_call(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is not there yet, so nobody could abort it."""
    is_connecting = threading.Event()
    connect = Communicator.connect

    def late(self: Communicator, timeout_s: float, *, while_waiting: Any = None) -> None:
        if threading.current_thread().name.startswith("late"):
            is_connecting.set()
            assert is_closed.wait(WAIT_S)  # never comes in time for its peer
        connect(self, timeout_s, while_waiting=while_waiting)

    is_closed = threading.Event()
    monkeypatch.setattr(Communicator, "connect", late)
    with (
        concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="late") as late_pool,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        source = late_pool.submit(pair.source.publish, pair._own, version=1)
        destination = pool.submit(pair.destination.refit, pair._wanted)
        assert is_connecting.wait(WAIT_S)
        started = time.monotonic()
        pair.destination.close()
        assert time.monotonic() - started < PROMPT_S
        with pytest.raises(TransportError, match="closed"):
            destination.result(WAIT_S)
        is_closed.set()
        with pytest.raises(TransportError, match="closed"):
            source.result(PROMPT_S)  # the store says that it left; the source does not wait for it


@pytest.mark.parametrize("limit", [np.float64(20), np.int32(20), np.float32(20)], ids=repr)
def test_limits_and_flags_of_numpy_are_plain_ones(pair: Pair, limit: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.destination.refit, pair._wanted, timeout_s=limit)
        verify = np.bool_(True)
        report = pair.source.publish(pair._own, version=1, timeout_s=limit, verify=verify)
        assert report.is_verified
        assert waiting.result(WAIT_S).version == 1


def test_names_of_other_text_classes_are_sent_as_plain_texts() -> None:
    options: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": WAIT_S}
    patterns = np.array(["zz*"])
    with contextlib.ExitStack() as stack:
        source = Source(LOOPBACK, [SPEC], allow_unmatched=patterns, group=np.str_("s"), **options)
        stack.enter_context(source)
        address = str(source.address)
        end = stack.enter_context(Destination(address, [SPEC], group=np.str_("e"), **options))
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        assert Pair(source, end, pool).refit(1) == [None, None]


@pytest.mark.parametrize("what", ["send_multipart", "recv_multipart"])
def test_an_interrupt_inside_of_a_message_ends_the_connection_not_the_next_refit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Half a message would become the beginning of the next one."""
    pair.check_that_a_refit_works(1)
    client = pair.destination._rendezvous._client
    assert client is not None

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, concurrent.futures.ThreadPoolExecutor(2) as pool:
        changed.setattr(client._socket, what, interrupted)
        call = pool.submit(pair.destination.refit, pair._wanted)
        if what == "recv_multipart":  # there is an answer once the source has come
            publish = pool.submit(pair.source.publish, pair._own, version=2)
            assert isinstance(publish.exception(WAIT_S), TransportError)
        assert isinstance(call.exception(WAIT_S), KeyboardInterrupt)
    pair.check_that_a_refit_works(3)
