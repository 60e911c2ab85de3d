"""What a native program moves, and what one run of it did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTHING_DONE", "ProgramInfo", "RoundsInfo", "RunStats"]


@dataclass(frozen=True)
class ProgramInfo:
    """What a program moves per run; bytes are wire bytes."""

    num_streams: int
    num_local_streams: int
    num_operations: int
    num_chunks: int
    bytes_to_send: int
    bytes_to_receive: int
    bytes_local: int


@dataclass(frozen=True)
class RoundsInfo:
    """What the ranks of one process do in the rounds of a program.

    Attributes:
        staging_bytes: device memory for chunks under way, of the rank that needs most.
        num_slots: slots in which there is something to do.
        num_messages: sent and received.
        largest_group: messages that one rank posts together.
    """

    staging_bytes: int
    num_slots: int
    num_messages: int
    largest_group: int


@dataclass(frozen=True)
class RunStats:
    """What one run did in this process.

    Attributes:
        bytes_sent: wire bytes to other processes.
        bytes_received: wire bytes from other processes.
        bytes_local: wire bytes between ranks of this process.
        chunks: messages sent, received and local.
        ns_pack: time spent copying into messages.
        ns_unpack: time spent copying out of messages.
        ns_wait: time spent asleep.
        ns_total: from begin to end of the run.
        peak_staging_bytes: message memory that this process held.
    """

    bytes_sent: int
    bytes_received: int
    bytes_local: int
    chunks: int
    ns_pack: int
    ns_unpack: int
    ns_wait: int
    ns_total: int
    peak_staging_bytes: int


NOTHING_DONE = RunStats(0, 0, 0, 0, 0, 0, 0, 0, 0)
"""Of a process that has no part in a run."""
