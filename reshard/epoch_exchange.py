"""The exchange among the members of one refit, carried by the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from numbers import Real
from typing import Final, TypeVar

from reshard.control_messages import Fail, Gathered, Member, Post, Reply, Started, Welcome
from reshard.error_report import rebuild_error, report_error
from reshard.errors import LayoutError, RendezvousError
from reshard.store import StoreClient, StoreGoneError

__all__ = ["GRACE_S", "EpochExchange", "Go", "check_timeout", "expect"]

GRACE_S: Final = 0.7  # the store keeps the deadline and names the silent; this is for a dead store

_MAX_TIMEOUT_S: Final = 1e8
_ReplyT = TypeVar("_ReplyT", Welcome, Started, Gathered)


@dataclasses.dataclass(frozen=True, slots=True)
class Go:
    """A refit has formed.

    Attributes:
        epoch: number of this set of members; larger than any epoch that a member saw before.
        refit: number of the refit within the epoch, from 1.
        version: what the source publishes, or None where it did not say.
        members: the source's processes, then each destination's, by name.
        payloads: what each member gave to `begin`, in the same order.
        process: index of this process among the members.
    """

    epoch: int
    refit: int
    version: int | None
    members: tuple[Member, ...]
    payloads: tuple[bytes, ...]
    process: int


class EpochExchange:
    """The exchange among the members of one refit, carried by the store."""

    def __init__(self, client: StoreClient, go: Go) -> None:
        self._client = client
        self._go = go
        self._closed_by: str | None = None

    @property
    def num_processes(self) -> int:
        """How many members there are."""
        return len(self._go.members)

    @property
    def process(self) -> int:
        """The index of this member."""
        return self._go.process

    @property
    def hub(self) -> int:
        """The member whose process hosts the store."""
        return next(
            index
            for index, member in enumerate(self._go.members)
            if member.role == "source" and member.process == 0
        )

    def exchange(
        self,
        name: str,
        payload: bytes,
        *,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """Gives a payload to all members and returns all payloads; see `Exchange.exchange`."""
        timeout_s = check_timeout(timeout_s)
        if self._closed_by is not None:
            raise RendezvousError(
                f"exchange {name!r} of epoch {self._go.epoch}: closed by an earlier error: "
                f"{self._closed_by}"
            )
        request = Post(
            request=self._client.new_request(),
            epoch=self._go.epoch,
            refit=self._go.refit,
            name=name,
            timeout_s=timeout_s,
        )
        self._raise_end()
        try:
            reply, payloads = self._client.call(
                request, payload, timeout_s=timeout_s + GRACE_S, while_waiting=while_waiting
            )
            expect(reply, Gathered)
        except StoreGoneError as error:
            self._closed_by = _text_of(error)
            self._raise_end()  # the cause may have come with the end of the connection
            raise
        except BaseException as error:
            self._closed_by = _text_of(error)
            if not self._client.is_answered(request.request):
                self.fail(error)  # given up here: the others must not wait for this process
            raise
        return list(payloads)

    def fail(self, error: BaseException, *, culprit: int | None = None) -> None:
        """Closes the epoch for all members; see `Exchange.fail`."""
        self._closed_by = self._closed_by or _text_of(error)
        self._client.tell(
            Fail(
                request=self._client.new_request(),
                epoch=self._go.epoch,
                refit=self._go.refit,
                error=report_error(error),
                culprit=culprit,
            )
        )

    def _raise_end(self) -> None:
        """Raises what ended the refit, if the store has said so."""
        ended = self._client.end_of(self._go.epoch, self._go.refit)
        if ended is not None:
            self._closed_by = ended.message
            raise rebuild_error(ended)


def check_timeout(timeout_s: object) -> float:
    """Returns a limit as a plain number, if it is neither negative nor infinite.

    Raises:
        LayoutError: it is.
    """
    is_number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    limit = float(timeout_s) if is_number else -1.0  # type: ignore[arg-type]
    if not 0.0 <= limit <= _MAX_TIMEOUT_S:
        raise LayoutError(
            f"timeout_s={timeout_s!r} is not a number of seconds from 0 to {_MAX_TIMEOUT_S:g}. "
            "Give a limit such as 60.0."
        )
    return limit


def expect(reply: Reply, kind: type[_ReplyT]) -> _ReplyT:
    """Returns a reply if it is of the right kind.

    Raises:
        RendezvousError: it is not.
    """
    if not isinstance(reply, kind):
        raise RendezvousError(f"the store answered with {type(reply).__name__}, not {kind}.")
    return reply


def _text_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
