"""The functional matrix of NVIDIA's NCCL M2N Reshard, as specs of both sides.

`tests/cases/m2n_matrix.json` lists 209 entries, each with the meshes that it resolves to at 2 to 32
ranks (`resolved_at`). `resolve` is the rule behind those: the world is split by a ratio, source
first; axis 0 of each side's mesh has a given size and axis 1 the other ranks; a dim that does not
divide evenly makes the entry unfit for that world. We have no such limit.

Source: NCCL 2.30 `contrib` M2N tests, basic_api_test_core; resolved as upstream CI does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reshard import DType, Layout, Mesh, Replicate, Shard, TensorSpec

__all__ = ["Entry", "Side", "entries", "resolve"]

_FILE = Path(__file__).parents[1] / "cases" / "m2n_matrix.json"
_DTYPES = {1: DType.UINT8, 2: DType.BFLOAT16, 4: DType.FLOAT32}


@dataclass(frozen=True)
class Side:
    """A mesh of two axes, and per axis the dim that it cuts, or -1."""

    mesh: tuple[int, int]
    dims: tuple[int, int]

    @property
    def num_ranks(self) -> int:
        return self.mesh[0] * self.mesh[1]

    def layout(self, first_rank: int) -> Layout:
        placements = tuple(Replicate() if dim < 0 else Shard(dim) for dim in self.dims)
        return Layout(Mesh(("axis0", "axis1"), self.mesh), placements).shifted(first_rank)


@dataclass(frozen=True)
class Entry:
    """One line of the matrix."""

    number: int
    plain: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.number:03d} {self.plain['group']}"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.plain["global_shape"])

    @property
    def dtype(self) -> DType:
        return _DTYPES[self.plain["element_bytes"]]

    @property
    def worlds(self) -> tuple[int, ...]:
        """The numbers of ranks at which the file resolves the entry."""
        return tuple(int(world) for world in self.plain["resolved_at"])

    def sides(self, world: int) -> tuple[Side, Side]:
        """Returns the meshes that the file gives for a number of ranks."""
        found = self.plain["resolved_at"][str(world)]
        src, dst = (
            Side(tuple(found[side]["mesh"]), tuple(found[side]["placements"]))
            for side in ("src", "dst")
        )
        return src, dst

    def specs(
        self, sides: tuple[Side, Side], shape: Sequence[int] | None = None
    ) -> tuple[TensorSpec, TensorSpec]:
        """Returns source and destination; source ranks come first unless the entry says not."""
        src, dst = sides
        is_reversed = self.plain["flags"].get("dst_first", False)
        firsts = (dst.num_ranks, 0) if is_reversed else (0, src.num_ranks)
        own = tuple(shape or self.shape)
        return (
            TensorSpec(self.name, own, self.dtype, src.layout(firsts[0])),
            TensorSpec(self.name, own, self.dtype, dst.layout(firsts[1])),
        )


@cache
def entries() -> tuple[Entry, ...]:
    """Returns all entries of the file."""
    plain = json.loads(_FILE.read_text())
    return tuple(Entry(number, entry) for number, entry in enumerate(plain))


def resolve(entry: Entry, world: int, *, must_divide: bool = True) -> tuple[Side, Side] | None:
    """Returns the meshes of an entry by the rule of the matrix, or None if it does not fit.

    Args:
        entry: line of the matrix.
        world: number of ranks of both sides together.
        must_divide: False drops the demand that dims divide evenly, which only upstream makes.
    """
    plain = entry.plain
    if world < plain["world_min"] or world % plain["world_divisor"]:
        return None
    if plain["world_max"] and world > plain["world_max"]:
        return None
    a, b = plain["src_dst_ratio"]
    counts = world * a // (a + b), world * b // (a + b)
    sides = []
    for count, axis0, kind, dim in zip(
        counts, plain["mesh_axis0"], plain["placements"], plain["shard_dims"], strict=True
    ):
        if kind == "r":  # written as a shard over an axis of one rank
            axis0, dim, kind = count, 0, "rs"
        if count < axis0 or count % axis0:
            return None
        mesh = axis0, count // axis0
        dims = (dim, -1) if kind == "sr" else (-1, dim)
        is_uneven = any(d >= 0 and entry.shape[d] % n for d, n in zip(dims, mesh, strict=True))
        if must_divide and is_uneven:
            return None
        sides.append(Side(mesh, dims))
    return sides[0], sides[1]
