"""Forms of MaxText's Gemma 3, layers scanned or not.

MaxText folds two things into weights that Hugging Face has in the forward pass: the embedding is
stored times sqrt(D), and norms are stored as 1 + w. What is not here is as in `maxtext`.

| MaxText | shape of one layer | Hugging Face | values |
|---|---|---|---|
| `token_embedder.embedding` | (V, D) | `model.embed_tokens.weight` | stored / sqrt(D) |
| `decoder.decoder_norm.scale` | (D,) | `model.norm.weight` | stored - 1 |
| `pre_self_attention_norm.scale` | (D,) | `input_layernorm.weight` | stored - 1 |
| `post_self_attention_norm.scale` | (D,) | `post_attention_layernorm.weight` | stored - 1 |
| `pre_ffw_norm.scale` | (D,) | `pre_feedforward_layernorm.weight` | stored - 1 |
| `post_ffw_norm.scale` | (D,) | `post_feedforward_layernorm.weight` | stored - 1 |
| `self_attention.{query,key}_norm.scale` | (H,) | `self_attn.{q,k}_norm.weight` | stored - 1 |

Layers come in cycles of six. Scanned, `decoder.layers.layers_b` holds layers b, b + 6, b + 12 and
so on of the whole cycles, and `decoder.layers_remainder.layers_r` the r-th layer after them.

Source: MaxText 0.2.5, `models/gemma3.py`, and transformers 5.24, compared by logits.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from reshard import Elementwise, Forms
from reshard_jax.models.maxtext_tree import (
    MaxTextConfig,
    Stacks,
    attention_out,
    heads,
    maxtext_tree,
    read_config,
    stack,
    transposed,
    vector,
)

__all__ = ["maxtext_gemma3"]

_CYCLE = 6
_NORM = Elementwise(offset=-1.0)
_LAYER = {
    "pre_self_attention_norm.scale": vector("input_layernorm.weight", _NORM),
    "post_self_attention_norm.scale": vector("post_attention_layernorm.weight", _NORM),
    "pre_ffw_norm.scale": vector("pre_feedforward_layernorm.weight", _NORM),
    "post_ffw_norm.scale": vector("post_feedforward_layernorm.weight", _NORM),
    "self_attention.query_norm.scale": vector("self_attn.q_norm.weight", _NORM),
    "self_attention.key_norm.scale": vector("self_attn.k_norm.weight", _NORM),
    "self_attention.query.kernel": heads("self_attn.q_proj.weight"),
    "self_attention.key.kernel": heads("self_attn.k_proj.weight"),
    "self_attention.value.kernel": heads("self_attn.v_proj.weight"),
    "self_attention.out.kernel": attention_out("self_attn.o_proj.weight"),
    "mlp.wi_0.kernel": transposed("mlp.gate_proj.weight"),
    "mlp.wi_1.kernel": transposed("mlp.up_proj.weight"),
    "mlp.wo.kernel": transposed("mlp.down_proj.weight"),
}


class _Gemma3Config(MaxTextConfig, Protocol):
    @property
    def emb_dim(self) -> int:
        """Hidden size."""


def maxtext_gemma3(
    config: _Gemma3Config,
    *,
    vocab_size: int | None = None,
    prefix: str = "model.",
    normalizer_dtype: DTypeLike = "bfloat16",
) -> Forms:
    """Returns the forms of the text model of MaxText's Gemma 3 (`decoder_block="gemma3"`).

    Leaves of its vision encoder have no rule: exclude them with `leaves=`.

    Args:
        config: the model's configuration; read are `decoder_block`, `num_decoder_layers`,
            `scan_layers`, `param_scan_axis`, `logits_via_embedding`, `normalize_embedding_logits`,
            `vocab_size` and `emb_dim`.
        vocab_size: as in `maxtext_llama`.
        prefix: of the canonical names; `"model.language_model."` for an engine that has the model
            with vision.
        normalizer_dtype: dtype of the engine's embedding, to which it rounds the sqrt(D) that it
            multiplies by. MaxText's own conversion rounds to bfloat16; logits of a float32 engine
            are the trainer's with `"float32"`.

    Raises:
        LayoutError: for a configuration of another family.
    """
    read_config("maxtext_gemma3", config, ("emb_dim",), "gemma3", divides_logits=True)
    normalizer = float(np.asarray(math.sqrt(config.emb_dim)).astype(normalizer_dtype))
    return maxtext_tree(
        "maxtext_gemma3",
        config,
        _stacks(config),
        _LAYER,
        prefix=prefix,
        vocab_size=vocab_size,
        embedding=Elementwise(divisor=normalizer),
        norm=_NORM,
    )


def _stacks(config: MaxTextConfig) -> Stacks:
    num_layers = config.num_decoder_layers
    if not config.scan_layers:
        return stack(config, "layers", range(num_layers))
    scanned = num_layers - num_layers % _CYCLE
    return {
        **{
            f"layers.layers_{b}": (tuple(range(b, scanned, _CYCLE)), config.param_scan_axis)
            for b in range(_CYCLE)
        },
        **{
            f"layers_remainder.layers_{r}": ((scanned + r,), None)
            for r in range(num_layers - scanned)
        },
    }
