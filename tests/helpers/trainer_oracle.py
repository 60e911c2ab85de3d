"""What the trees of trainers hold, made with NumPy as the trainers' own converters do it.

Trees of tiny models are in `data/trainer_trees.json`: names and shapes as google-tunix 0.1.7 and
MaxText 0.2.5 show them, what transformers 5.24 has of the same models, and the configurations
(`make check-trainers` compares). This module shares no code with `reshard_jax.models`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["TREES", "canonical_of", "canonical_shapes", "config_of", "values_of"]

Arrays = dict[str, np.ndarray]

TREES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "trainer_trees.json").read_text()
)
_CYCLE = 6


def config_of(tree: dict[str, Any], **changes: Any) -> SimpleNamespace:
    """Returns what the forms read of a configuration."""
    return SimpleNamespace(**(tree["config"] | changes))


def values_of(tree: dict[str, Any]) -> Arrays:
    """Returns numbers for all leaves: no two are equal, so another order or place shows."""
    values = {}
    for name, shape in tree["leaves"].items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        values[name] = rng.standard_normal(shape).astype(np.float32) + np.float32(1.5)
    return values


def canonical_shapes(tree: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the checkpoint's names and shapes of what the engine has: experts one by one."""
    shapes = {}
    for name, shape in tree["engine"].items():
        match = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
        if match is None:
            shapes[name] = tuple(shape)
            continue
        rows = shape[1] // 2 if match[2] == "gate_up" else shape[1]
        for expert in range(shape[0]):
            for half in match[2].split("_"):
                shapes[f"{match[1]}.{expert}.{half}_proj.weight"] = (rows, shape[2])
    return shapes


def canonical_of(case: str, leaves: Arrays, normalizer: float = 1.0) -> Arrays:
    """Returns the canonical tensors that the leaves of a case hold.

    Args:
        case: name in `TREES`.
        leaves: values by name.
        normalizer: what MaxText's Gemma embedding was multiplied by.
    """
    convert = _of_tunix if case.startswith("tunix") else _of_maxtext
    config = SimpleNamespace(**TREES[case]["config"])
    return dict(
        pair
        for name, leaf in leaves.items()
        for pair in convert(case, config, name, leaf, normalizer)
    )


# ---- Tunix


_TUNIX_NORMS = {
    "input_layernorm.w": "input_layernorm",
    "post_attention_layernorm.w": "post_attention_layernorm",
    "pre_attention_norm.scale": "input_layernorm",
    "post_attention_norm.scale": "post_attention_layernorm",
    "pre_ffw_norm.scale": "pre_feedforward_layernorm",
    "post_ffw_norm.scale": "post_feedforward_layernorm",
    "attn.q_norm.w": "self_attn.q_norm",
    "attn.k_norm.w": "self_attn.k_norm",
    "attn._query_norm.scale": "self_attn.q_norm",
    "attn._key_norm.scale": "self_attn.k_norm",
}


def _of_tunix(
    case: str, config: Any, name: str, leaf: np.ndarray, _: float
) -> Iterator[tuple[str, np.ndarray]]:
    del case, config
    if not name.startswith("layers."):
        yield {
            "embedder": ("model.embed_tokens.weight", leaf),
            "final_norm": ("model.norm.weight", leaf),
            "lm_head": ("lm_head.weight", leaf.T),
        }[name.split(".")[0]]
        return
    _, layer, rest = name.split(".", 2)
    at = f"model.layers.{layer}."
    if rest in _TUNIX_NORMS:
        yield f"{at}{_TUNIX_NORMS[rest]}.weight", leaf
    elif rest in ("attn.o_proj.w", "attn.attn_vec_einsum.w"):
        yield f"{at}self_attn.o_proj.weight", np.einsum("nhd->dnh", leaf).reshape(leaf.shape[2], -1)
    elif rest.endswith("_einsum.w"):
        stacked = leaf if leaf.ndim == 4 else leaf[None]
        for which, one in zip(rest.split(".")[1].removesuffix("_einsum"), stacked, strict=True):
            rows = np.concatenate([head.T for head in one])
            yield f"{at}self_attn.{which}_proj.weight", rows
    elif rest.startswith("attn."):
        yield f"{at}self_attn.{rest[5]}_proj.weight", _heads_first(leaf)
    elif leaf.ndim == 3:
        for expert, one in enumerate(leaf):
            yield f"{at}mlp.experts.{expert}.{rest[4:]}.weight", one.T
    else:
        canonical = {"mlp.router.kernel": "mlp.gate"}.get(rest, rest.removesuffix(".kernel"))
        yield f"{at}{canonical}.weight", leaf.T


def _heads_first(kernel: np.ndarray) -> np.ndarray:
    """(embed, heads, size) -> (heads * size, embed)."""
    return np.concatenate([kernel[:, head].T for head in range(kernel.shape[1])])


# ---- MaxText


_MAXTEXT_NAMES = {
    "pre_self_attention_layer_norm.scale": "input_layernorm.weight",
    "post_self_attention_layer_norm.scale": "post_attention_layernorm.weight",
    "pre_self_attention_norm.scale": "input_layernorm.weight",
    "post_self_attention_norm.scale": "post_attention_layernorm.weight",
    "pre_ffw_norm.scale": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.scale": "post_feedforward_layernorm.weight",
    "self_attention.query_norm.scale": "self_attn.q_norm.weight",
    "self_attention.key_norm.scale": "self_attn.k_norm.weight",
    "self_attention.q_norm.scale": "self_attn.q_a_layernorm.weight",
    "self_attention.kv_norm.scale": "self_attn.kv_a_layernorm.weight",
    "self_attention.query.kernel": "self_attn.q_proj.weight",
    "self_attention.key.kernel": "self_attn.k_proj.weight",
    "self_attention.value.kernel": "self_attn.v_proj.weight",
    "self_attention.out.kernel": "self_attn.o_proj.weight",
    "self_attention.wq_a.kernel": "self_attn.q_a_proj.weight",
    "self_attention.wq_b.kernel": "self_attn.q_b_proj.weight",
    "self_attention.wkv_a.kernel": "self_attn.kv_a_proj_with_mqa.weight",
    "self_attention.wkv_b.kernel": "self_attn.kv_b_proj.weight",
    "mlp.wi_0.kernel": "mlp.gate_proj.weight",
    "mlp.wi_1.kernel": "mlp.up_proj.weight",
    "mlp.wo.kernel": "mlp.down_proj.weight",
    "moe_block.gate.kernel": "mlp.gate.weight",
    "DeepSeekMoeBlock_0.MoeBlock_0.gate.kernel": "mlp.gate.weight",
    "DeepSeekMoeBlock_0.MoeBlock_0.gate.bias": "mlp.gate.e_score_correction_bias",
    "DeepSeekMoeBlock_0.shared_experts.wi_0.kernel": "mlp.shared_experts.gate_proj.weight",
    "DeepSeekMoeBlock_0.shared_experts.wi_1.kernel": "mlp.shared_experts.up_proj.weight",
    "DeepSeekMoeBlock_0.shared_experts.wo.kernel": "mlp.shared_experts.down_proj.weight",
}


def _of_maxtext(
    case: str, config: Any, name: str, leaf: np.ndarray, normalizer: float
) -> Iterator[tuple[str, np.ndarray]]:
    is_gemma = "gemma" in case
    if name == "token_embedder.embedding":
        yield "model.embed_tokens.weight", leaf / np.float32(normalizer) if is_gemma else leaf
    elif name == "decoder.decoder_norm.scale":
        yield "model.norm.weight", leaf - 1 if is_gemma else leaf
    elif name == "decoder.logits_dense.kernel":
        yield "lm_head.weight", leaf.T
    else:
        for layer, rest, one in _layers(config, name, leaf):
            for canonical, value in _of_one_layer(case, config, rest, one):
                yield f"model.layers.{layer}.{canonical}", value


def _layers(config: Any, name: str, leaf: np.ndarray) -> Iterator[tuple[int, str, np.ndarray]]:
    """Yields (layer, name below it, its slice)."""
    path = name.removeprefix("decoder.").split(".")
    first = config.first_num_dense_layers
    whole_cycles = config.num_decoder_layers // _CYCLE * _CYCLE
    number = path[0].rpartition("_")[2]
    if path[0] == "layers_remainder":
        yield whole_cycles + int(path[1][7:]), ".".join(path[2:]), leaf
    elif number.isdigit():
        offset = first if path[0].startswith("moe_layers") else 0
        yield offset + int(number), ".".join(path[1:]), leaf
    else:
        below = 2 if re.fullmatch(r"layers_\d", path[1]) else 1
        rest = ".".join(path[below:])
        axis = config.param_scan_axis if leaf.ndim > config.param_scan_axis else 0
        if rest.endswith("gate.bias") and config.model_name.startswith("deepseek3"):
            axis = 0
        for step in range(leaf.shape[axis]):
            start = first if path[0] == "moe_layers" else 0
            layer = int(path[1][7:]) + _CYCLE * step if below == 2 else start + step
            yield layer, rest, leaf.take(step, axis)


def _of_one_layer(
    case: str, config: Any, rest: str, leaf: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    block, _, last = rest.rpartition(".")
    if last in ("wi_0", "wi_1", "wi", "wo") and block.lower().endswith(("moe_block", "moeblock_0")):
        for expert, one in enumerate(leaf):
            halves = np.split(one, 2, axis=1) if last == "wi" else [one]
            names = {"wi_0": ["gate"], "wi_1": ["up"], "wi": ["gate", "up"], "wo": ["down"]}[last]
            for half, value in zip(names, halves, strict=True):
                yield f"mlp.experts.{expert}.{half}_proj.weight", value.T
        return
    canonical = _MAXTEXT_NAMES[rest]
    if leaf.ndim == 1:
        yield canonical, leaf - 1 if "gemma" in case else leaf
    elif leaf.ndim == 2:
        yield canonical, leaf.T
    elif rest == "self_attention.out.kernel":
        yield canonical, np.concatenate(list(leaf)).T
    else:
        value = leaf
        if "llama" in case and rest == "self_attention.query.kernel":
            value = value * np.float32(np.sqrt(config.head_dim))
        if "llama 3.1" in case and not rest.startswith("self_attention.value"):
            value = np.concatenate([value[..., ::2], value[..., 1::2]], axis=-1)
        yield canonical, _heads_first(value)
