"""The store on a real socket: who gets in, what is refused, what is left behind."""

from __future__ import annotations

import concurrent.futures
import errno
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from helpers.threads import wait_until

from reshard.addresses import parse_address
from reshard.control_messages import (
    Begin,
    Bye,
    Done,
    Failed,
    Hello,
    Member,
    Post,
    ProtocolVersionError,
    Welcome,
    decode_reply,
    encode,
)
from reshard.errors import LayoutError, RendezvousError, TransferTimeout
from reshard.membership import Membership
from reshard.store import StoreClient, StoreGoneError
from reshard.store_server import StoreServer, _StoreLoop

MEMBER = Member("source", "trainer", 0, 1, (0,), 1, "host", 12, "0.1.0")
LOOPBACK = "tcp://127.0.0.1:0"
WAIT_S = 10.0


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(LOOPBACK) as running:
        yield running


def _hello(client: StoreClient, member: Member = MEMBER, timeout_s: float = WAIT_S) -> Welcome:
    reply, _ = client.call(Hello(request=client.new_request(), member=member), timeout_s=timeout_s)
    assert isinstance(reply, Welcome)
    return reply


def _raw(server: StoreServer) -> zmq.Socket[bytes]:
    raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    raw.linger = 0
    raw.rcvtimeo = round(WAIT_S * 1000)
    raw.connect(server.address)
    return raw


# Opening and closing


def test_port_0_takes_a_free_port_and_tells_it(server: StoreServer) -> None:
    assert server.address.startswith("tcp://127.0.0.1:")
    assert not server.address.endswith(":0")
    with StoreClient(server.address) as client:
        assert _hello(client).max_message_bytes == 64 << 20


def test_a_port_in_use_is_named(server: StoreServer) -> None:
    port = server.address.rpartition(":")[2]
    with pytest.raises(RendezvousError, match=f"cannot bind tcp://127.0.0.1:{port}.*in use"):
        StoreServer(server.address)


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(RendezvousError, match="no interface of this machine"):
        StoreServer("tcp://192.0.2.1:0", token="a secret of sixteen")


def test_a_name_can_be_bound() -> None:
    with StoreServer("tcp://localhost:0") as server, StoreClient(server.address) as client:
        assert server.address.startswith("tcp://localhost:")
        _hello(client)


def test_ipv6_works() -> None:
    try:
        server = StoreServer("tcp://[::1]:0")
    except RendezvousError as error:
        cause = error.__cause__
        if not isinstance(cause, zmq.ZMQError) or cause.errno not in (
            errno.EADDRNOTAVAIL,
            errno.ENODEV,
            errno.EAFNOSUPPORT,
        ):
            raise
        pytest.skip("this machine has no IPv6 loopback")
    with server, StoreClient(server.address) as client:
        assert server.address.startswith("tcp://[::1]:")
        _hello(client)


def test_a_wildcard_is_bound_and_reached_over_loopback() -> None:
    with StoreServer("tcp://*:0", token="a secret of sixteen") as server:
        assert server.address.startswith("tcp://0.0.0.0:")
        with pytest.raises(RendezvousError, match="an address to bind"):
            StoreClient(server.address, token="a secret of sixteen")
        with StoreClient(server.local_address, token="a secret of sixteen") as client:
            _hello(client)


def test_off_loopback_a_token_is_required() -> None:
    with pytest.raises(RendezvousError, match="not a loopback address"):
        StoreServer("tcp://*:0")
    with pytest.raises(RendezvousError, match="not a loopback address"):
        StoreClient("tcp://10.0.0.1:29500")


def test_closing_twice_is_fine_and_a_closed_client_names_itself() -> None:
    server = StoreServer(LOOPBACK)
    client = StoreClient(server.address)
    _hello(client)
    client.close()
    client.close()
    assert client.is_lost
    client.notify(Bye(request=1))
    with pytest.raises(RendezvousError, match=r"connection to the store at tcp://.* is closed"):
        client.call(Bye(request=1), timeout_s=1.0)
    server.close()
    server.close()


def test_the_address_can_be_bound_again_at_once() -> None:
    with StoreServer(LOOPBACK) as first:
        address = first.address
        with StoreClient(address) as client:
            _hello(client)
            first.close()
            with StoreServer(address) as second:
                assert second.address == address


def _num_threads_and_files() -> tuple[int, int]:
    return (
        len(list(Path("/proc/self/task").iterdir())),
        len(list(Path("/proc/self/fd").iterdir())),
    )


def _check_nothing_is_left(before: tuple[int, int]) -> None:
    """A joined thread may be listed for a moment longer, here and in what was counted before."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        now = _num_threads_and_files()
        if all(a <= b for a, b in zip(now, before, strict=True)):
            return
        os.sched_yield()
    raise AssertionError(f"{now} threads and files, {before} before")


def test_hundreds_of_stores_and_clients_leave_nothing_behind() -> None:
    def once(token: str | None) -> None:
        with StoreServer(LOOPBACK, token=token) as server:
            with StoreClient(server.address, token=token) as client:
                _hello(client)
            with StoreClient(server.address, token=token):
                pass  # closed before it has connected

    once(None)
    before = _num_threads_and_files()
    for i in range(200):
        once("a secret of sixteen" if i % 10 == 0 else None)
    _check_nothing_is_left(before)


def test_failing_to_open_leaves_nothing_behind(server: StoreServer) -> None:
    before = _num_threads_and_files()
    for _ in range(20):
        with pytest.raises(RendezvousError):
            StoreServer(server.address)
        with pytest.raises(RendezvousError):
            StoreClient("tcp://no-such-host.invalid:1", token="a secret of sixteen")
    _check_nothing_is_left(before)


# Tokens


def test_the_right_token_gets_in() -> None:
    with (
        StoreServer(LOOPBACK, token="a secret of sixteen") as server,
        StoreClient(server.address, token="a secret of sixteen") as client,
    ):
        _hello(client)
        assert server.handshakes_refused == 0


@pytest.mark.parametrize(
    ("of_server", "of_client"),
    [
        ("a secret of sixteen", "a guess of sixteen"),
        ("a secret of sixteen", None),
        (None, "a secret of sixteen"),
    ],
    ids=["wrong", "missing", "unexpected"],
)
def test_a_wrong_token_is_told_quickly_and_counted(
    of_server: str | None, of_client: str | None
) -> None:
    with (
        StoreServer(LOOPBACK, token=of_server) as server,
        StoreClient(server.address, token=of_client) as client,
    ):
        started = time.monotonic()
        with pytest.raises(RendezvousError, match="refused the connection: wrong or missing token"):
            _hello(client)
        assert time.monotonic() - started < 4.0
        assert client.is_lost
        wait_until(lambda: server.handshakes_refused > 0)
        assert server.messages_received == 0


@pytest.mark.parametrize("is_call", [True, False], ids=["call", "notify"])
def test_a_refusal_that_comes_just_before_sending_is_told_as_one(
    is_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end stays open: a store that hangs up first would merely be dialled again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(WAIT_S)
        port = listener.getsockname()[1]
        with StoreClient(f"tcp://127.0.0.1:{port}") as client, listener.accept()[0] as peer:
            peer.sendall(_GREETING_OF_A_SECRET_STORE)
            _check_refusal_before_sending(client, is_call, monkeypatch)


# Of ZMTP 3.1 (RFC 37): signature, version, mechanism, no server, filler.
_GREETING_OF_A_SECRET_STORE = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(52, b"\0")


def _check_refusal_before_sending(
    client: StoreClient, is_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # libzmq has taken the connection away, and the client has not read the news of it yet.
    wait_until(lambda: client._socket.poll(0, zmq.POLLOUT) == 0)
    read_events = client._read_events
    first = iter([lambda: None])
    monkeypatch.setattr(client, "_read_events", lambda: next(first, read_events)())
    if is_call:
        with pytest.raises(RendezvousError, match="refused the connection"):
            _hello(client)
    else:
        client.notify(Bye(request=1))
        assert client.is_lost


def test_refused_handshakes_are_mentioned_in_a_timeout() -> None:
    with (
        StoreServer(LOOPBACK, token="a secret of sixteen") as server,
        StoreClient(server.address, token="a secret of sixteen") as client,
        StoreClient(server.address, token="a guess of sixteen") as guesser,
    ):
        _hello(client)
        with pytest.raises(RendezvousError):
            _hello(guesser)
        wait_until(lambda: server.handshakes_refused > 0)
        with pytest.raises(TransferTimeout, match=r"\d+ connections were refused \(their token"):
            client.call(Begin(request=client.new_request(), timeout_s=0.1), b"", timeout_s=WAIT_S)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 3e6])
@pytest.mark.parametrize("name", ["heartbeat_interval_s", "heartbeat_timeout_s"])
def test_a_heartbeat_that_libzmq_cannot_count_is_refused(name: str, value: float) -> None:
    for opened in (StoreServer, StoreClient):
        with pytest.raises(LayoutError, match=f"{name}={value} is not above 0"):
            opened("tcp://127.0.0.1:0", **{name: value})  # type: ignore[arg-type]


# Dropped and forked


def _wait_in(client: StoreClient, timeout_s: float = WAIT_S) -> None:
    """Begins a refit that nobody else takes part in."""
    request = Begin(request=client.new_request(), timeout_s=timeout_s)
    client.call(request, b"", timeout_s=WAIT_S)


def test_a_store_that_nobody_holds_ends_as_if_closed() -> None:
    def waiter_of_a_dropped_store() -> tuple[StoreClient, concurrent.futures.Future[None]]:
        server = StoreServer(LOOPBACK)
        client = StoreClient(server.address)
        _hello(client)
        before = server.messages_received
        waiting = pool.submit(_wait_in, client)
        wait_until(lambda: server.messages_received > before)
        return client, waiting

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        before = _num_threads_and_files()
        for _ in range(3):
            client, waiting = waiter_of_a_dropped_store()
            gc.collect()
            with pytest.raises(RendezvousError, match="was closed"):
                waiting.result(WAIT_S)
            client.close()
            del waiting
        _check_nothing_is_left(before)


def _fork(run: Callable[[], None]) -> int:
    """Runs something in a forked child and returns the child's process id."""
    child = os.fork()
    if child == 0:
        signal.alarm(round(WAIT_S))  # for a call that never returns
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return child


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where it is loaded
def test_a_forked_child_forgets_what_it_closes_and_the_parent_goes_on(server: StoreServer) -> None:
    with StoreClient(server.address) as client:
        _hello(client)

        def close_all() -> None:
            assert client.is_lost
            with pytest.raises(RendezvousError, match=f"is that of process {os.getppid()}"):
                _wait_in(client)
            client.notify(Bye(request=client.new_request()))
            client.close()
            server.close()
            server.close()

        assert os.waitpid(_fork(close_all), 0)[1] == 0
        assert not client.is_lost
        reply, _ = client.call(Bye(request=client.new_request()), timeout_s=WAIT_S)
        assert isinstance(reply, Done)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where it is loaded
def test_a_store_ends_while_a_forked_child_lives() -> None:
    server = StoreServer(LOOPBACK)
    child = _fork(lambda: time.sleep(WAIT_S))
    try:
        started = time.monotonic()
        server.close()
        assert time.monotonic() - started < 5.0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where it is loaded
def test_a_forked_child_does_not_keep_the_port() -> None:
    server = StoreServer(LOOPBACK)
    reader, writer = os.pipe()

    def tell_and_stay() -> None:
        os.write(writer, b"!")
        time.sleep(WAIT_S)

    child = _fork(tell_and_stay)
    try:
        assert os.read(reader, 1) == b"!"
        server.close()
        StoreServer(server.address).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


_HAS_A_WORKER = """
import os, sys, time
from reshard.control_messages import Hello, Member
from reshard.store import StoreClient

client = StoreClient(sys.argv[1])
member = Member("destination", "worker's", 0, 1, (0,), 1, "host", os.getpid(), "0.1.0")
client.call(Hello(request=client.new_request(), member=member), timeout_s=10)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(30)
"""


def test_a_process_whose_forked_workers_outlive_it_is_missed_at_once(server: StoreServer) -> None:
    """As those of a data loader do; the heartbeats would take 5 s to notice."""
    command = [sys.executable, "-c", _HAS_A_WORKER, server.address]
    with (
        StoreClient(server.address) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE) as parent,
    ):
        _hello(client)
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait(WAIT_S)
            with pytest.raises(TransferTimeout, match=r"worker's.* lost its connection"):
                _wait_in(client, timeout_s=1.0)
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_process_that_died_before_its_hello_was_read_leaves_its_place() -> None:
    """The end of its connection is read first, and will not come again."""
    membership = Membership(max_members=9, max_message_bytes=1 << 20)
    loop = _StoreLoop(
        parse_address(LOOPBACK),
        None,
        membership,
        max_message_bytes=1 << 20,
        heartbeat=(1000, 5000),
    )
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
            raw.linger = round(WAIT_S * 1000)
            raw.connect(str(loop.address))
            raw.send(encode(Hello(request=1, member=MEMBER)))
        ends = loop._connections
        while not ends._ended_unknown:  # what the thread does, once both have come
            assert loop._events.poll(round(WAIT_S * 1000))
            assert loop._read_events() == []
        assert loop._router.poll(round(WAIT_S * 1000))
        lost: list[bytes] = []
        loop._receive_batch(lost)
        loop._forget(lost)
        membership.receive(b"its successor", Hello(request=1, member=MEMBER), b"", time.monotonic())
        assert isinstance(membership.take_outbox()[-1].reply, Welcome)
    finally:
        loop.wake_sender.close()
        loop.run()


# What is refused


def test_nonsense_is_counted_and_the_store_goes_on(server: StoreServer) -> None:
    raw = _raw(server)
    try:
        for frames in (
            [b""],
            [b"GET / HTTP/1.1"],
            [b"reshard-control/2\n"],
            [b"reshard-control/2\n\xc1"],
            [encode(Bye(request=1))[:-1]],
            [encode(Bye(request=1)), b"", b""],
            [b"x" * 100_000],
        ):
            raw.send_multipart(frames)
        wait_until(lambda: server.messages_refused == 7)
        assert server.messages_received == 7
        with StoreClient(server.address) as client:
            _hello(client)
    finally:
        raw.close()


def test_a_request_with_a_wrong_field_is_answered(server: StoreServer) -> None:
    """Its sender would otherwise wait until its limit, and take the store for dead."""
    member = msgspec.structs.replace(MEMBER, group="")
    raw = _raw(server)
    try:
        raw.send(encode(Hello(request=7, member=member)))
        reply = decode_reply(raw.recv())
        assert isinstance(reply, Failed)
        assert reply.request == 7
        assert f"the store at {server.address}" in reply.error.message
        assert "length >= 1" in reply.error.message
        assert server.messages_refused == 1
    finally:
        raw.close()


def test_another_protocol_version_is_answered_so_that_it_understands(server: StoreServer) -> None:
    raw = _raw(server)
    try:
        raw.send(b"reshard-control/999\nwhatever that version says")
        with pytest.raises(ProtocolVersionError, match="version 999 meets version 2"):
            decode_reply(raw.recv())
        assert server.messages_refused == 1
    finally:
        raw.close()


def test_a_frame_over_the_limit_costs_its_sender_the_connection() -> None:
    with StoreServer(LOOPBACK, max_message_bytes=10_000) as server:
        raw = _raw(server)
        raw.send(encode(Hello(request=1, member=MEMBER)))
        assert isinstance(decode_reply(raw.recv()), Welcome)
        raw.send_multipart([encode(Begin(request=2, timeout_s=WAIT_S)), bytes(10_001)])
        with StoreClient(server.address) as other:
            # The same place in the same program is free again once the sender is gone.
            def has_room() -> bool:
                try:
                    _hello(other)
                except RendezvousError:
                    return False
                return True

            wait_until(has_room)
        raw.close()


def test_a_client_refuses_what_the_store_would_not_take(server: StoreServer) -> None:
    with StoreClient(server.address, max_message_bytes=1000) as client:
        _hello(client)
        request = Post(request=client.new_request(), epoch=1, refit=1, name="a", timeout_s=1.0)
        with pytest.raises(RendezvousError, match="1001 bytes is over the limit of 1000"):
            client.call(request, bytes(1001), timeout_s=1.0)
        with pytest.raises(RendezvousError, match="epoch 1, refit 1 is over"):
            client.call(request, bytes(1000), timeout_s=WAIT_S)


def test_an_unknown_connection_is_told_that_its_store_is_gone(server: StoreServer) -> None:
    with StoreClient(server.address) as client:
        with pytest.raises(StoreGoneError, match="is gone"):
            client.call(Bye(request=client.new_request()), timeout_s=WAIT_S)
        assert client.is_lost


# Waiting


def test_nobody_at_the_address_is_told_at_the_limit() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        with StoreClient(address) as client:
            started = time.monotonic()
            with pytest.raises(RendezvousError, match=r"within 0\.3 s: nothing listens there"):
                _hello(client, timeout_s=0.3)
            assert 0.3 <= time.monotonic() - started < 2.0


def test_somebody_who_does_not_answer_is_told_from_nobody() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with (
            StoreClient(f"tcp://127.0.0.1:{silent.getsockname()[1]}") as client,
            pytest.raises(RendezvousError, match="listens there but does not answer"),
        ):
            _hello(client, timeout_s=0.3)


def test_a_store_that_starts_later_is_found() -> None:
    with socket.socket() as reserved:
        # Bound and not listening, so that nobody else gets the port and the store still can.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
        with StoreClient(address) as client:
            starter: list[StoreServer] = []
            timer = threading.Timer(0.3, lambda: starter.append(StoreServer(address)))
            timer.start()
            try:
                _hello(client)
            finally:
                timer.join()
                starter[0].close()


def test_a_store_that_closes_tells_who_waits(server: StoreServer) -> None:
    with StoreClient(server.address) as client:
        _hello(client)

        def close_once_it_waits() -> None:
            wait_until(lambda: server.messages_received == 2)
            server.close()

        closer = threading.Thread(target=close_once_it_waits)
        closer.start()
        started = time.monotonic()
        with pytest.raises(RendezvousError, match="was closed"):
            client.call(
                Begin(request=client.new_request(), timeout_s=WAIT_S), b"", timeout_s=WAIT_S
            )
        assert time.monotonic() - started < 5.0
        closer.join()


def test_a_store_that_closed_in_between_is_gone(server: StoreServer) -> None:
    with StoreClient(server.address) as client:
        _hello(client)
        server.close()
        wait_until(lambda: client.is_lost)
        for _ in range(2):
            assert client.is_lost
            with pytest.raises(StoreGoneError, match=f"the store at {server.address} is gone"):
                client.call(Bye(request=client.new_request()), timeout_s=WAIT_S)
        assert client.is_failure_told


def test_while_waiting_is_called_at_least_every_20_ms(server: StoreServer) -> None:
    with StoreClient(server.address) as client:
        _hello(client)
        times = [time.monotonic()]
        with pytest.raises(TransferTimeout):
            client.call(
                Begin(request=client.new_request(), timeout_s=0.5),
                b"",
                timeout_s=WAIT_S,
                while_waiting=lambda: times.append(time.monotonic()),
            )
        assert len(times) >= 10  # 50 on an idle machine


def test_a_reply_to_an_abandoned_request_is_not_taken_for_another(server: StoreServer) -> None:
    def stop() -> None:
        raise InterruptedError

    with StoreClient(server.address) as client:
        _hello(client)
        abandoned = Begin(request=client.new_request(), timeout_s=0.05)
        with pytest.raises(InterruptedError):
            client.call(abandoned, b"", timeout_s=WAIT_S, while_waiting=stop)
        assert not client.is_answered(abandoned.request)
        wait_until(lambda: client._socket.poll(0) != 0)
        bye = Bye(request=client.new_request())
        reply, _ = client.call(bye, timeout_s=WAIT_S)
        assert isinstance(reply, Done)
        assert client.is_answered(bye.request)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_whose_thread_fails_is_gone_rather_than_silent(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    with StoreClient(server.address) as client:
        _hello(client)
        monkeypatch.setattr(server._loop._membership, "receive", fail)
        with pytest.raises(StoreGoneError):
            client.call(Bye(request=client.new_request()), timeout_s=WAIT_S)
    server.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_whose_thread_fails_tells_who_waits_and_the_log(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    other = msgspec.structs.replace(MEMBER, role="destination", group="engine")
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        StoreClient(server.address) as waiter,
        StoreClient(server.address) as client,
        caplog.at_level(logging.ERROR, "reshard.control"),
    ):
        _hello(waiter)
        _hello(client, other)
        waiting = pool.submit(_wait_in, waiter)
        wait_until(lambda: server.messages_received == 3)
        monkeypatch.setattr(server._loop._membership, "receive", fail)
        with pytest.raises(StoreGoneError):
            client.call(Bye(request=client.new_request()), timeout_s=WAIT_S)
        text = f"the store at {server.address} failed: RuntimeError: a mistake of ours"
        with pytest.raises(RendezvousError, match=text):
            waiting.result(WAIT_S)
    assert text in caplog.text


def test_a_limit_of_months_leaves_the_store_serving(server: StoreServer) -> None:
    with StoreClient(server.address) as patient, StoreClient(server.address) as other:
        _hello(patient)
        with pytest.raises(TransferTimeout):
            begin = Begin(request=patient.new_request(), timeout_s=1e8)
            patient.call(begin, b"", timeout_s=0.2)
        _hello(other, msgspec.structs.replace(MEMBER, role="destination", group="engine"))
