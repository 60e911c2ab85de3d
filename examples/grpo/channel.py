"""The rollout channel: one request, one reply, and a limit on every wait.

The engine binds a ZeroMQ REP socket, the trainer connects a REQ socket. Each side watches its
connection, so that the death of the other is an error within milliseconds rather than a silence.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TypeVar

import zmq
from messages import Failed, Reply, Request, decode_reply, encode
from zmq.utils.monitor import recv_monitor_message

MAX_MESSAGE_BYTES = 64 << 20

AnyReply = TypeVar("AnyReply", bound=Reply)


class ChannelError(RuntimeError):
    """The other program is not there, has gone, is too slow or reported an error."""


class _Watched:
    """A socket together with the monitor that reports the loss of its connection."""

    def __init__(self, kind: int, address: str, peer: str) -> None:
        self.address = address
        self._peer = peer
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def send(self, payload: bytes) -> None:
        """Hands one message to ZeroMQ; returns at once."""
        self._socket.send(payload)

    def receive(self, timeout_s: float, waiting_for: str) -> bytes:
        """Returns the next message.

        Args:
            timeout_s: The limit of the wait, in seconds.
            waiting_for: What the message will be, for the error text.

        Raises:
            ChannelError: Nothing came in time, or the other side closed the connection.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            remaining_ms = max(0, int(1000 * (deadline - time.monotonic())))
            ready = dict(self._poller.poll(remaining_ms))
            if self._socket in ready:
                return self._socket.recv()
            if self._monitor in ready:
                recv_monitor_message(self._monitor)
                message = (
                    f"{self.address}: the {self._peer} closed the connection while this program "
                    f"waited for {waiting_for}: it ended or was killed. Its own output says why."
                )
                raise ChannelError(message)
            if not ready:
                message = (
                    f"{self.address}: the {self._peer} did not send {waiting_for} within "
                    f"{timeout_s:g} s. Is it running, and with this address?"
                )
                raise ChannelError(message)

    def close(self) -> None:
        """Closes the sockets; closing twice is fine."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()


class EngineClient:
    """The trainer's end: asks the engine for rollouts.

    Used by one thread at a time.
    """

    def __init__(self, address: str) -> None:
        """Starts to connect to `address`, such as `tcp://127.0.0.1:29601`; does not wait."""
        self._channel = _Watched(zmq.REQ, address, "engine")
        self._channel._socket.connect(address)

    def __enter__(self) -> EngineClient:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connection."""
        self._channel.close()

    def send(self, request: Request) -> None:
        """Sends a request without waiting for its reply."""
        self._channel.send(encode(request))

    def receive(self, kind: type[AnyReply], *, timeout_s: float) -> AnyReply:
        """Returns the reply to the last request.

        Raises:
            ChannelError: The engine failed, ended, was too slow or answered something else.
        """
        reply = decode_reply(self._channel.receive(timeout_s, f"a {kind.__name__} reply"))
        if isinstance(reply, Failed):
            message = f"{self._channel.address}: the engine failed: {reply.error}"
            raise ChannelError(message)
        if not isinstance(reply, kind):
            message = (
                f"{self._channel.address}: the engine answered {type(reply).__name__}, "
                f"not {kind.__name__}. Both programs must come from the same version of the demo."
            )
            raise ChannelError(message)
        return reply

    def ask(self, request: Request, kind: type[AnyReply], *, timeout_s: float) -> AnyReply:
        """Sends a request and returns its reply."""
        self.send(request)
        return self.receive(kind, timeout_s=timeout_s)


class EngineServer:
    """The engine's end: receives requests and answers each once."""

    def __init__(self, address: str) -> None:
        """Binds `address`.

        Raises:
            ChannelError: The address is taken.
        """
        self._channel = _Watched(zmq.REP, address, "trainer")
        try:
            self._channel._socket.bind(address)
        except zmq.ZMQError as error:
            self._channel.close()
            message = (
                f"{address}: cannot listen for rollout requests: {error.strerror}. "
                "Stop the program that holds the port or choose another with --rollout-address."
            )
            raise ChannelError(message) from error

    def receive(self, timeout_s: float) -> bytes:
        """Returns the next request, still encoded."""
        return self._channel.receive(timeout_s, "a request")

    def reply(self, reply: Reply) -> None:
        """Answers the request received last."""
        self._channel.send(encode(reply))

    def close(self) -> None:
        """Stops listening, once the last reply is on its way."""
        self._channel.close()
