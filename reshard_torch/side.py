"""Which rank this process is on its side, and how global ranks are numbered there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch.distributed as dist

from reshard import LayoutError
from reshard_torch.compat import group_or_default

__all__ = ["Side"]


@dataclass(frozen=True, slots=True)
class Side:
    """One program of several ranks, one per process.

    Attributes:
        rank: of this process, on this side.
        num_ranks: of the whole side.
        numbers: global rank of torch -> rank on this side.
    """

    rank: int
    num_ranks: int
    numbers: Mapping[int, int]

    @classmethod
    def of_group(cls, process_group: dist.ProcessGroup | None = None) -> Side:
        """Returns the side of a process group; ranks are numbered as in the group.

        Args:
            process_group: None means the default group, or one process alone if there is none.

        Raises:
            LayoutError: if this process is not in the group.
        """
        if process_group is None and not (dist.is_available() and dist.is_initialized()):
            return cls(0, 1, {0: 0})
        rank = dist.get_rank(process_group)
        if rank < 0:
            raise LayoutError(
                "this process is not in the given process group. Only members of it take part."
            )
        members = dist.get_process_group_ranks(group_or_default(process_group))
        return cls(rank, len(members), {member: index for index, member in enumerate(members)})

    @property
    def rank_of(self) -> Callable[[int], int | None]:
        """A function from a global rank to the rank on this side; None for outsiders."""
        return self.numbers.get
