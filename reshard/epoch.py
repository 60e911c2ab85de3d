"""One fixed set of members, the refits that they make, and the exchange that is open among them.

A member is *inside* a refit from its start until the member begins the next one. At most one
exchange is open at a time, because nobody gets its result before everybody has posted.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from reshard.error_report import ErrorReport
from reshard.group import Process

__all__ = ["ClosedEpochs", "Epoch", "PostRecord"]

_NUM_CLOSED_EPOCHS_KEPT: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class PostRecord:
    """One member's part of the open exchange."""

    process: Process
    request: int
    payload: bytes


class Epoch:
    """The members of an epoch and what they are doing.

    Args:
        number: number of the epoch.
        processes: the members in order; all registered.
    """

    def __init__(self, number: int, processes: Sequence[Process]) -> None:
        self.number = number
        self.processes = tuple(processes)
        self.members = tuple(process.member for process in processes)
        self.key = tuple(process.incarnation for process in processes)
        self.refit = 0
        self.error: ErrorReport | None = None
        self.deadline = math.inf
        self._indices = {process.connection: i for i, process in enumerate(processes)}
        self._outside: set[int] = set()
        self._name = ""
        self._started = 0.0
        self._posts: dict[int, PostRecord] = {}

    def index_of(self, process: Process) -> int | None:
        """Returns the index of a process among the members, or None."""
        return self._indices.get(process.connection)

    def start_refit(self) -> None:
        """Counts a new refit; every member is inside."""
        self.refit += 1
        self._outside.clear()

    def leave(self, index: int) -> str | None:
        """Notes that a member begins the next refit.

        Returns:
            What is wrong if others wait for the member in an exchange, else None.
        """
        self._outside.add(index)
        if not self._posts:
            return None
        return (
            f"{self.members[index].describe()} left epoch {self.number}, refit {self.refit} and "
            f"began the next refit while others wait for it in exchange {self._name!r}."
        )

    def post(
        self, index: int, name: str, record: PostRecord, now: float, deadline: float
    ) -> str | None:
        """Adds a member's part to the exchange, opening it if it is the first.

        Returns:
            What is wrong if the members do not agree on what they are doing, else None.
        """
        me = self.members[index].describe()
        if self._outside:
            other = self.members[min(self._outside)].describe()
            return f"{other} has begun the next refit while {me} enters exchange {name!r}."
        if self._posts and name != self._name:
            other = self.members[min(self._posts)].describe()
            return f"{me} enters exchange {name!r} while {other} waits in exchange {self._name!r}."
        if index in self._posts:
            return f"{me} posted to exchange {name!r} twice."
        if not self._posts:
            self._name, self._started = name, now
        self._posts[index] = record
        self.deadline = min(self.deadline, deadline)
        return None

    @property
    def is_gathered(self) -> bool:
        """Says whether every member has posted."""
        return len(self._posts) == len(self.processes)

    def take_posts(self) -> list[PostRecord]:
        """Ends the open exchange and returns its posts in the order of the members."""
        posts = [self._posts[index] for index in sorted(self._posts)]
        self._posts = {}
        self.deadline = math.inf
        return posts

    def silent(self) -> list[Process]:
        """Returns the members that have not posted to the open exchange."""
        return [p for index, p in enumerate(self.processes) if index not in self._posts]

    def describe_exchange(self, now: float) -> str:
        """Returns which exchange is open, since when, and how far it is."""
        return (
            f"epoch {self.number}, refit {self.refit}, exchange {self._name!r}: "
            f"{len(self._posts)} of {len(self.processes)} processes came "
            f"within {now - self._started:.1f} s"
        )


class ClosedEpochs:
    """The last epochs that an error closed, by number."""

    def __init__(self) -> None:
        self._epochs: collections.OrderedDict[int, Epoch] = collections.OrderedDict()

    def add(self, epoch: Epoch) -> None:
        """Keeps an epoch, and forgets the oldest one if there are many."""
        self._epochs[epoch.number] = epoch
        if len(self._epochs) > _NUM_CLOSED_EPOCHS_KEPT:
            self._epochs.popitem(last=False)

    def find(self, number: int) -> Epoch | None:
        """Returns an epoch, or None if it is not known any more."""
        return self._epochs.get(number)

    def error_of(self, number: int, refit: int) -> ErrorReport | None:
        """Returns what closed an epoch in this refit of it; None if nothing that is known did."""
        epoch = self.find(number)
        return epoch.error if epoch is not None and epoch.refit == refit else None
