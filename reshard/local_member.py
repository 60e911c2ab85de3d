"""Who a process is in the meetings of a store, checked before anything is sent."""

from __future__ import annotations

import collections
import operator
import os
import socket
from collections.abc import Sequence
from typing import SupportsIndex

from reshard.control_messages import MAX_NAME_LENGTH, MAX_RANKS_PER_PROCESS, Member, Role
from reshard.error_report import encodable
from reshard.errors import LayoutError
from reshard.versions import library_version

__all__ = ["local_member", "number_in"]


def local_member(
    role: Role,
    group: str,
    *,
    ranks: Sequence[int],
    num_ranks: int,
    process: int = 0,
    num_processes: int = 1,
) -> Member:
    """Returns who this process is.

    Args:
        role: "source" or "destination".
        group: name of the program; unique among the programs that meet.
        ranks: ranks of the program that this process drives.
        num_ranks: ranks of the program.
        process: index of this process in its program.
        num_processes: processes of the program.

    Raises:
        LayoutError: a name or a number is out of range.
    """
    _check_names(role, group)
    where = f"{role} {group!r}"
    num_processes = number_in(where, "num_processes", num_processes, 1)
    num_ranks = number_in(where, "num_ranks", num_ranks, 1)
    return Member(
        role=role,
        group=str.__str__(group),
        process=number_in(where, "process", process, 0, num_processes),
        num_processes=num_processes,
        ranks=_checked_ranks(where, ranks, num_ranks),
        num_ranks=num_ranks,
        host=socket.gethostname()[:MAX_NAME_LENGTH] or "unknown",
        pid=os.getpid(),
        library_version=library_version(),
    )


def _check_names(role: object, group: object) -> None:
    if role not in ("source", "destination"):
        raise LayoutError(f'role={role!r} is not "source" or "destination".')
    if not isinstance(group, str) or not 1 <= len(group) <= MAX_NAME_LENGTH:
        length = f" of {len(group)} characters" if isinstance(group, str) else ""
        raise LayoutError(
            f"{role}: group={repr(group)[:80]}{length} is not a name of 1 to {MAX_NAME_LENGTH} "
            "characters. Name the program, the same in all of its processes."
        )
    if encodable(group) != group:
        raise LayoutError(
            f"{role}: group={group!r} has characters that UTF-8 cannot encode. Leave them out."
        )


def _checked_ranks(where: str, ranks: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Returns ranks as plain numbers, if a program of so many ranks can have them."""
    numbers = tuple(number_in(where, "ranks", rank, 0, num_ranks) for rank in ranks)
    if not 1 <= len(numbers) <= MAX_RANKS_PER_PROCESS:
        raise LayoutError(
            f"{where}: ranks has {len(numbers)} numbers, and a process drives 1 to "
            f"{MAX_RANKS_PER_PROCESS} ranks. Give the ranks whose arrays it has."
        )
    if len(set(numbers)) < len(numbers):
        rank, count = collections.Counter(numbers).most_common(1)[0]
        raise LayoutError(f"{where}: ranks has {rank} {count} times. Give each rank once.")
    return numbers


def number_in(where: str, name: str, value: SupportsIndex, first: int, end: int = 1 << 31) -> int:
    """Returns a value as a plain number, which is all that can be sent, if it is from first on."""
    try:
        number = operator.index(value)
    except TypeError:
        number = first - 1
    if not first <= number < end:
        raise LayoutError(
            f"{where}: {name}={value!r} is not a whole number from {first} to {end - 1}."
        )
    return number
