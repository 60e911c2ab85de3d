"""Real models with their published layout pairs, as specs of both sides.

The models come with the library (`reshard/model_files`), their layout pairs too.
"""

from __future__ import annotations

import dataclasses
import math

from reshard import Model, Parallelism, TensorSpec

__all__ = ["MODELS", "ModelSpecs", "load_model"]

MODELS = Model.names()


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
        """Size of one copy of all parameters."""
        return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in self.source)


def load_model(name: str) -> ModelSpecs:
    """Reads a model and lays it out."""
    model = Model.load(name)
    trainer, generator = map(Parallelism.parse, (model.trainer or "", model.generator or ""))
    return ModelSpecs(
        name,
        trainer.specs(model),
        generator.specs(model, first_rank=trainer.num_ranks),
        trainer.num_ranks,
        generator.num_ranks,
    )
