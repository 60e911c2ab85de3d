"""When bytes move: chunks and rounds that fit a staging budget on every process.

The boxes that one rank sends to another, in canonical order, are one byte stream. Round k carries
the k-th chunk of every stream. Only the chunk size has to be agreed, and it follows from the budget
and the number of peers, so a schedule needs no global knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reshard.errors import PlanError

__all__ = [
    "DEFAULT_STAGING_BYTES",
    "SLOTS_PER_RING",
    "Schedule",
    "chunk_bytes_for",
    "make_schedule",
]

DEFAULT_STAGING_BYTES = 64 << 20
SLOTS_PER_RING = 4
_LOCAL_SLOTS = 1  # for copies between ranks of one process that are strided at both ends
_MAX_CHUNK_BYTES = 256 << 10
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of a plan.

    Attributes:
        chunk_bytes: bytes of one stream that one round carries, at most.
        num_rounds: chunks of the longest stream.
        staging_bytes: memory that the busiest process needs for its rings and copies inside.
    """

    chunk_bytes: int
    num_rounds: int
    staging_bytes: int


def chunk_bytes_for(num_rings: int, staging_bytes: int) -> int:
    """Returns the largest chunk that keeps a process with `num_rings` rings inside its budget.

    Args:
        num_rings: peers that the process sends to plus peers that it receives from.
        staging_bytes: budget of the process.

    Raises:
        PlanError: if not even one memory page per slot fits.
    """
    slots = num_rings * SLOTS_PER_RING + _LOCAL_SLOTS
    chunk = min(_MAX_CHUNK_BYTES, staging_bytes // slots // _PAGE_BYTES * _PAGE_BYTES)
    if chunk < _PAGE_BYTES:
        raise PlanError(
            f"staging_bytes={staging_bytes}, the smallest that any process gave, is too small for "
            f"{num_rings} rings of {SLOTS_PER_RING} slots and one slot for copies inside: give at "
            f"least {slots * _PAGE_BYTES}."
        )
    return chunk


def make_schedule(
    stream_bytes: Mapping[tuple[int, int], int], num_rings: Mapping[int, int], staging_bytes: int
) -> Schedule:
    """Returns the schedule of a set of streams.

    Args:
        stream_bytes: bytes from a source to a destination, per pair of ranks.
        num_rings: rings per process.
        staging_bytes: budget of each process.

    Raises:
        PlanError: if the budget is too small for the process with most rings.
    """
    most = max(num_rings.values(), default=0)
    chunk = chunk_bytes_for(most, staging_bytes)
    longest = max(stream_bytes.values(), default=0)
    slots = most * SLOTS_PER_RING + _LOCAL_SLOTS
    return Schedule(chunk, -(-longest // chunk), slots * chunk)
