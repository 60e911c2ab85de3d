"""The programs that the store knows: who may register, who is needed, who is missing."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator
from typing import Final

from reshard.control_messages import Hello
from reshard.error_report import ErrorReport
from reshard.group import Group, Process

__all__ = ["Registry", "join_texts"]

_NUM_DEPARTURES_KEPT: Final = 4
_NUM_TEXTS_SHOWN: Final = 8


class Registry:
    """Connected processes and their programs.

    Args:
        max_members: how many processes may be connected.
    """

    def __init__(self, max_members: int) -> None:
        self._max_members = max_members
        self._min_destinations = 1
        self._processes: dict[bytes, Process] = {}
        self._groups: dict[str, Group] = {}
        self._incarnations = 0
        self._departures: collections.deque[tuple[float, str, str]] = collections.deque(
            maxlen=_NUM_DEPARTURES_KEPT
        )

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    @property
    def source(self) -> Group | None:
        """The program that is the source, or None while it is absent."""
        return next((g for g in self._groups.values() if g.role == "source"), None)

    def find(self, connection: bytes) -> Process | None:
        """Returns the process of a connection, or None if it did not say hello."""
        return self._processes.get(connection)

    def refusal_of(self, connection: bytes, hello: Hello) -> str | None:
        """Returns why a process cannot take part, or None."""
        member = hello.member
        if connection in self._processes:
            return "this connection has said hello already."
        if len(self._processes) >= self._max_members:
            return f"the store serves at most {self._max_members} processes (max_members)."
        group = self._groups.get(member.group)
        if member.role == "source" and (refusal := self._refusal_of_source(hello)) is not None:
            return refusal
        if member.process >= member.num_processes:
            return f"process {member.process} is not below num_processes={member.num_processes}."
        if len(set(member.ranks)) != len(member.ranks) or max(member.ranks) >= member.num_ranks:
            return f"ranks {member.ranks} are not distinct numbers below {member.num_ranks}."
        return (group or Group(member)).refusal_of(member)

    def add(self, connection: bytes, hello: Hello) -> None:
        """Registers a process; `refusal_of` has been asked."""
        group = self._groups.setdefault(hello.member.group, Group(hello.member))
        process = self._processes[connection] = Process(connection, hello.member, group)
        group.num_connected += 1
        self.register(process)
        if group.role == "source":
            self._min_destinations = hello.min_destinations

    def remove(self, process: Process, reason: str, now: float) -> None:
        """Forgets a connection; its process must not be waiting."""
        del self._processes[process.connection]
        group = process.group
        if process.incarnation:
            group.unregister(process)
        group.num_connected -= 1
        if group.num_connected == 0:
            del self._groups[group.name]
        cause = ""
        if process.refusal is not None:
            cause = f" after its error: {process.refusal.cause.rstrip('.')}"
        self._departures.append((now, f"{process.member.describe()} {reason}", cause))

    def register(self, process: Process) -> None:
        """Gives a connected process a new registration."""
        self._incarnations += 1
        process.group.register(process, self._incarnations)

    def drop(self, group: Group) -> None:
        """Unregisters a whole program; its processes stay connected and may begin again."""
        for process in group.processes:
            group.unregister(process)

    def waiting(self) -> list[Process]:
        """Returns the processes that wait for a refit."""
        return [p for group in self for p in group.processes if p.waiting is not None]

    @property
    def first_deadline(self) -> float:
        """The earliest time at which a process gives up waiting for a refit; may be infinite."""
        waits = [process.waiting for group in self for process in group.processes]
        return min((wait.deadline for wait in waits if wait is not None), default=math.inf)

    def take_refusal(self, process: Process) -> ErrorReport | None:
        """Returns why a refit that a process begins cannot be, if it has not been told yet."""
        for group in self:
            for other in group.processes:
                refusal = other.refusal
                if refusal is not None and process.connection not in refusal.told:
                    refusal.told.add(process.connection)
                    return refusal.report
        return None

    def ready_processes(self) -> list[Process] | None:
        """Returns the members of the next refit, or None while somebody is missing.

        The source goes first, then the destinations by name, each in the order of its processes.
        """
        source, destinations = self.source, self._complete_destinations()
        if source is None or not source.is_ready:
            return None
        if len(destinations) < self._min_destinations:
            return None
        if not all(group.is_ready for group in destinations):
            return None
        destinations.sort(key=lambda group: group.name)
        return [process for group in (source, *destinations) for process in group.processes]

    def missing(self, group: Group, started: float, now: float) -> tuple[list[str], list[Group]]:
        """Returns whom a program waits for in vain.

        Args:
            group: the program whose limit has passed.
            started: when it began to wait.
            now: time in seconds.

        Returns:
            A text for each missing process, and the destinations that are to be dropped. One that
            gave up during the same wait showed that it is alive, so it is not among these.
        """
        source, complete = self.source, self._complete_destinations()
        if group.role != "source" and not group.is_ready:
            return group.silent(now), [group] if group.is_complete else []
        if source is None:
            return ["a source (none has called publish)"], []
        if not source.is_ready:
            return source.silent(now), []
        late = [other for other in complete if not other.is_ready]
        texts = [text for other in late for text in other.silent(now)]
        if len(complete) < self._min_destinations:
            texts.append(
                f"destinations ({len(complete)} of min_destinations={self._min_destinations} "
                "have called refit)"
            )
            for other in self._groups.values():
                if other.role != "source" and not other.is_complete:
                    texts += other.silent(now)
        if group is not source:
            return texts, []
        return texts, [g for g in late if g.gave_up_at is None or g.gave_up_at < started]

    def describe_departures(self, now: float) -> str:
        """Returns who went away lately, as a sentence to append, or an empty text."""
        gone = [f"{text} {now - when:.1f} s ago{cause}" for when, text, cause in self._departures]
        return f" Gone before: {join_texts(gone)}." if gone else ""

    def _refusal_of_source(self, hello: Hello) -> str | None:
        source = self.source
        if source is None:
            return None
        if source.name != hello.member.group:
            return f"the store has a source, {source.name!r}, and serves one at a time."
        if hello.min_destinations != self._min_destinations:
            return (
                f"min_destinations={hello.min_destinations} differs from "
                f"{self._min_destinations} of the other source processes."
            )
        return None

    def _complete_destinations(self) -> list[Group]:
        return [g for g in self._groups.values() if g.role != "source" and g.is_complete]


def join_texts(texts: Iterable[str]) -> str:
    """Returns the texts as one list, cut after a few."""
    every = list(texts)
    shown = every[:_NUM_TEXTS_SHOWN]
    more = len(every) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
