"""The store: one thread with one socket that serves every process of both programs.

The thread owns the sockets and the membership; other threads only read counters and ask it to end.
It does not hold the `StoreServer`, so that one which nobody holds any more ends as if closed.
What comes from the network is never trusted: a message that does not decode is counted and refused,
one that is too large costs its sender the connection. A dead process is seen when its TCP
connection ends: at once after a kill, after the heartbeat limit when it is stopped or its machine
is gone.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import zmq

from reshard.addresses import Address, heartbeat_ms, parse_address, require_token
from reshard.connections import Connections
from reshard.control_messages import (
    Failed,
    Hello,
    MessageError,
    ProtocolVersionError,
    Reply,
    decode_request,
    encode,
    encode_refusal,
)
from reshard.error_report import report_error
from reshard.errors import RendezvousError
from reshard.forked import bound_here
from reshard.membership import Membership
from reshard.token_keys import ZAP_ENDPOINT, TokenKeys, answer_zap

__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "StoreServer",
    "has_message",
    "watch_events",
]

DEFAULT_MAX_MESSAGE_BYTES: Final = 64 << 20

_logger = logging.getLogger("reshard.control")

_MAX_BATCH: Final = 256  # messages served before connections and deadlines are looked at again
_MAX_FRAMES: Final = 2  # header and payload
_LINGER_MS: Final = 500
_JOIN_S: Final = 10.0
_MAX_POLL_S: Final = 3600.0  # poll counts milliseconds in 32 bits; a longer wait is several polls
_REQUESTS_IN_FLIGHT: Final = 16  # per connection; a process has one request and a few notices
_EVENT: Final = struct.Struct("=HI")
# "No detail" comes where the client notices first that tokens do not agree.
_REFUSED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_WATCHED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _REFUSED
_BIND_HINTS: Final = {
    errno.EADDRINUSE: "the port is in use. Choose another, or port 0 for a free one.",
    errno.EADDRNOTAVAIL: "no interface of this machine has this address.",
    errno.EACCES: "this user may not use the port. Choose one above 1023.",
}


class StoreServer:
    """Serves a store until it is closed.

    Args:
        address: `tcp://host:port` to bind; port 0 takes a free one.
        token: secret that every process must know; required off loopback.
        max_message_bytes: largest frame accepted; it bounds what one process may send at once.
        max_members: how many processes may be connected.
        heartbeat_interval_s: how often each connection is checked.
        heartbeat_timeout_s: silence after which a connection counts as dead. Must be longer than
            the largest message takes to arrive.

    Raises:
        RendezvousError: the address is in use, not ours, malformed, or lacks a token.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_members: int = 4096,
        heartbeat_interval_s: float = 1.0,
        heartbeat_timeout_s: float = 5.0,
    ) -> None:
        wanted = parse_address(address)
        require_token(wanted, token)
        heartbeat = heartbeat_ms(heartbeat_interval_s, heartbeat_timeout_s)
        self._loop = _StoreLoop(
            wanted,
            None if token is None else TokenKeys.derive(token),
            Membership(max_members=max_members, max_message_bytes=max_message_bytes),
            max_message_bytes=max_message_bytes,
            heartbeat=heartbeat,
        )
        self._thread = threading.Thread(target=self._loop.run, name="reshard-store", daemon=True)
        # Not at exit: the end of the process closes every connection anyway.
        self._finalizer = weakref.finalize(self, _wake, self._loop.wake_sender, os.getpid())
        self._finalizer.atexit = False
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The address that is bound, with its real port."""
        return str(self._loop.address)

    @property
    def local_address(self) -> str:
        """The address under which processes of this machine reach the store."""
        return str(self._loop.address.reachable_here())

    @property
    def messages_received(self) -> int:
        """How many messages came, of any kind."""
        return self._loop.messages_received

    @property
    def messages_refused(self) -> int:
        """How many of them were not understood."""
        return self._loop.messages_refused

    @property
    def handshakes_refused(self) -> int:
        """How many connections had a wrong token, or were not of this library."""
        return self._loop.handshakes_refused

    def close(self) -> None:
        """Tells everybody who waits that the store ends, and frees everything; idempotent.

        In a forked child, where the store's thread does not exist, it only forgets the store.
        """
        self._finalizer()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            raise RendezvousError(f"the store at {self.address} did not end in {_JOIN_S} s.")


class _StoreLoop:
    """What the store's thread works with; after `run` has begun, no other thread touches it.

    The exceptions are the counters and the address, which others read, and `wake_sender`.
    """

    def __init__(
        self,
        wanted: Address,
        keys: TokenKeys | None,
        membership: Membership,
        *,
        max_message_bytes: int,
        heartbeat: tuple[int, int],
    ) -> None:
        self.messages_received = 0
        self.messages_refused = 0
        self.handshakes_refused = 0
        self._keys = keys
        self._membership = membership
        self._connections = Connections()
        self._context = zmq.Context()
        try:
            self._router = self._open_router(max_message_bytes, heartbeat)
            self._zap = self._open_zap()
            self._events = watch_events(self._router, _WATCHED)
            self.address = self._bind(wanted)
            self.wake_sender, self._wake_receiver = socket.socketpair()
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._bound = wanted.resolve().host, self.address.port
        bound_here(*self._bound, 1)

    def _open_router(self, max_message_bytes: int, heartbeat: tuple[int, int]) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.linger = _LINGER_MS
        router.maxmsgsize = max_message_bytes
        router.rcvhwm = _REQUESTS_IN_FLIGHT
        router.heartbeat_ivl, router.heartbeat_timeout = heartbeat
        if self._keys is not None:
            router.curve_server = 1
            router.curve_publickey = self._keys.server_public
            router.curve_secretkey = self._keys.server_secret
            router.zap_domain = b"reshard"
        return router

    def _open_zap(self) -> zmq.Socket[bytes] | None:
        """Opens the socket at which libzmq asks whether a client's key is known."""
        if self._keys is None:
            return None
        zap = self._context.socket(zmq.REP)
        zap.linger = 0
        zap.bind(ZAP_ENDPOINT)
        return zap

    def _bind(self, wanted: Address) -> Address:
        numeric = wanted.resolve()
        self._router.ipv6 = ":" in numeric.host
        port = "*" if wanted.port == 0 else str(wanted.port)
        endpoint = str(numeric).rpartition(":")[0]
        try:
            self._router.bind(f"{endpoint}:{port}")
        except zmq.ZMQError as error:
            hint = _BIND_HINTS.get(error.errno or 0, "check the address.")
            raise RendezvousError(f"cannot bind {wanted}: {error.strerror}; {hint}") from error
        bound = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        return wanted.with_port(int(bound.rpartition(":")[2]))

    # In the thread

    def run(self) -> None:
        """Serves until it is woken, then tells everybody who waits, and frees everything."""
        try:
            self._serve()
            self._end(f"the store at {self.address} was closed.")
        except BaseException as error:
            # A mistake of ours, raised as well, so that its traceback is not lost.
            reason = f"the store at {self.address} failed: {type(error).__name__}: {error}"
            _logger.error("%s", reason)
            self._end(reason)
            raise
        finally:
            # Whatever ended the thread, the processes must find their connections closed.
            self._router.disable_monitor()
            self._events.close(linger=0)
            if self._zap is not None:
                self._zap.close(linger=0)
            self._router.close(linger=_LINGER_MS)
            self._wake_receiver.close()
            self._context.term()
            bound_here(*self._bound, -1)

    def _serve(self) -> None:
        poller = zmq.Poller()
        wake = self._wake_receiver.fileno()
        for source in (self._router, self._events, wake):
            poller.register(source, zmq.POLLIN)
        if self._zap is not None:
            poller.register(self._zap, zmq.POLLIN)
        while True:
            ready = [source for source, _ in poller.poll(self._milliseconds_to_deadline())]
            if wake in ready:
                return
            if self._zap in ready:
                self._answer_zap()
            lost = self._read_events() if self._events in ready else []
            if lost or self._router in ready:
                self._receive_batch(lost)
            self._forget(lost)
            self._membership.expire(time.monotonic())
            self._send_outbox()

    def _end(self, reason: str) -> None:
        self._membership.close(reason)
        self._send_outbox()

    def _milliseconds_to_deadline(self) -> int | None:
        deadline = self._membership.next_deadline
        if deadline == math.inf:
            return None
        remaining_s = min(deadline - time.monotonic(), _MAX_POLL_S)
        return max(0, math.ceil(remaining_s * 1000))

    def _receive_batch(self, lost: list[bytes]) -> None:
        for _ in range(_MAX_BATCH):
            if not has_message(self._router):
                return
            sender = self._router.recv(copy=False)
            self.messages_received += 1
            self._receive(sender, self._router.recv_multipart(), lost)
            self._send_outbox()

    def _receive(self, sender: zmq.Frame, frames: Sequence[bytes], lost: list[bytes]) -> None:
        connection = sender.bytes
        if len(frames) > _MAX_FRAMES:
            self._refuse(f"control message of {len(frames)} frames")
            return
        try:
            request = decode_request(frames[0])
        except ProtocolVersionError as error:
            self._refuse(str(error))
            self._router.send_multipart([connection, encode_refusal(str(error))], zmq.NOBLOCK)
            return
        except MessageError as error:
            self._refuse(str(error))
            if error.request is not None:
                # Whoever waits for a reply must not take the store for dead.
                report = report_error(error, origin=f"the store at {self.address}")
                self._send(connection, Failed(request=error.request, error=report))
            return
        if isinstance(request, Hello):
            lost += self._read_events()
            lost += self._connections.hello(sender.get(zmq.SRCFD), connection)
        payload = frames[1] if len(frames) > 1 else b""
        self._membership.receive(connection, request, payload, time.monotonic())

    def _refuse(self, text: str) -> None:
        self.messages_refused += 1
        count = self.messages_refused
        if count < 10 or set(str(count)[1:]) == {"0"}:  # 10, 20, ... 100, 200, ...: no flood
            _logger.warning("store %s refused message %d: %s", self.address, count, text)

    def _send_outbox(self) -> None:
        for connection, reply, frames in self._membership.take_outbox():
            self._send(connection, reply, frames)

    def _send(self, connection: bytes, reply: Reply, frames: Sequence[bytes] = ()) -> None:
        # Never blocks and never fails for a peer that is gone: a ROUTER drops what it cannot
        # deliver, and the end of the connection tells the rest.
        self._router.send_multipart((connection, encode(reply), *frames), zmq.NOBLOCK)

    def _read_events(self) -> list[bytes]:
        """Returns the processes whose connections have ended."""
        lost: list[bytes] = []
        while has_message(self._events):
            kind, value = _EVENT.unpack(self._events.recv_multipart()[0])
            if kind == zmq.EVENT_ACCEPTED:
                self._connections.accept(value)
            elif kind == zmq.EVENT_DISCONNECTED:
                connection = self._connections.end(value)
                lost += [] if connection is None else [connection]
            else:
                self._count_refused_handshake()
        return lost

    def _count_refused_handshake(self) -> None:
        self.handshakes_refused += 1
        self._membership.remark = (
            f" {self.handshakes_refused} connections were refused "
            "(their token is wrong, missing or not needed here; or they are not of reshard)."
        )

    def _forget(self, lost: Sequence[bytes]) -> None:
        for connection in lost:
            self._membership.lose(connection, "lost its connection", time.monotonic())

    def _answer_zap(self) -> None:
        if self._zap is not None and self._keys is not None and has_message(self._zap):
            self._zap.send_multipart(answer_zap(self._zap.recv_multipart(), self._keys))


def _wake(sender: socket.socket, pid: int) -> None:
    """Ends the store's thread, if it is in this process; does not wait, so any thread may call it.

    A forked child shares the socket: closing it there changes nothing for the parent, and closing
    it in the parent alone would not be seen by the thread while such a child lives.
    """
    if pid == os.getpid():
        sender.shutdown(socket.SHUT_WR)
    sender.close()


def has_message(source: zmq.Socket[bytes]) -> bool:
    """Says whether a message can be received without waiting."""
    return bool(int(source.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def watch_events(watched: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Returns a socket that receives the connection events of another one.

    It has no limit on its queue: libzmq's I/O thread would wait for us at a full one.
    """
    endpoint = f"inproc://reshard-events-{watched.underlying:x}"
    watched.monitor(endpoint, events)
    receiver: zmq.Socket[bytes] = watched.context.socket(zmq.PAIR)
    receiver.linger = 0
    receiver.rcvhwm = 0
    receiver.connect(endpoint)
    return receiver
