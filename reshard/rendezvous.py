"""How a process meets the others at a store and takes part in one refit after another.

    rendezvous = Rendezvous(address, local_member("destination", "engine", ranks=[0], num_ranks=1))
    rendezvous.connect(timeout_s=60)
    while serving:
        go = rendezvous.begin(b"", timeout_s=60)        # one request and its reply
        exchange = rendezvous.exchange_of(go)
        ...                                             # move the bytes
        exchange.exchange("done", b"", timeout_s=60)    # one more
    rendezvous.close()

Who waits for whom, and which error reaches whom, is decided by the store (`reshard.membership`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from reshard.addresses import heartbeat_ms, parse_address, require_token
from reshard.control_messages import (
    MAX_SEEN_EPOCH,
    Begin,
    Bye,
    Hello,
    Member,
    Refuse,
    Started,
    Welcome,
    Withdraw,
)
from reshard.epoch_exchange import GRACE_S, EpochExchange, Go, check_timeout, expect
from reshard.error_report import report_error
from reshard.errors import RendezvousError, ReshardError, TransportError
from reshard.local_member import number_in
from reshard.store import StoreClient, StoreGoneError
from reshard.store_server import DEFAULT_MAX_MESSAGE_BYTES

__all__ = ["EpochExchange", "Go", "Member", "Rendezvous"]

_logger = logging.getLogger("reshard.control")

_BYE_TIMEOUT_S: Final = 2.0
_QUICK_REJOIN_S: Final = 1.0


class Rendezvous:
    """One process's part in the refits of a store; used by one thread, and not across a fork.

    Args:
        address: `tcp://host:port` of the store.
        member: who this process is.
        token: the store's secret, or None if it has none.
        min_destinations: on a source, how many complete destinations a refit needs.
        last_epoch: largest epoch that this process has seen at any store; later ones are larger.
        max_message_bytes: largest payload.
        heartbeat_interval_s: how often the connection is checked.
        heartbeat_timeout_s: silence after which the store counts as gone.

    Attributes:
        was_refused: whether the store answered the last `begin` with an error, so that no refit of
            it can have formed.

    Raises:
        LayoutError: a number is out of range.
        RendezvousError: the address is malformed, or lacks a token.
    """

    def __init__(
        self,
        address: str,
        member: Member,
        *,
        token: str | None = None,
        min_destinations: int = 1,
        last_epoch: int = 0,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        heartbeat_interval_s: float = 1.0,
        heartbeat_timeout_s: float = 5.0,
    ) -> None:
        where = f"{member.role} {member.group!r}"
        heartbeat_ms(heartbeat_interval_s, heartbeat_timeout_s)
        require_token(parse_address(address), token)
        self._address = address
        self._member = member
        self._token = token
        self._min_destinations = number_in(where, "min_destinations", min_destinations, 1)
        self._last_epoch = number_in(where, "last_epoch", last_epoch, 0, MAX_SEEN_EPOCH + 1)
        self._max_message_bytes = number_in(
            where, "max_message_bytes", max_message_bytes, 1, 1 << 62
        )
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._client: StoreClient | None = None
        self._connecting: StoreClient | None = None  # one that has not been welcomed yet
        self._known_epoch = 0
        self._known_members: tuple[Member, ...] = ()
        self._begun: int | None = None
        self._is_closed = False
        self.was_refused = False

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
    def last_epoch(self) -> int:
        """The largest epoch that this process has seen."""
        return self._last_epoch

    def connect(self, timeout_s: float, *, while_waiting: Callable[[], None] | None = None) -> None:
        """Waits for the store and registers this process; does nothing if it is registered.

        Args:
            timeout_s: how long to wait for somebody at the address.
            while_waiting: called at least every 20 ms; what it raises ends the wait.

        Raises:
            RendezvousError: nobody is there, the token or the protocol version is refused, or the
                process does not fit the others (same index, other number of processes, ...).
        """
        timeout_s = check_timeout(timeout_s)
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while self._client is None or self._client.is_lost:
            self._disconnect()
            try:
                self._say_hello(max(0.0, deadline - time.monotonic()), while_waiting)
            except StoreGoneError:
                if time.monotonic() >= deadline:
                    raise

    def begin(
        self,
        payload: bytes = b"",
        *,
        timeout_s: float,
        version: int | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> Go:
        """Waits until everybody who is needed takes part in a refit.

        A process that is not registered (any more) registers first.

        Args:
            payload: bytes for all members.
            timeout_s: how long to wait for the others.
            version: on a source, what it publishes; must not fall.
            while_waiting: called at least every 20 ms; what it raises ends the wait.

        Raises:
            TransferTimeout: somebody did not come; the message says who.
            RendezvousError: the store is gone, a process of this program died, the source left.

        Collective: every process of the source and of every complete destination.
        """
        self._begun = None
        timeout_s = check_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        client = self._registered_client(timeout_s, while_waiting)
        remaining_s = max(0.0, deadline - time.monotonic())
        request = Begin(
            request=client.new_request(),
            timeout_s=remaining_s,
            known_epoch=self._known_epoch,
            version=version,
        )
        self._begun = request.request
        self.was_refused = False
        try:
            reply, payloads = client.call(
                request, payload, timeout_s=remaining_s + GRACE_S, while_waiting=while_waiting
            )
            return self._note(expect(reply, Started), tuple(payloads))
        except BaseException as error:
            is_answered = client.is_answered(request.request)
            self.was_refused = is_answered and isinstance(error, ReshardError)
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Takes the last `begin` back, whether the refit has formed or not; others get an error.

        For an exception between `begin` and `exchange_of`; does nothing without a `begin`.
        """
        begun, self._begun = self._begun, None
        if begun is not None and self._client is not None:
            self._client.notify(Withdraw(request=begun))

    def refuse(self, error: BaseException, *, timeout_s: float) -> None:
        """Tells all others why this process takes no part in the next refit; see `Refuse`.

        Args:
            error: what is wrong here; a class of `reshard.errors` arrives as itself.
            timeout_s: how long to wait for the store if this process is not registered.

        Raises:
            RendezvousError: the store is not there.
        """
        client = self._registered_client(timeout_s, None)
        client.tell(Refuse(request=client.new_request(), error=report_error(error)))

    def exchange_of(self, go: Go) -> EpochExchange:
        """Returns the exchange among the members of a refit."""
        if self._client is None:
            raise RendezvousError(f"not connected to the store at {self._address}.")
        return EpochExchange(self._client, go)

    def interrupt(self) -> None:
        """Makes the wait of another thread raise soon; any thread. Only `close` is left then."""
        self._is_closed = True
        client = self._connecting or self._client
        if client is not None:
            client.interrupt()

    def close(self) -> None:
        """Leaves the store, which makes the whole program leave, and frees everything; idempotent.

        Waits at most two seconds; a store that is gone does not matter.
        """
        self._is_closed = True
        client, self._client = self._client, None
        if client is None:
            return
        try:
            if not client.is_lost:
                bye = Bye(request=client.new_request())
                client.call(bye, timeout_s=_BYE_TIMEOUT_S)
        except TransportError as error:
            _logger.info("left without a word from the store: %s", error)
        finally:
            client.close()

    def _registered_client(
        self, timeout_s: float, while_waiting: Callable[[], None] | None
    ) -> StoreClient:
        """Returns a client that the store knows, registering anew where needed.

        A store that went away between two refits is told once, quickly, unless another one is
        there already; after that, a begin waits for a new store as long as its caller says.
        """
        client = self._client
        if client is not None and not client.is_lost:
            return client
        if client is not None and not client.is_failure_told:
            try:
                self.connect(min(timeout_s, _QUICK_REJOIN_S), while_waiting=while_waiting)
            except RendezvousError as error:
                raise RendezvousError(
                    f"the store at {self._address} is gone since the last refit, and no new one "
                    f"is there yet: {error}"
                ) from error
        self.connect(timeout_s, while_waiting=while_waiting)
        if self._client is None:
            raise RendezvousError(f"not connected to the store at {self._address}.")
        return self._client

    def _check_open(self) -> None:
        if self._is_closed:
            raise RendezvousError(f"the rendezvous at {self._address} is closed; open a new one.")

    def _say_hello(self, timeout_s: float, while_waiting: Callable[[], None] | None) -> None:
        client = StoreClient(
            self._address,
            token=self._token,
            max_message_bytes=self._max_message_bytes,
            heartbeat_interval_s=self._heartbeat_interval_s,
            heartbeat_timeout_s=self._heartbeat_timeout_s,
        )
        self._connecting = client
        try:
            self._check_open()
            hello = Hello(
                request=client.new_request(),
                member=self._member,
                min_destinations=self._min_destinations,
                last_epoch=self._last_epoch,
            )
            reply, _ = client.call(hello, timeout_s=timeout_s, while_waiting=while_waiting)
            welcome = expect(reply, Welcome)
        except BaseException:
            self._connecting = None
            client.close()
            raise
        client.max_message_bytes = min(client.max_message_bytes, welcome.max_message_bytes)
        self._client, self._connecting = client, None
        _logger.info("%s joined the store at %s", self._member.describe(), self._address)

    def _note(self, started: Started, payloads: tuple[bytes, ...]) -> Go:
        """Returns what began, with the members that the store leaves out if they are known."""
        if started.members is not None:
            self._known_epoch, self._known_members = started.epoch, started.members
        if self._known_epoch != started.epoch or len(payloads) != len(self._known_members):
            raise RendezvousError(
                f"epoch {started.epoch} began with {len(payloads)} payloads, "
                f"but {len(self._known_members)} members of epoch {self._known_epoch} are known."
            )
        self._last_epoch = max(self._last_epoch, started.epoch)
        return Go(
            epoch=started.epoch,
            refit=started.refit,
            version=started.version,
            members=self._known_members,
            payloads=payloads,
            process=started.process,
        )

    def _disconnect(self) -> None:
        """Forgets the connection, and what only the store at its other end can refer to."""
        self._known_epoch, self._known_members = 0, ()
        if self._client is not None:
            self._client.close()
            self._client = None
