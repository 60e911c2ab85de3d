"""Forms of Tunix models (flax nnx trees, layers not stacked).

Tunix keeps heads as dims of their own and kernels as (in, out); Hugging Face merges heads and keeps
(out, in). D hidden size, N query heads, K key/value heads, H head size, F feed-forward size,
E experts, V vocabulary.

| Tunix | shape | Hugging Face | shape |
|---|---|---|---|
| `embedder.input_embedding` | (V, D) | `model.embed_tokens.weight` | (V, D) |
| `lm_head.w` | (D, V) | `lm_head.weight` | (V, D) |
| `final_norm.w` | (D,) | `model.norm.weight` | (D,) |
| `layers.i.input_layernorm.w` | (D,) | `input_layernorm.weight` | (D,) |
| `layers.i.post_attention_layernorm.w` | (D,) | `post_attention_layernorm.weight` | (D,) |
| `layers.i.attn.{q,k,v}_proj.w` | (D, N or K, H) | `self_attn.{q,k,v}_proj.weight` | (N*H, D) |
| `layers.i.attn.o_proj.w` | (N, H, D) | `self_attn.o_proj.weight` | (D, N*H) |
| `layers.i.attn.{q,k}_norm.w` | (H,) | `self_attn.{q,k}_norm.weight` | (H,) |
| `layers.i.mlp.{gate,up}_proj.kernel` | (D, F) | `mlp.{gate,up}_proj.weight` | (F, D) |
| `layers.i.mlp.down_proj.kernel` | (F, D) | `mlp.down_proj.weight` | (D, F) |
| `layers.i.mlp.router.kernel` | (D, E) | `mlp.gate.weight` | (E, D) |
| `layers.i.mlp.{gate,up}_proj` | (E, D, F) | `mlp.experts.e.{gate,up}_proj.weight` | (F, D) each |
| `layers.i.mlp.down_proj` | (E, F, D) | `mlp.experts.e.down_proj.weight` | (D, F) each |

Gemma 3 has other names; what is not here is as above.

| Tunix Gemma 3 | shape | Hugging Face | shape |
|---|---|---|---|
| `final_norm.scale` | (D,) | `model.norm.weight` | (D,) |
| `layers.i.pre_attention_norm.scale` | (D,) | `input_layernorm.weight` | (D,) |
| `layers.i.post_attention_norm.scale` | (D,) | `post_attention_layernorm.weight` | (D,) |
| `layers.i.pre_ffw_norm.scale` | (D,) | `pre_feedforward_layernorm.weight` | (D,) |
| `layers.i.post_ffw_norm.scale` | (D,) | `post_feedforward_layernorm.weight` | (D,) |
| `layers.i.attn._{query,key}_norm.scale` | (H,) | `self_attn.{q,k}_norm.weight` | (H,) |
| `layers.i.attn.q_einsum.w`, N != K | (N, D, H) | `self_attn.q_proj.weight` | (N*H, D) |
| `layers.i.attn.kv_einsum.w`, N != K | (2, K, D, H) | `self_attn.{k,v}_proj.weight` | (K*H, D) |
| `layers.i.attn.qkv_einsum.w`, N == K | (3, N, D, H) | `self_attn.{q,k,v}_proj.weight` | same |
| `layers.i.attn.attn_vec_einsum.w` | (N, H, D) | `self_attn.o_proj.weight` | (D, N*H) |

Names on the right of a layer's leaf come after `model.layers.i.`. Both libraries rotate halves of a
head (RoPE), so lanes keep their order; both add 1 to Gemma's norms and multiply its embedding in
the forward pass, so values stay what they are.

Source: google-tunix 0.1.7 and transformers 5.24, compared by logits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from reshard import Forms, check_config
from reshard_jax.models.rules import Place, Rule, Tree

__all__ = ["tunix_gemma3", "tunix_llama3", "tunix_qwen3"]

_HEAD = "lm_head.weight"
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERTS = ("experts", "inner", "outer")

_QWEN3_FIELDS = ("num_layers", "use_tied_embedding")
_LLAMA3_FIELDS = ("num_layers", "weight_tying")


def _vector(name: str) -> tuple[Rule, ...]:
    return (Rule(name, ("dim",), "dim"),)


def _transposed(name: str) -> tuple[Rule, ...]:
    return (Rule(name, ("inner", "outer"), "outer inner"),)


def _heads(name: str, *stored: str, index: int | None = None) -> Rule:
    at = () if index is None else (("which", index),)
    return Rule(f"self_attn.{name}.weight", stored, "(heads head_dim) embed", index=at)


_OUT = Rule("self_attn.o_proj.weight", ("heads", "head_dim", "embed"), "embed (heads head_dim)")

_MLP_RULES = {
    f"mlp.{name}.kernel": _transposed(f"mlp.{name}.weight")
    for name in ("gate_proj", "up_proj", "down_proj")
}
_LLAMA3_RULES = {
    "input_layernorm.w": _vector("input_layernorm.weight"),
    "post_attention_layernorm.w": _vector("post_attention_layernorm.weight"),
    "attn.q_proj.w": (_heads("q_proj", "embed", "heads", "head_dim"),),
    "attn.k_proj.w": (_heads("k_proj", "embed", "heads", "head_dim"),),
    "attn.v_proj.w": (_heads("v_proj", "embed", "heads", "head_dim"),),
    "attn.o_proj.w": (_OUT,),
    **_MLP_RULES,
}
_QWEN3_RULES = {
    **_LLAMA3_RULES,
    "attn.q_norm.w": _vector("self_attn.q_norm.weight"),
    "attn.k_norm.w": _vector("self_attn.k_norm.weight"),
    "mlp.router.kernel": _transposed("mlp.gate.weight"),
    **{
        f"mlp.{name}": (Rule(f"mlp.experts.{{experts}}.{name}.weight", _EXPERTS, "outer inner"),)
        for name in ("gate_proj", "up_proj", "down_proj")
    },
}
_STACKED = ("which", "heads", "embed", "head_dim")
_GEMMA3_RULES = {
    "pre_attention_norm.scale": _vector("input_layernorm.weight"),
    "post_attention_norm.scale": _vector("post_attention_layernorm.weight"),
    "pre_ffw_norm.scale": _vector("pre_feedforward_layernorm.weight"),
    "post_ffw_norm.scale": _vector("post_feedforward_layernorm.weight"),
    "attn._query_norm.scale": _vector("self_attn.q_norm.weight"),
    "attn._key_norm.scale": _vector("self_attn.k_norm.weight"),
    "attn.q_einsum.w": (_heads("q_proj", *_STACKED[1:]),),
    "attn.kv_einsum.w": tuple(
        _heads(name, *_STACKED, index=at) for at, name in enumerate(("k_proj", "v_proj"))
    ),
    "attn.qkv_einsum.w": tuple(
        _heads(name, *_STACKED, index=at) for at, name in enumerate(("q_proj", "k_proj", "v_proj"))
    ),
    "attn.attn_vec_einsum.w": (_OUT,),
    **_MLP_RULES,
}


class _Gemma3Config(Protocol):
    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""


class _Qwen3Config(Protocol):
    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""

    @property
    def use_tied_embedding(self) -> bool:
        """True if the output head is the embedding."""


class _Llama3Config(Protocol):
    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""

    @property
    def weight_tying(self) -> bool:
        """True if the output head is the embedding."""


def tunix_qwen3(config: _Qwen3Config) -> Forms:
    """Returns the forms of `tunix.models.qwen3`, dense or mixture of experts.

    Args:
        config: its `ModelConfig`; `num_layers` and `use_tied_embedding` are read.
    """
    check_config("tunix_qwen3", config, _QWEN3_FIELDS, "the ModelConfig of tunix.models.qwen3")
    return _forms("tunix_qwen3", config.num_layers, config.use_tied_embedding, _QWEN3_RULES)


def tunix_llama3(config: _Llama3Config) -> Forms:
    """Returns the forms of `tunix.models.llama3`.

    Args:
        config: its `ModelConfig`; `num_layers` and `weight_tying` are read.
    """
    check_config("tunix_llama3", config, _LLAMA3_FIELDS, "the ModelConfig of tunix.models.llama3")
    return _forms("tunix_llama3", config.num_layers, config.weight_tying, _LLAMA3_RULES)


def tunix_gemma3(config: _Gemma3Config, *, prefix: str = "model.") -> Forms:
    """Returns the forms of the text model of `tunix.models.gemma3`.

    Leaves of its vision encoder (`vision_encoder`, `embedder.mm_*`) have no rule: exclude them with
    `leaves=`.

    Args:
        config: its `ModelConfig`; `num_layers` is read.
        prefix: of the canonical names; `"model.language_model."` for an engine that has the model
            with vision.
    """
    wanted = "the ModelConfig of tunix.models.gemma3"
    check_config("tunix_gemma3", config, ("num_layers",), wanted)
    return _forms("tunix_gemma3", config.num_layers, True, _GEMMA3_RULES, prefix, "scale")


def _forms(
    function: str,
    num_layers: int,
    is_tied: bool,
    rules: Mapping[str, tuple[Rule, ...]],
    prefix: str = "model.",
    norm: str = "w",
) -> Forms:
    # A tied head is the embedding itself, moved once and known by both names.
    aliases = (_HEAD,) if is_tied else ()
    embedding = Rule(
        f"{prefix}embed_tokens.weight", ("vocab", "embed"), "vocab embed", aliases=aliases
    )
    whole = {
        "embedder.input_embedding": (embedding,),
        f"final_norm.{norm}": _vector(f"{prefix}norm.weight"),
    }
    if not is_tied:
        whole["lm_head.w"] = _transposed(_HEAD)

    def place_of(name: str) -> Place | None:
        match = _LAYER.fullmatch(name)
        if match is None or int(match[1]) >= num_layers:
            return None
        return Place((int(match[1]),), match[2])

    config = f"num_layers={num_layers}, tied embedding: {is_tied}"
    return Tree(function, config, whole, rules, place_of, f"{prefix}layers.")
