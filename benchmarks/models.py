"""Real models with their published layout pairs, as specs of both sides.

The files in `models/` hold the shapes (from the public configurations) and, per parameter, which
rule its sharding follows. Trainer: pipeline stages of contiguous layers; within a stage the dense
parameters lie on a (dp, tp) mesh and the stacked experts on an (edp, ep) mesh. Generator: one
(dp, tp) mesh.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from reshard.layout import Layout
from reshard.mesh import Mesh
from reshard.placement import Placement, Replicate, Shard
from reshard.tensor_spec import TensorSpec

__all__ = ["MODELS", "ModelSpecs", "load_model"]

_FOLDER = pathlib.Path(__file__).resolve().parent / "models"
MODELS = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))

# Layers per pipeline stage, as published recipes have them.
_STAGES = {
    "deepseek-v3": (3, *[4] * 14, 2),
    "kimi-k2": (3, *[4] * 14, 2),
    "synth-2.8t": (3, *[4] * 14, 2),
    "qwen3-235b": (11, *[12] * 6, 11),
    "nemotron-ultra": (54, 54),
}
_FIRST_STAGE, _LAST_STAGE = -1, -2
# The dim that tensor parallelism shards, per rule; stacked experts are (experts, out, in).
_TENSOR_PARALLEL_DIM = {"col": 0, "col1": 0, "row": 1, "exp_col": 1, "exp_row": 2}


@dataclasses.dataclass(frozen=True)
class ModelSpecs:
    """Both sides of a refit of one model; destination ranks are numbered after source ranks."""

    name: str
    source: list[TensorSpec]
    destination: list[TensorSpec]
    num_source_ranks: int
    num_destination_ranks: int

    @property
    def nbytes(self) -> int:
        """Size of one copy of all parameters in bfloat16."""
        return sum(2 * math.prod(spec.shape) for spec in self.source)


def load_model(name: str) -> ModelSpecs:
    """Reads a model and lays it out."""
    model = json.loads((_FOLDER / f"{name}.json").read_text())
    trainer, generator = (model["published_layout_pair"][side] for side in ("trainer", "generator"))
    num_source, num_destination = trainer["world"], generator["tp"] * generator["dp"]
    stages = _Trainer(name, trainer)
    everyone = tuple(range(num_source, num_source + num_destination))
    layouts = _Layouts(everyone, generator["tp"])
    source, destination = [], []
    for parameter in model["parameters"]:
        shape, dtype = tuple(parameter["shape"]), model["dtype"]
        source.append(TensorSpec(parameter["name"], shape, dtype, stages.layout(parameter)))
        destination.append(TensorSpec(parameter["name"], shape, dtype, layouts.of(parameter)))
    return ModelSpecs(name, source, destination, num_source, num_destination)


class _Layouts:
    """The layouts that one group of ranks uses; equal rules share one layout object."""

    def __init__(self, ranks: tuple[int, ...], tp: int, ep: int | None = None) -> None:
        self._ranks, self._tp, self._ep = ranks, tp, ep
        self._made: dict[tuple[str, int | None], Layout] = {}

    def of(self, parameter: Mapping[str, Any]) -> Layout:
        key: tuple[str, int | None] = (parameter["rule"], parameter.get("kv_heads"))
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, rule: str, kv_heads: int | None) -> Layout:
        if self._ep is not None and rule.startswith("exp_"):
            return self._layout({"edp": len(self._ranks) // self._ep, "ep": self._ep}, {"ep": 0})
        dp = len(self._ranks) // self._tp
        if kv_heads is not None and self._tp > kv_heads:
            sizes = {"dp": dp, "heads": kv_heads, "repeat": self._tp // kv_heads}
            return self._layout(sizes, {"heads": 0})
        dim = 0 if rule == "kv" else _TENSOR_PARALLEL_DIM.get(rule)
        return self._layout({"dp": dp, "tp": self._tp}, {} if dim is None else {"tp": dim})

    def _layout(self, sizes: dict[str, int], shards: dict[str, int]) -> Layout:
        mesh = Mesh(tuple(sizes), tuple(sizes.values()), self._ranks)
        placements: list[Placement] = [
            Shard(shards[axis]) if axis in shards else Replicate() for axis in sizes
        ]
        return Layout(mesh, tuple(placements))


class _Trainer:
    """Pipeline stages with their ranks."""

    def __init__(self, name: str, degrees: Mapping[str, int]) -> None:
        per_stage = degrees["world"] // degrees["pp"]
        self._stages = [
            _Layouts(
                tuple(range(stage * per_stage, (stage + 1) * per_stage)),
                degrees["tp"],
                degrees["ep"],
            )
            for stage in range(degrees["pp"])
        ]
        self._stage_of_layer = [
            stage for stage, layers in enumerate(_STAGES[name]) for _ in range(layers)
        ]

    def layout(self, parameter: Mapping[str, Any]) -> Layout:
        layer: int = parameter["layer"]
        if layer == _FIRST_STAGE:
            stage = 0
        elif layer == _LAST_STAGE:
            stage = len(self._stages) - 1
        else:
            stage = self._stage_of_layer[layer]
        return self._stages[stage].of(parameter)
