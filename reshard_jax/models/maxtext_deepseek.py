"""Forms of MaxText's DeepSeek V2 and V3, layers scanned or not.

Attention is latent. N heads, R ranks; P and Q head sizes without and with rotation, H of values.
What is not here is as in `maxtext`.

| MaxText | shape of one layer | Hugging Face | shape |
|---|---|---|---|
| `self_attention.wq_a.kernel` | (D, R) | `self_attn.q_a_proj.weight` | (R, D) |
| `self_attention.q_norm.scale` | (R,) | `self_attn.q_a_layernorm.weight` | (R,) |
| `self_attention.wq_b.kernel` | (R, N, P+Q) | `self_attn.q_b_proj.weight` | (N*(P+Q), R) |
| `self_attention.query.kernel`, in V2 | (D, N, P+Q) | `self_attn.q_proj.weight` | (N*(P+Q), D) |
| `self_attention.wkv_a.kernel` | (D, R+Q) | `self_attn.kv_a_proj_with_mqa.weight` | (R+Q, D) |
| `self_attention.kv_norm.scale` | (R,) | `self_attn.kv_a_layernorm.weight` | (R,) |
| `self_attention.wkv_b.kernel` | (R, N, P+H) | `self_attn.kv_b_proj.weight` | (N*(P+H), R) |
| `self_attention.out.kernel` | (N, H, D) | `self_attn.o_proj.weight` | (D, N*H) |
| `DeepSeekMoeBlock_0.MoeBlock_0.gate.kernel` | (D, E) | `mlp.gate.weight` | (E, D) |
| `DeepSeekMoeBlock_0.MoeBlock_0.gate.bias` | (E,) | `mlp.gate.e_score_correction_bias` | (E,) |
| `DeepSeekMoeBlock_0.MoeBlock_0.{wi_0,wi_1,wi,wo}` | (E, ..) | `mlp.experts.e.*` | |
| `DeepSeekMoeBlock_0.shared_experts.*.kernel` | (D, F) | `mlp.shared_experts.*` | (F, D) |

The first `first_num_dense_layers` layers are below `decoder.dense_layers`, the others below
`decoder.moe_layers`, which counts from 0; not scanned, `dense_layers_i` and `moe_layers_i`.

In models called `deepseek3...` and `kimi-k2...` the routing bias is no `nnx.Param`, and its stack
has the layers first, whatever `param_scan_axis` is; see `maxtext_weights`.

Source: MaxText 0.2.5, `models/deepseek.py` and `layers/attention_mla.py`, and transformers 5.24,
compared by logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from reshard import Forms, LayoutError
from reshard_jax.models.maxtext_tree import (
    MaxTextConfig,
    attention_out,
    expert_kernels,
    heads,
    maxtext_tree,
    read_config,
    stack,
    transposed,
    value_of,
    vector,
)

__all__ = ["maxtext_deepseek"]

_BLOCK = "DeepSeekMoeBlock_0"
_LAYER = {
    "pre_self_attention_layer_norm.scale": vector("input_layernorm.weight"),
    "post_self_attention_layer_norm.scale": vector("post_attention_layernorm.weight"),
    "self_attention.wq_a.kernel": transposed("self_attn.q_a_proj.weight"),
    "self_attention.q_norm.scale": vector("self_attn.q_a_layernorm.weight"),
    "self_attention.wq_b.kernel": heads("self_attn.q_b_proj.weight"),
    "self_attention.query.kernel": heads("self_attn.q_proj.weight"),
    "self_attention.wkv_a.kernel": transposed("self_attn.kv_a_proj_with_mqa.weight"),
    "self_attention.kv_norm.scale": vector("self_attn.kv_a_layernorm.weight"),
    "self_attention.wkv_b.kernel": heads("self_attn.kv_b_proj.weight"),
    "self_attention.out.kernel": attention_out("self_attn.o_proj.weight"),
    "mlp.wi_0.kernel": transposed("mlp.gate_proj.weight"),
    "mlp.wi_1.kernel": transposed("mlp.up_proj.weight"),
    "mlp.wo.kernel": transposed("mlp.down_proj.weight"),
    f"{_BLOCK}.MoeBlock_0.gate.kernel": transposed("mlp.gate.weight"),
    f"{_BLOCK}.shared_experts.wi_0.kernel": transposed("mlp.shared_experts.gate_proj.weight"),
    f"{_BLOCK}.shared_experts.wi_1.kernel": transposed("mlp.shared_experts.up_proj.weight"),
    f"{_BLOCK}.shared_experts.wo.kernel": transposed("mlp.shared_experts.down_proj.weight"),
}
_FIELDS = ("first_num_dense_layers", "model_name", "rope_type", "rope_interleave")
_WITH_BIAS_VARIABLE = ("deepseek3", "deepseek4", "kimi-k2")


class _DeepSeekConfig(MaxTextConfig, Protocol):
    @property
    def first_num_dense_layers(self) -> int:
        """Number of layers before those with experts."""

    @property
    def model_name(self) -> str:
        """Name of the model."""

    @property
    def rope_type(self) -> object:
        """Kind of rotary embedding: an enumeration, or its value."""

    @property
    def rope_interleave(self) -> bool:
        """True if yarn rotates neighbouring lanes."""


def maxtext_deepseek(config: _DeepSeekConfig, *, vocab_size: int | None = None) -> Forms:
    """Returns the forms of MaxText's DeepSeek V2 and V3 (`decoder_block="deepseek"`).

    Args:
        config: the model's configuration; read are `decoder_block`, `num_decoder_layers`,
            `scan_layers`, `param_scan_axis`, `logits_via_embedding`, `normalize_embedding_logits`,
            `vocab_size`, `first_num_dense_layers`, `model_name`, `rope_type` and `rope_interleave`.
        vocab_size: as in `maxtext_llama`.

    Raises:
        LayoutError: for a configuration of another family, and for a model that rotates halves of
            a head: canonical DeepSeek tensors have the lanes of a pair side by side.
    """
    read_config("maxtext_deepseek", config, _FIELDS, "deepseek")
    rope = value_of(config.rope_type)
    if rope != "yarn" or not config.rope_interleave:
        raise LayoutError(
            f"maxtext_deepseek: rope_type={rope!r} with rope_interleave={config.rope_interleave} "
            "rotates halves of a head, but canonical DeepSeek tensors have pairs of neighbours. "
            "Set rope_type='yarn' and rope_interleave=True; rope_factor=1 scales nothing."
        )
    has_variable = config.model_name.startswith(_WITH_BIAS_VARIABLE)
    (bias,) = vector("mlp.gate.e_score_correction_bias")
    rules = {
        **_LAYER,
        **expert_kernels(f"{_BLOCK}.MoeBlock_0"),
        f"{_BLOCK}.MoeBlock_0.gate.bias": (replace(bias, layers_axis=0 if has_variable else None),),
    }
    first = config.first_num_dense_layers
    stacks = {
        **stack(config, "dense_layers", range(first)),
        **stack(config, "moe_layers", range(first, config.num_decoder_layers)),
    }
    return maxtext_tree("maxtext_deepseek", config, stacks, rules, vocab_size=vocab_size)
