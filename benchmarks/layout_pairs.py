"""Named pairs of source and destination layouts.

A placement is the tensor dim that one mesh axis shards, or None where it replicates. The ranks of
a side are numbered row-major over its mesh. One-dimensional parameters (norms) have placements of
their own, as they have in practice: FSDP shards them, tensor parallelism replicates them.
"""

from __future__ import annotations

import dataclasses
import math

__all__ = ["LAYOUT_PAIRS", "LayoutPair", "Side"]

Placements = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Side:
    """The mesh of one side and what it does to matrices and to vectors."""

    mesh_shape: tuple[int, ...]
    matrix: Placements
    vector: Placements

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the mesh."""
        return math.prod(self.mesh_shape)

    def placements(self, ndim: int) -> Placements:
        """Returns one placement per mesh axis for a tensor of `ndim` dims."""
        return self.vector if ndim == 1 else self.matrix


@dataclasses.dataclass(frozen=True)
class LayoutPair:
    """What a refit starts from and what it ends with."""

    name: str
    about: str
    source: Side
    destination: Side


def _fsdp(num_ranks: int) -> Side:
    return Side((num_ranks,), matrix=(0,), vector=(0,))


def _tensor_parallel(num_ranks: int) -> Side:
    return Side((num_ranks,), matrix=(1,), vector=(None,))


_ALL = (
    LayoutPair("A", "Shard(0)x4 -> Shard(1)x4", _fsdp(4), _tensor_parallel(4)),
    LayoutPair(
        "B",
        "Shard(0)x4 -> Shard(0)x2, replicated x2",
        _fsdp(4),
        Side((2, 2), matrix=(None, 0), vector=(None, 0)),
    ),
    LayoutPair(
        "C",
        "2x2 [Shard(0), Shard(1)] -> Shard(1)x4",
        Side((2, 2), matrix=(0, 1), vector=(0, None)),
        _tensor_parallel(4),
    ),
    LayoutPair("A2", "Shard(0)x2 -> Shard(1)x2", _fsdp(2), _tensor_parallel(2)),
)

LAYOUT_PAIRS = {pair.name: pair for pair in _ALL}
