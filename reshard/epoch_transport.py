"""How the bytes of an epoch travel: what a session asks of shared memory and of NCCL alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from reshard.contribution import decode_all
from reshard.errors import PlanError
from reshard.exchange import Exchange

if TYPE_CHECKING:
    from reshard._native import Communicator
    from reshard.local_program import LocalProgram

__all__ = [
    "SHORTEST_S",
    "EpochTransport",
    "closed_on_error",
    "compare_plans",
    "connect_all",
    "time_left",
]

SHORTEST_S = 1e-3
"""A limit for what takes no limit of 0, where the time is over already."""

_NOT_YET, _CONNECTED = b"", b"c"


class EpochTransport(Protocol):
    """One process's part in moving the bytes of an epoch."""

    def agree(self, exchange: Exchange, local: LocalProgram, digest: str, timeout_s: float) -> None:
        """Agrees on the sizes of messages and compiles the program.

        Raises:
            PlanError: plans differ, or memory for chunks under way is too small.

        Collective: every member.
        """

    def connect(
        self, exchange: Exchange, deadline: float, while_waiting: Callable[[], None] | None
    ) -> Communicator | None:
        """Returns the connected communicator; None where this process has nobody to talk to.

        Collective: every member.
        """


def time_left(deadline: float) -> float:
    """Returns the seconds until a moment of `time.monotonic`, at least 0."""
    return max(0.0, deadline - time.monotonic())


def compare_plans(
    exchange: Exchange,
    names: Sequence[str],
    digest: str,
    offer: object,
    timeout_s: float,
) -> list[Any]:
    """Returns what all members offer, once it is sure that their plans are the same.

    Args:
        names: of the members.
        digest: of this member's plan.
        offer: whatever msgpack carries.

    Raises:
        PlanError: plans differ.
    """
    word = msgspec.msgpack.encode((digest, offer))
    answers = decode_all(exchange.exchange("plan", word, timeout_s=timeout_s), tuple[str, Any])
    digests = [each for each, _ in answers]
    if len(set(digests)) != 1:
        listed = ", ".join(
            f"{name}: {each[:12]}" for name, each in zip(names, digests, strict=True)
        )
        raise PlanError(
            f"processes made different plans ({listed}). Run one version of reshard "
            "everywhere; if it is one version, please report the specs."
        )
    return [given for _, given in answers]


@contextmanager
def closed_on_error(communicator: Communicator | None) -> Iterator[Communicator | None]:
    """Closes a communicator if what is done with it in here fails."""
    try:
        yield communicator
    except BaseException:
        if communicator is not None:
            communicator.close()
        raise


def connect_all(
    exchange: Exchange,
    communicator: Communicator | None,
    deadline: float,
    while_waiting: Callable[[], None] | None,
) -> None:
    """Connects this process, and waits until all are connected.

    Whoever has to wait tells the others so again and again: in the same exchange it hears that
    one of them failed and will never come.
    """

    def has_everybody(word: bytes) -> bool:
        return all(exchange.exchange("connected", word, timeout_s=time_left(deadline)))

    def wait() -> None:
        if while_waiting is not None:
            while_waiting()
        has_everybody(_NOT_YET)

    if communicator is not None:
        communicator.connect(max(time_left(deadline), SHORTEST_S), while_waiting=wait)
    while not has_everybody(_CONNECTED):
        pass
