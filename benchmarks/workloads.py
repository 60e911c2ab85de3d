"""Named parameter lists: shapes only, no weights.

Every dim is divisible by four, so every layout pair of `layout_pairs` divides evenly.
"""

from __future__ import annotations

import dataclasses
import math

__all__ = ["WORKLOADS", "Parameter", "Workload"]

BFLOAT16_BYTES = 2


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One bfloat16 tensor of a model."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor."""
        return math.prod(self.shape) * BFLOAT16_BYTES


@dataclasses.dataclass(frozen=True)
class Workload:
    """A named list of parameters."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]

    @property
    def nbytes(self) -> int:
        """Size of one copy of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)


def _dense(
    *, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int, layers: int
) -> tuple[Parameter, ...]:
    """Returns the nine tensors of each decoder layer (Llama naming), embedding, norm and head."""
    head_dim = hidden // heads
    key_rows = kv_heads * head_dim
    parameters = [Parameter("model.embed_tokens.weight", (vocabulary, hidden))]
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        parameters += [
            Parameter(f"{prefix}.input_layernorm.weight", (hidden,)),
            Parameter(f"{prefix}.self_attn.q_proj.weight", (hidden, hidden)),
            Parameter(f"{prefix}.self_attn.k_proj.weight", (key_rows, hidden)),
            Parameter(f"{prefix}.self_attn.v_proj.weight", (key_rows, hidden)),
            Parameter(f"{prefix}.self_attn.o_proj.weight", (hidden, hidden)),
            Parameter(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
            Parameter(f"{prefix}.mlp.gate_proj.weight", (ffn, hidden)),
            Parameter(f"{prefix}.mlp.up_proj.weight", (ffn, hidden)),
            Parameter(f"{prefix}.mlp.down_proj.weight", (hidden, ffn)),
        ]
    parameters.append(Parameter("model.norm.weight", (hidden,)))
    parameters.append(Parameter("lm_head.weight", (vocabulary, hidden)))
    return tuple(parameters)


def _small(count: int) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"adapters.{index}.weight", (256, 16)) for index in range(count))


_ALL = (
    Workload(
        "dense-1.5g",
        "129 parameters of a dense decoder (hidden 2048, ffn 5632, 14 layers), 1.525 GB",
        _dense(hidden=2048, ffn=5632, heads=32, kv_heads=8, vocabulary=32000, layers=14),
    ),
    Workload(
        "dense-25m",
        "the same 129 parameters with every width divided by eight, 24 MB",
        _dense(hidden=256, ffn=704, heads=4, kv_heads=1, vocabulary=4000, layers=14),
    ),
    Workload(
        "dense-400m",
        "the same 129 parameters with every width halved, 397 MB",
        _dense(hidden=1024, ffn=2816, heads=16, kv_heads=8, vocabulary=16000, layers=14),
    ),
    Workload("tiny-1000", "1,000 parameters of (256, 16), 8 KiB each", _small(1000)),
    Workload("small-200", "200 parameters of (256, 16), 8 KiB each", _small(200)),
)

WORKLOADS = {workload.name: workload for workload in _ALL}
