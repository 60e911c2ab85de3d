"""An epoch inside one program, whose processes are the source and the destination together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard.buffers import Buffer, BufferKey, check_apart, check_buffers, devices_of
from reshard.contribution import Roster, make_contribution
from reshard.exchange import Exchange
from reshard.matching import Casts
from reshard.session import Session
from reshard.tensor_spec import TensorSpec
from reshard.transport_choice import Transport

__all__ = ["JobSides", "job_session"]


@dataclass(frozen=True, slots=True)
class JobSides:
    """What one process has of both sides.

    Attributes:
        src_specs, dst_specs: of all tensors. Both sides number ranks alike.
        src_buffers, dst_buffers: memory of this process's ranks.
    """

    src_specs: Sequence[TensorSpec]
    dst_specs: Sequence[TensorSpec]
    src_buffers: Mapping[BufferKey, Buffer]
    dst_buffers: Mapping[BufferKey, Buffer]

    def check(self, ranks: Sequence[int]) -> None:
        """Checks that the memory fits the specs, and that nothing is read and written at once.

        Args:
            ranks: of this process.

        Raises:
            LayoutError: naming the tensor.
        """
        check_buffers(list(self.src_specs), ranks, self.src_buffers, writes=False)
        check_buffers(list(self.dst_specs), ranks, self.dst_buffers, writes=True)
        check_apart(self.src_buffers, self.dst_buffers)

    @property
    def devices(self) -> dict[int, int | None]:
        """The CUDA device of each local rank that has elements; None: host memory."""
        return devices_of(self.src_buffers, self.dst_buffers)


def job_session(
    exchange: Exchange,
    ranks: Sequence[tuple[int, ...]],
    names: Sequence[str],
    sides: JobSides,
    *,
    casts: Casts = (),
    staging_bytes: int,
    transport: Transport,
    timeout_s: float,
) -> Session:
    """Returns the session in which all processes of a job move their tensors.

    Args:
        exchange: the processes.
        ranks: of each process.
        names: how messages call each process.
        sides: what this process has; checked before.
        casts: (source dtype, destination dtype) conversions that are wanted.
        staging_bytes: memory of this process for chunks under way.
        transport: as in `reshard.Source`.
        timeout_s: limit for the whole setup.

    Raises:
        ReshardError: on every process alike; nothing moved.

    Collective: every process.
    """
    everybody = tuple(range(len(ranks)))
    contribution = make_contribution(
        sides.src_specs,
        sides.dst_specs,
        casts=casts,
        allow_unmatched=(),
        staging_bytes=staging_bytes,
        devices=sides.devices,
        transport=transport,
    )
    return Session(
        exchange,
        Roster(tuple(ranks), everybody, ((everybody, 0),), tuple(names)),
        contribution,
        sides.src_buffers,
        sides.dst_buffers,
        rank_offset=0,
        timeout_s=timeout_s,
    )
