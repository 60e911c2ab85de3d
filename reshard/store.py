"""A process's connection to the store: one request, one reply, and news of the connection itself.

The client has no thread of its own. It waits in short slices, so that an interrupt gets through and
the caller can look at other things meanwhile. A client whose connection ended once is lost for
good, because the store has forgotten its process by then; make a new one and say hello again.
"""

from __future__ import annotations

import errno
import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

import zmq

from reshard.addresses import Address, heartbeat_ms, parse_address, require_token
from reshard.control_messages import (
    Ended,
    Failed,
    MessageError,
    Reply,
    Request,
    Unknown,
    decode_reply,
    encode,
)
from reshard.error_report import ErrorReport, rebuild_error
from reshard.errors import RendezvousError, TransferTimeout, TransportError
from reshard.forked import connected_to
from reshard.store_server import (
    DEFAULT_MAX_MESSAGE_BYTES,
    has_message,
    watch_events,
)
from reshard.token_keys import TokenKeys

__all__ = ["StoreClient", "StoreGoneError"]

_SLICE_S: Final = 0.01  # while_waiting is promised every 20 ms; a busy machine needs some room
_INTERRUPTIBLE_SLICE_S: Final = 0.2
_LINGER_MS: Final = 500
_RECONNECT_MS: Final = 50
_MAX_RECONNECT_MS: Final = 500
_TELL_S: Final = 0.2
_NO_REQUEST: Final = 0
_NUM_CUT_HANDSHAKES: Final = 3  # one may be a store that is just starting or ending
_EVENT: Final = struct.Struct("=HI")
_WATCHED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_CUT: Final = (errno.EPIPE, errno.ECONNRESET)


class StoreGoneError(RendezvousError):
    """The store ended, or the connection to it did; a new client may find a new store."""


class StoreClient:
    """One connection to a store; used by one thread, and lost in a forked child.

    Args:
        address: `tcp://host:port` of the store.
        token: the store's secret, or None if it has none.
        max_message_bytes: largest frame accepted.
        heartbeat_interval_s: how often the connection is checked.
        heartbeat_timeout_s: silence after which the store counts as gone.

    Attributes:
        max_message_bytes: largest payload that is sent; lowered to what the store accepts.
        is_failure_told: whether an error told the caller that the connection ended.

    Raises:
        RendezvousError: the address is malformed, unknown, or lacks a token.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        heartbeat_interval_s: float = 1.0,
        heartbeat_timeout_s: float = 5.0,
    ) -> None:
        self._address = parse_address(address)
        require_token(self._address, token)
        if self._address.is_wildcard:
            raise RendezvousError(
                f"{address} is an address to bind, not one to connect to. Name the store's machine."
            )
        interval_ms, timeout_ms = heartbeat_ms(heartbeat_interval_s, heartbeat_timeout_s)
        self.max_message_bytes = max_message_bytes
        self.is_failure_told = False
        self._requests = 0
        self._last_answered = 0
        self._is_connected = False
        self._has_met_store = False
        self._num_cut_handshakes = 0
        self._failure: RendezvousError | None = None
        self._ended: Ended | None = None
        self._is_interrupted = False
        numeric = self._address.resolve()
        # libzmq's threads do not exist in a forked child, where its calls never return.
        self._pid = os.getpid()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.linger = _LINGER_MS
        self._socket.ipv6 = ":" in numeric.host
        self._socket.maxmsgsize = max_message_bytes
        self._socket.reconnect_ivl = _RECONNECT_MS
        self._socket.reconnect_ivl_max = _MAX_RECONNECT_MS
        self._socket.heartbeat_ivl, self._socket.heartbeat_timeout = interval_ms, timeout_ms
        if token is not None:
            keys = TokenKeys.derive(token)
            self._socket.curve_serverkey = keys.server_public
            self._socket.curve_publickey = keys.client_public
            self._socket.curve_secretkey = keys.client_secret
        self._events = watch_events(self._socket, _WATCHED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._events, zmq.POLLIN)
        self._socket.connect(str(numeric))
        self._store = numeric.host, numeric.port
        connected_to(*self._store, 1)

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
    def address(self) -> Address:
        """The address of the store."""
        return self._address

    @property
    def is_lost(self) -> bool:
        """Says whether this client can be used no more; looks at the news of the connection."""
        if not self._is_usable:
            return True
        self._read_events()
        return self._failure is not None

    @property
    def _is_usable(self) -> bool:
        return self._pid == os.getpid() and not self._context.closed

    def new_request(self) -> int:
        """Returns the number of the next request."""
        self._requests += 1
        return self._requests

    def is_answered(self, request: int) -> bool:
        """Says whether the store replied to the request sent last, be it with an error."""
        return request == self._last_answered

    def notify(self, request: Request) -> None:
        """Sends a request that has no reply; does nothing where nobody would read it."""
        if not self.is_lost:
            self._post([encode(request)])

    def tell(self, request: Request) -> None:
        """Sends a request whose reply says no more than that the store has done its part.

        Waits a moment for it, so that a process that ends next does not take the word with it. Does
        nothing where nobody would read it.
        """
        was_told = self.is_failure_told
        try:
            if not self.is_lost:
                self.call(request, timeout_s=_TELL_S)
        except TransportError:
            self.is_failure_told = was_told  # by this call, whose errors nobody hears of

    def end_of(self, epoch: int, refit: int) -> ErrorReport | None:
        """Returns what ended a refit, if the store said so by itself; also after it is gone."""
        if self._is_usable:
            self._receive(_NO_REQUEST)
        ended = self._ended
        is_this = ended is not None and (ended.epoch, ended.refit) == (epoch, refit)
        return ended.error if ended is not None and is_this else None

    def call(
        self,
        request: Request,
        payload: bytes | None = None,
        *,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> tuple[Reply, Sequence[bytes]]:
        """Sends a request and waits for its reply.

        Args:
            request: what to send.
            payload: bytes that travel with it, or None.
            timeout_s: how long to wait.
            while_waiting: called at least every 20 ms; what it raises ends the wait.

        Returns:
            The reply and the frames that came with it.

        Raises:
            ReshardError: the store answered with an error of this class.
            StoreGoneError: the connection ended.
            RendezvousError: the token was refused, the payload is too large, or
                `interrupt` was called.
            TransferTimeout: nothing came in time.
        """
        self._send(request, payload)
        deadline = time.monotonic() + timeout_s
        slice_s = _INTERRUPTIBLE_SLICE_S if while_waiting is None else _SLICE_S
        while True:
            remaining_s = deadline - time.monotonic()
            news = self._poller.poll(math.ceil(max(0.0, min(slice_s, remaining_s)) * 1000))
            if news:
                self._read_events()
                answer = self._receive(request.request)
                if answer is not None:
                    return answer
            self._raise_failure()
            if self._is_interrupted:
                raise RendezvousError("closed while this call waited.")
            if remaining_s <= 0:
                raise self._timeout(timeout_s)
            if while_waiting is not None:
                while_waiting()

    def interrupt(self) -> None:
        """Makes a call under way raise within 0.2 s, and all later ones; any thread."""
        self._is_interrupted = True

    def close(self) -> None:
        """Frees everything; notices on their way get half a second; idempotent.

        Does nothing in a forked child: the connection is the parent's.
        """
        if not self._is_usable:
            return
        connected_to(*self._store, -1)
        self._socket.disable_monitor()
        self._events.close(linger=0)
        has_reader = self._has_met_store and self._failure is None
        self._socket.close(linger=_LINGER_MS if has_reader else 0)
        self._context.term()

    def _send(self, request: Request, payload: bytes | None) -> None:
        if not self._is_usable:
            state = "closed" if self._pid == os.getpid() else f"that of process {self._pid}"
            raise RendezvousError(f"the connection to the store at {self._address} is {state}.")
        if payload is not None and len(payload) > self.max_message_bytes:
            raise RendezvousError(
                f"a control message of {len(payload)} bytes is over the limit of "
                f"{self.max_message_bytes}. Raise max_message_bytes on every process."
            )
        self._read_events()
        self._raise_failure()
        self._post([encode(request)] if payload is None else [encode(request), payload])
        self._raise_failure()

    def _post(self, frames: Sequence[bytes]) -> None:
        """Hands frames to libzmq, which refuses them once it has given the connection up."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._read_events()
            self._fail(self._gone())  # unless the events hold a better reason
        except BaseException:
            self._abandon()
            raise

    def _receive(self, request: int) -> tuple[Reply, Sequence[bytes]] | None:
        """Returns the reply to a request if it is there; drops replies to earlier ones."""
        while has_message(self._socket):
            try:
                header, *frames = self._socket.recv_multipart()
            except BaseException:
                self._abandon()
                raise
            try:
                reply = decode_reply(header)
            except MessageError as error:
                self._fail(RendezvousError(f"the store at {self._address} sent nonsense: {error}"))
                return None
            if isinstance(reply, Ended):
                self._ended = reply
            if reply.request != request or request == _NO_REQUEST:
                continue
            self._last_answered = request
            if isinstance(reply, Failed):
                raise rebuild_error(reply.error)
            if isinstance(reply, Unknown):
                self._fail(self._gone())
                return None
            return reply, frames
        return None

    def _read_events(self) -> None:
        while has_message(self._events):
            kind, value = _EVENT.unpack(self._events.recv_multipart()[0])
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._has_met_store = True
                self._num_cut_handshakes = 0
            elif kind == zmq.EVENT_CONNECTED:
                self._is_connected = True
            elif kind == zmq.EVENT_DISCONNECTED:
                self._is_connected = False
                if self._has_met_store:
                    self._fail(self._gone())
            elif kind != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._fail(self._refused())
            elif value in _CUT:
                self._num_cut_handshakes += 1
                if self._num_cut_handshakes >= _NUM_CUT_HANDSHAKES:
                    self._fail(self._refused())

    def _abandon(self) -> None:
        """Ends a connection in which an interrupt has left half a message; the store sees that."""
        self._fail(self._gone())
        self.is_failure_told = True  # the interrupt is what the caller hears of
        self.close()

    def _fail(self, error: RendezvousError) -> None:
        """Notes the first thing that ended the connection."""
        if self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self.is_failure_told = True
            raise type(self._failure)(str(self._failure))

    def _gone(self) -> RendezvousError:
        return StoreGoneError(
            f"the store at {self._address} is gone: the connection ended. "
            "The source program ended, died or restarted; begin again to join a new one."
        )

    def _refused(self) -> RendezvousError:
        return RendezvousError(
            f"the store at {self._address} refused the connection: wrong or missing token, or "
            "something else listens there. Give the same token=... to every process of both "
            "programs, and check the address."
        )

    def _timeout(self, timeout_s: float) -> RendezvousError | TransferTimeout:
        if self._has_met_store:
            return TransferTimeout(
                f"the store at {self._address} did not answer within {timeout_s:.1f} s."
            )
        state = (
            "a process listens there but does not answer"
            if self._is_connected
            else "nothing listens there"
        )
        return RendezvousError(
            f"no store at {self._address} within {timeout_s:.1f} s: {state}. "
            "Start the source program first or wait longer, and check the address."
        )
