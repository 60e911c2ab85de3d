"""A program that takes part in refits, as the store sees it: its processes and who waits."""

from __future__ import annotations

import dataclasses

from reshard.control_messages import Member
from reshard.error_report import ErrorReport

__all__ = ["Group", "Process", "Refusal", "Waiting"]


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """A `Begin` that has not been answered.

    Attributes:
        request: number of the request.
        started: clock of the store when it came, in seconds.
        deadline: clock of the store when the process gives up.
        known_epoch: epoch whose members the process knows.
        version: what a source publishes.
        payload: bytes for all members.
    """

    request: int
    started: float
    deadline: float
    known_epoch: int
    version: int | None
    payload: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A process takes no part in the next refit.

    Attributes:
        cause: the message of its error.
        report: the same for all others, with its name.
        told: connections that have got it.
    """

    cause: str
    report: ErrorReport
    told: set[bytes]


@dataclasses.dataclass(slots=True, eq=False)
class Process:
    """One connected process.

    Attributes:
        connection: routing id of its connection.
        member: who it is.
        group: its program.
        incarnation: number of its registration, new each time; 0 while it is not registered.
        waiting: its unanswered `Begin`.
        started_request: number of the `Begin` that was answered last.
        refusal: why it took no part in a refit; None once one has formed.
    """

    connection: bytes
    member: Member
    group: Group
    incarnation: int = 0
    waiting: Waiting | None = None
    started_request: int = -1
    refusal: Refusal | None = None


class Group:
    """The processes of one program; complete when each of them is registered."""

    def __init__(self, member: Member) -> None:
        self.role = member.role
        self.name = member.group
        self.num_processes = member.num_processes
        self.num_ranks = member.num_ranks
        self.num_connected = 0
        self.num_waiting = 0
        self.gave_up_at: float | None = None
        self._registered: dict[int, Process] = {}

    @property
    def processes(self) -> list[Process]:
        """The registered processes in the order of their indices."""
        return [self._registered[index] for index in sorted(self._registered)]

    @property
    def is_empty(self) -> bool:
        """Says whether no process is registered."""
        return not self._registered

    @property
    def is_complete(self) -> bool:
        """Says whether every process is registered."""
        return len(self._registered) == self.num_processes

    @property
    def is_ready(self) -> bool:
        """Says whether every process is registered and waits for a refit."""
        return self.num_waiting == self.num_processes

    def refusal_of(self, member: Member) -> str | None:
        """Returns why a process cannot be registered in this group, or None."""
        if (member.role, member.num_processes, member.num_ranks) != (
            self.role,
            self.num_processes,
            self.num_ranks,
        ):
            return (
                f"{self.role} {self.name!r} was introduced with {self.num_processes} processes "
                f"and {self.num_ranks} ranks, this one is a {member.role} with "
                f"{member.num_processes} and {member.num_ranks}."
            )
        same = self._registered.get(member.process)
        if same is not None:
            return (
                f"{same.member.describe()} is registered already. Give each process of a program "
                "its own index and each program its own group name; if that process died, it is "
                "forgotten as soon as its connection is found dead."
            )
        for other in self._registered.values():
            if shared := set(other.member.ranks) & set(member.ranks):
                return f"rank {min(shared)} is also driven by {other.member.describe()}."
        return self._refusal_of_cover(member)

    def _refusal_of_cover(self, member: Member) -> str | None:
        """Returns which ranks would be left without a process once the last one is registered."""
        if len(self._registered) < self.num_processes - 1:
            return None
        held = len(member.ranks) + sum(len(p.member.ranks) for p in self._registered.values())
        if held == self.num_ranks:
            return None
        return (
            f"the {self.num_processes} processes of {self.name!r} drive {held} of its "
            f"{self.num_ranks} ranks. Each rank is driven by exactly one process."
        )

    def register(self, process: Process, incarnation: int) -> None:
        """Adds a process; `refusal_of` has been asked."""
        process.incarnation = incarnation
        self._registered[process.member.process] = process

    def unregister(self, process: Process) -> None:
        """Takes a registered process out; it must not be waiting."""
        process.incarnation = 0
        del self._registered[process.member.process]

    def start_waiting(self, process: Process, waiting: Waiting) -> None:
        """Notes that a registered process waits for a refit; a newer wait replaces an older."""
        self.num_waiting += process.waiting is None
        self.gave_up_at = None
        process.waiting = waiting

    def stop_waiting(self, process: Process) -> None:
        """Notes that a process does not wait any more."""
        self.num_waiting -= process.waiting is not None
        process.waiting = None

    def silent(self, now: float) -> list[str]:
        """Returns a text for each process that is missing from the next refit."""
        gave_up = "" if self.gave_up_at is None else f" (gave up {now - self.gave_up_at:.1f} s ago)"
        texts = []
        for index in range(self.num_processes):
            process = self._registered.get(index)
            if process is None:
                texts.append(
                    f"{self.role} {self.name!r} process {index} of {self.num_processes} "
                    "(not registered)"
                )
            elif process.waiting is None:
                texts.append(process.member.describe() + gave_up)
        return texts
