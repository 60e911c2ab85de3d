"""The layouts of one pipeline stage: dense parameters on one mesh, experts on another."""

from __future__ import annotations

from dataclasses import dataclass

from reshard.division import Division, divide
from reshard.errors import LayoutError
from reshard.layout import Layout
from reshard.mesh import Mesh
from reshard.parameter import Parameter
from reshard.placement import Placement, Replicate, Shard

__all__ = ["Degrees", "StageLayouts"]


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many ranks of a stage share a parameter in which way; ep lies across the others."""

    dp: int
    fsdp: int
    cp: int
    tp: int
    ep: int

    @property
    def num_ranks(self) -> int:
        """Ranks of the stage."""
        return self.dp * self.fsdp * self.cp * self.tp


class StageLayouts:
    """Gives each parameter of a stage its layout; those that are cut alike share one object.

    Args:
        degrees: of the stage.
        first_rank: its lowest rank.
    """

    def __init__(self, degrees: Degrees, first_rank: int) -> None:
        self._degrees = degrees
        self._ranks = tuple(range(first_rank, first_rank + degrees.num_ranks))
        self._made: dict[object, Layout] = {}

    def layout(self, parameter: Parameter) -> Layout:
        """Returns the layout of a parameter of this stage."""
        if parameter.is_expert and self._degrees.ep > 1:
            if parameter.expert is None:
                return self._stacked(parameter.shape[0])
            return self._separate(parameter)
        return self._dense(parameter)

    def _dense(self, parameter: Parameter) -> Layout:
        degrees = self._degrees
        axes = {"dp": degrees.dp, "fsdp": degrees.fsdp, "cp": degrees.cp}
        heads = parameter.num_kv_heads
        if heads is not None and degrees.tp > heads:
            if degrees.tp % heads:
                below = degrees.tp // heads * heads
                raise LayoutError(
                    f"{parameter.name}: tp={degrees.tp} ranks for {heads} kv heads. More ranks "
                    f"than heads must be a multiple of them, such as tp={below}."
                )
            axes |= {"heads": heads, "repeat": degrees.tp // heads}
            return self._layout(axes, {"heads": 0}, parameter)
        dim = _tensor_parallel_dim(parameter)
        return self._layout(
            axes | {"tp": degrees.tp}, {} if dim is None else {"tp": dim}, parameter
        )

    def _layout(self, axes: dict[str, int], cut: dict[str, int], parameter: Parameter) -> Layout:
        """Returns the layout of a mesh over all ranks; fsdp, where there is any, cuts last."""
        shards = dict(cut)
        if self._degrees.fsdp > 1 and parameter.shape:
            shards["fsdp"] = 0
        sizes = {name: n for name, n in axes.items() if n > 1 or name not in ("fsdp", "cp")}
        return self._make(self._ranks, sizes, shards)

    def _stacked(self, num_experts: int) -> Layout:
        """Returns the layout of a stack over (edp, ep), or (edp, efsdp, ep) under fsdp."""
        sizes, shards = self._expert_axes() | {"ep": self._degrees.ep}, {"ep": 0}
        if "efsdp" in sizes:
            shards["efsdp"] = 0
        even = num_experts % self._degrees.ep == 0
        return self._make(self._ranks, sizes, shards, "chunk" if even else "balanced")

    def _separate(self, parameter: Parameter) -> Layout:
        """Returns the layout of one expert: on the ranks that would hold its slice of a stack."""
        ep, num_experts = self._degrees.ep, parameter.num_experts or 0
        owner = next(
            part
            for part, (start, stop) in enumerate(divide(num_experts, ep, "balanced"))
            if start <= (parameter.expert or 0) < stop
        )
        sizes = self._expert_axes()
        return self._make(self._ranks[owner::ep], sizes, {"efsdp": 0} if "efsdp" in sizes else {})

    def _expert_axes(self) -> dict[str, int]:
        """Returns the axes beside ep: copies, and under fsdp the parts within each replica."""
        degrees = self._degrees
        inner = degrees.fsdp * degrees.cp * degrees.tp
        if degrees.fsdp > 1 and inner > degrees.ep:
            return {"edp": degrees.dp, "efsdp": inner // degrees.ep}
        return {"edp": degrees.num_ranks // degrees.ep}

    def _make(
        self,
        ranks: tuple[int, ...],
        sizes: dict[str, int],
        shards: dict[str, int],
        division: Division = "chunk",
    ) -> Layout:
        key = ranks[0], tuple(sizes.items()), tuple(shards.items()), division
        if key not in self._made:
            placements: list[Placement] = [
                Shard(shards[axis]) if axis in shards else Replicate() for axis in sizes
            ]
            late = [axis for axis in ("fsdp", "efsdp") if axis in shards]
            order = [axis for axis in sizes if axis not in late] + late
            mesh = Mesh(tuple(sizes), tuple(sizes.values()), ranks)
            self._made[key] = Layout(mesh, placements, order, division)
        return self._made[key]


def _tensor_parallel_dim(parameter: Parameter) -> int | None:
    """Returns the dim that tensor parallelism cuts, or None."""
    match parameter.rule:
        case "column" | "kv" | "vocab":
            return 0
        case "row":
            return 1
        case "expert_column":
            return len(parameter.shape) - 2
        case "expert_row":
            return len(parameter.shape) - 1
    return None
