"""What processes say when they begin a refit, and who is who in it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reshard.contribution import Roster
from reshard.epoch_exchange import Go
from reshard.error_report import ErrorReport, rebuild_error
from reshard.errors import ReshardError

__all__ = ["Beginning", "place_members", "problem_among"]


class Beginning(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a process says when it begins a refit.

    Attributes:
        verify: whether fingerprints are to be compared.
        has_no_session: whether all members have to agree on a plan anew.
        problem: why it cannot take part; nobody moves anything then.
        timeout_s: its limit for the move.
    """

    verify: bool
    has_no_session: bool
    problem: ErrorReport | None
    timeout_s: float


def problem_among(go: Go, everybody: Sequence[Beginning]) -> ReshardError | None:
    """Returns what the first member says that cannot take part; the same error on all of them."""
    for member, beginning in zip(go.members, everybody, strict=True):
        if beginning.problem is not None:
            text = f"{member.describe()}: {beginning.problem.message}"
            return rebuild_error(msgspec.structs.replace(beginning.problem, message=text))
    return None


def place_members(go: Go) -> tuple[Roster, tuple[int, ...]]:
    """Returns who is who, and what to add to each process's ranks.

    The source counts from 0; each destination program counts on where the one before it ended.
    """
    sources = tuple(i for i, member in enumerate(go.members) if member.role == "source")
    groups: dict[str, list[int]] = {}
    for i, member in enumerate(go.members):
        if member.role == "destination":
            groups.setdefault(member.group, []).append(i)
    offsets = [0] * len(go.members)
    next_rank = go.members[sources[0]].num_ranks
    destinations = []
    for processes in groups.values():
        for process in processes:
            offsets[process] = next_rank
        destinations.append((tuple(processes), next_rank))
        next_rank += go.members[processes[0]].num_ranks
    ranks = tuple(
        tuple(rank + offset for rank in member.ranks)
        for member, offset in zip(go.members, offsets, strict=True)
    )
    names = tuple(member.describe() for member in go.members)
    return Roster(ranks, sources, tuple(destinations), names), tuple(offsets)
