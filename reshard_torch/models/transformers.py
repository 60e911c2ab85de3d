"""Hugging Face transformers 5: runtime names are the canonical ones, except for packed experts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from reshard import Form, LayoutError, Part, check_config

__all__ = ["transformers_llama", "transformers_qwen3", "transformers_qwen3_moe"]

_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")

CanonicalParts = Callable[[str, tuple[int, ...]], tuple[Part, ...] | None]


class _Config(Protocol):
    @property
    def tie_word_embeddings(self) -> bool:
        """True if the output head is the embedding."""


def transformers_llama(config: _Config) -> CanonicalParts:
    """Returns the forms of `LlamaForCausalLM`: names as they are, a tied head as an alias.

    Args:
        config: the `LlamaConfig`; `tie_word_embeddings` is read.

    Source: transformers 5.24, names of `named_parameters()`.
    """
    return _tied_head("transformers_llama", config)


def transformers_qwen3(config: _Config) -> CanonicalParts:
    """Returns the forms of `Qwen3ForCausalLM`: names as they are, a tied head as an alias.

    Args:
        config: the `Qwen3Config`; `tie_word_embeddings` is read.

    Source: transformers 5.24, names of `named_parameters()`.
    """
    return _tied_head("transformers_qwen3", config)


def transformers_qwen3_moe(config: _Config) -> CanonicalParts:
    """Returns the forms of `Qwen3MoeForCausalLM`, which packs experts into two tensors a layer.

    | stored `mlp.experts.` | shape | canonical, per expert e: `mlp.experts.e.` |
    |---|---|---|
    | `gate_up_proj` | (experts, 2 ffn, embed) | `gate_proj.weight`, `up_proj.weight` (ffn, embed) |
    | `down_proj` | (experts, embed, ffn) | `down_proj.weight` (embed, ffn) |

    Args:
        config: the `Qwen3MoeConfig`; `tie_word_embeddings` is read.

    Source: transformers 5.24, `modeling_qwen3_moe.py` and the checkpoint names of the same model.
    """
    dense = _tied_head("transformers_qwen3_moe", config)

    def parts(name: str, shape: tuple[int, ...]) -> tuple[Part, ...] | None:
        match = _EXPERTS.fullmatch(name)
        if match is None:
            return dense(name, shape)
        return _expert_parts(name, match[1], match[2] == "gate_up_proj", shape)

    return parts


def _tied_head(function: str, config: _Config) -> CanonicalParts:
    check_config(function, config, ("tie_word_embeddings",), "the configuration of transformers")
    is_tied = config.tie_word_embeddings

    def parts(name: str, shape: tuple[int, ...]) -> tuple[Part, ...] | None:
        if is_tied and name == "model.embed_tokens.weight":
            return (Part(name, None, ("lm_head.weight",)),)
        return None

    return parts


def _expert_parts(
    name: str, prefix: str, is_gate_up: bool, shape: tuple[int, ...]
) -> tuple[Part, ...]:
    if len(shape) != 3 or (is_gate_up and shape[1] % 2):
        raise LayoutError(
            f"{name}: shape {shape} is not that of packed experts, (experts, 2 * ffn, embed) for "
            "gate_up_proj and (experts, embed, ffn) for down_proj."
        )
    if not is_gate_up:
        pattern = "experts embed ffn -> embed ffn"
        return tuple(
            Part(f"{prefix}.{expert}.down_proj.weight", Form(pattern, index=(("experts", expert),)))
            for expert in range(shape[0])
        )
    ffn = shape[1] // 2
    return tuple(
        Part(
            f"{prefix}.{expert}.{projection}_proj.weight",
            Form(
                "experts ffn embed -> ffn embed",
                sizes=(("ffn", ffn),),
                index=(("experts", expert),),
                start=((1, begin),),
            ),
        )
        for expert in range(shape[0])
        for projection, begin in (("gate", 0), ("up", ffn))
    )
