"""Forms of MaxText models (flax nnx trees), layers scanned or not.

Leaves are kernels (in, out) with heads as dims of their own. With `scan_layers` the layers are a
dim of each leaf, at `param_scan_axis` (1 by default; 0 for leaves that have too few dims); experts
are the first dim of what is left. D hidden size, N query heads, K key/value heads, H head size,
F feed-forward size, E experts, V vocabulary.

| MaxText | shape of one layer | Hugging Face | shape |
|---|---|---|---|
| `token_embedder.embedding` | (V, D) | `model.embed_tokens.weight` | (V, D) |
| `decoder.logits_dense.kernel` | (D, V) | `lm_head.weight` | (V, D) |
| `decoder.decoder_norm.scale` | (D,) | `model.norm.weight` | (D,) |
| `pre_self_attention_layer_norm.scale` | (D,) | `input_layernorm.weight` | (D,) |
| `post_self_attention_layer_norm.scale` | (D,) | `post_attention_layernorm.weight` | (D,) |
| `self_attention.query.kernel` | (D, N, H) | `self_attn.q_proj.weight` | (N*H, D) |
| `self_attention.{key,value}.kernel` | (D, K, H) | `self_attn.{k,v}_proj.weight` | (K*H, D) |
| `self_attention.out.kernel` | (N, H, D) | `self_attn.o_proj.weight` | (D, N*H) |
| `self_attention.{query,key}_norm.scale` | (H,) | `self_attn.{q,k}_norm.weight` | (H,) |
| `mlp.wi_0.kernel`, `mlp.wi_1.kernel` | (D, F) | `mlp.{gate,up}_proj.weight` | (F, D) |
| `mlp.wo.kernel` | (F, D) | `mlp.down_proj.weight` | (D, F) |
| `moe_block.gate.kernel` | (D, E) | `mlp.gate.weight` | (E, D) |
| `moe_block.wi_0`, `moe_block.wi_1` | (E, D, F) | `mlp.experts.e.{gate,up}_proj.weight` | (F, D) |
| `moe_block.wi`, with `prefuse_moe_weights` | (E, D, 2F) | the same two | (F, D) |
| `moe_block.wo` | (E, F, D) | `mlp.experts.e.down_proj.weight` | (D, F) |

Leaves of a layer are below `decoder.layers_i`, or below `decoder.layers` if layers are scanned. The
names on the right come after `model.layers.i.`. Gemma 3 and DeepSeek have modules of their own.

Source: MaxText 0.2.5 (`checkpoint_conversion/utils/param_mapping.py` and the modules themselves)
and transformers 5.24, compared by logits.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from reshard import Elementwise, Forms
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
from reshard_jax.models.rules import Rule

__all__ = ["maxtext_llama", "maxtext_qwen3", "maxtext_qwen3_moe", "maxtext_weights"]

_LAYER = {
    "pre_self_attention_layer_norm.scale": vector("input_layernorm.weight"),
    "post_self_attention_layer_norm.scale": vector("post_attention_layernorm.weight"),
    "self_attention.query.kernel": heads("self_attn.q_proj.weight"),
    "self_attention.key.kernel": heads("self_attn.k_proj.weight"),
    "self_attention.value.kernel": heads("self_attn.v_proj.weight"),
    "self_attention.out.kernel": attention_out("self_attn.o_proj.weight"),
}
_MLP = {
    "mlp.wi_0.kernel": transposed("mlp.gate_proj.weight"),
    "mlp.wi_1.kernel": transposed("mlp.up_proj.weight"),
    "mlp.wo.kernel": transposed("mlp.down_proj.weight"),
}
_HEAD_NORMS = {
    "self_attention.query_norm.scale": vector("self_attn.q_norm.weight"),
    "self_attention.key_norm.scale": vector("self_attn.k_norm.weight"),
}


class _LlamaConfig(MaxTextConfig, Protocol):
    @property
    def head_dim(self) -> int:
        """Size of a head."""

    @property
    def model_name(self) -> str:
        """Name of the model."""

    @property
    def rope_type(self) -> object:
        """Kind of rotary embedding: an enumeration, or its value."""


def maxtext_llama(config: _LlamaConfig, *, vocab_size: int | None = None) -> Forms:
    """Returns the forms of MaxText's Llama 2 and 3 (`decoder_block="llama2"`).

    The model has no factor 1/sqrt(head_dim) in its attention: the query kernel is stored divided by
    sqrt(head_dim), here a float32 number. Models called `llama3.1...`, and those with
    `rope_type="llama3.1"`, rotate neighbouring lanes, and lanes of queries and keys are put in the
    canonical order; other models rotate halves as Hugging Face does.

    Args:
        config: the model's configuration; read are `decoder_block`, `num_decoder_layers`,
            `scan_layers`, `param_scan_axis`, `logits_via_embedding`, `normalize_embedding_logits`,
            `vocab_size`, `head_dim`, `model_name` and `rope_type`.
        vocab_size: rows of the engine's embedding, where the trainer's is padded; the end then
            declares `padding=`. None for as many as the trainer has.

    Raises:
        LayoutError: for a configuration of another family.
    """
    read_config("maxtext_llama", config, ("head_dim", "model_name", "rope_type"), "llama2")
    kinds = (config.model_name, str(value_of(config.rope_type)))
    is_paired = any(kind.startswith("llama3.1") for kind in kinds)
    scale = Elementwise(scale=float(np.float32(math.sqrt(config.head_dim))))
    query = heads("self_attn.q_proj.weight", is_paired=is_paired, elementwise=scale)
    key = heads("self_attn.k_proj.weight", is_paired=is_paired)
    rotated = {"self_attention.query.kernel": query, "self_attention.key.kernel": key}
    return _flat("maxtext_llama", config, {**_LAYER, **_MLP, **rotated}, vocab_size)


def maxtext_qwen3(config: MaxTextConfig, *, vocab_size: int | None = None) -> Forms:
    """Returns the forms of MaxText's dense Qwen3 (`decoder_block="qwen3"`).

    Args:
        config: the model's configuration; read are `decoder_block`, `num_decoder_layers`,
            `scan_layers`, `param_scan_axis`, `logits_via_embedding`, `normalize_embedding_logits`
            and `vocab_size`.
        vocab_size: as in `maxtext_llama`.

    Raises:
        LayoutError: for a configuration of another family.
    """
    read_config("maxtext_qwen3", config, (), "qwen3")
    return _flat("maxtext_qwen3", config, {**_LAYER, **_HEAD_NORMS, **_MLP}, vocab_size)


def maxtext_qwen3_moe(config: MaxTextConfig, *, vocab_size: int | None = None) -> Forms:
    """Returns the forms of MaxText's Qwen3 with experts (`decoder_block="qwen3_moe"`).

    Args:
        config: the model's configuration; read are `decoder_block`, `num_decoder_layers`,
            `scan_layers`, `param_scan_axis`, `logits_via_embedding`, `normalize_embedding_logits`
            and `vocab_size`.
        vocab_size: as in `maxtext_llama`.

    Raises:
        LayoutError: for a configuration of another family.
    """
    read_config("maxtext_qwen3_moe", config, (), "qwen3_moe")
    experts = {
        "moe_block.gate.kernel": transposed("mlp.gate.weight"),
        **expert_kernels("moe_block"),
    }
    return _flat("maxtext_qwen3_moe", config, {**_LAYER, **_HEAD_NORMS, **experts}, vocab_size)


def maxtext_weights(name: str, leaf: object) -> bool:
    """Says which leaves of `nnx.state(model)` are weights: all but random-number states.

    Give it as `leaves=`. The filter `nnx.Param` would miss DeepSeek's routing bias, which is a
    variable of another kind in models called `deepseek3...` and `kimi-k2...`.

    Args:
        name: dotted path.
        leaf: its value, which is not looked at.
    """
    del leaf
    return "rngs" not in name.split(".")


def _flat(
    function: str, config: MaxTextConfig, rules: dict[str, tuple[Rule, ...]], vocab_size: int | None
) -> Forms:
    stacks = stack(config, "layers", range(config.num_decoder_layers))
    return maxtext_tree(function, config, stacks, rules, vocab_size=vocab_size)
