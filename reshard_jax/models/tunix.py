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

Names on the right of a layer's leaf come after `model.layers.i.`. Which rule applies follows from
the name, never from the shape: a square kernel would hide a missing transpose. Both libraries
rotate halves of a head (RoPE), so lanes keep their order.

Source: google-tunix 0.1.7 and transformers 5.24, compared by logits.
"""

from __future__ import annotations

import re
from typing import Protocol

from reshard import Form, Forms, LayoutError, Part, check_config

__all__ = ["tunix_llama3", "tunix_qwen3"]

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_TRANSPOSED = Form("inner outer -> outer inner")
_HEADS_OUT = Form("embed heads head_dim -> (heads head_dim) embed")
_HEADS_IN = Form("heads head_dim embed -> embed (heads head_dim)")

_QWEN3_FIELDS = ("num_layers", "use_tied_embedding")
_LLAMA3_FIELDS = ("num_layers", "weight_tying")
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_PROJECTION = re.compile(r"mlp\.(gate|up|down)_proj")

_LAYER_RULES: dict[str, tuple[str, Form | None]] = {
    "input_layernorm.w": ("input_layernorm.weight", None),
    "post_attention_layernorm.w": ("post_attention_layernorm.weight", None),
    "attn.q_proj.w": ("self_attn.q_proj.weight", _HEADS_OUT),
    "attn.k_proj.w": ("self_attn.k_proj.weight", _HEADS_OUT),
    "attn.v_proj.w": ("self_attn.v_proj.weight", _HEADS_OUT),
    "attn.o_proj.w": ("self_attn.o_proj.weight", _HEADS_IN),
    "mlp.gate_proj.kernel": ("mlp.gate_proj.weight", _TRANSPOSED),
    "mlp.up_proj.kernel": ("mlp.up_proj.weight", _TRANSPOSED),
    "mlp.down_proj.kernel": ("mlp.down_proj.weight", _TRANSPOSED),
}
_QWEN3_RULES: dict[str, tuple[str, Form | None]] = {
    **_LAYER_RULES,
    "attn.q_norm.w": ("self_attn.q_norm.weight", None),
    "attn.k_norm.w": ("self_attn.k_norm.weight", None),
    "mlp.router.kernel": ("mlp.gate.weight", _TRANSPOSED),
}


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
    return _forms("tunix_llama3", config.num_layers, config.weight_tying, _LAYER_RULES)


def _forms(
    model: str, num_layers: int, is_tied: bool, rules: dict[str, tuple[str, Form | None]]
) -> Forms:
    whole: dict[str, Part] = {
        # A tied head is the embedding itself, moved once and known by both names.
        "embedder.input_embedding": Part(_EMBEDDING, None, (_HEAD,) if is_tied else ()),
        "final_norm.w": Part("model.norm.weight"),
    }
    if not is_tied:
        whole["lm_head.w"] = Part(_HEAD, _TRANSPOSED)
    has_experts = "mlp.router.kernel" in rules

    def forms(name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        if name in whole:
            return (whole[name],)
        match = _LAYER.fullmatch(name)
        if match is not None and int(match[1]) < num_layers:
            layer, rest = f"model.layers.{int(match[1])}", match[2]
            if rest in rules:
                canonical, form = rules[rest]
                return (Part(f"{layer}.{canonical}", form),)
            if has_experts and _PROJECTION.fullmatch(rest):
                return _experts(layer, rest.removeprefix("mlp."), shape)
        raise LayoutError(
            f"{name}: {model} has no rule for this leaf of shape {shape} (num_layers={num_layers}, "
            f"tied embedding: {is_tied}). If it is no weight of the model, exclude it with leaves=."
        )

    return forms


def _experts(layer: str, projection: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Returns one part per expert of a stack (experts, in, out)."""
    return tuple(
        Part(
            f"{layer}.mlp.experts.{expert}.{projection}.weight",
            Form("experts inner outer -> outer inner", index=(("experts", expert),)),
        )
        for expert in range(shape[0])
    )
