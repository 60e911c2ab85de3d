"""Writes small Hugging Face checkpoints: index, configuration, and headers without weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

__all__ = ["CONFIGS", "header_bytes", "names_of", "write_checkpoint"]

_ITEMSIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "hidden_size": 8,
    "vocab_size": 30,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 3,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]},
    "hidden_size": 8,
    "vocab_size": 30,
    "intermediate_size": 12,
    "moe_intermediate_size": 5,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}
CONFIGS = {
    "qwen3": QWEN3,
    "qwen3_moe": {**QWEN3, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 5},
    "llama": {key: QWEN3[key] for key in QWEN3 if key != "head_dim"} | {"model_type": "llama"},
    "gemma3": {"model_type": "gemma3", "torch_dtype": "bfloat16",
               "text_config": {**QWEN3, "model_type": "gemma3_text"}},
    "deepseek_v3": DEEPSEEK,
}  # fmt: skip


def names_of(family: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns type and shape of every parameter of a family's small model, written out by hand."""
    prefix = "language_model.model" if family == "gemma3" else "model"
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        f"{prefix}.embed_tokens.weight": ("BF16", (30, 8))
    }
    for layer in range(2 if family == "deepseek_v3" else 3):
        here = f"{prefix}.layers.{layer}"
        found |= _layer(family, here, is_dense=layer == 0)
    if family == "deepseek_v3":
        here = f"{prefix}.layers.2"
        found |= _layer(family, here, is_dense=False) | {
            f"{here}.embed_tokens.weight": ("BF16", (30, 8)),
            f"{here}.enorm.weight": ("BF16", (8,)),
            f"{here}.hnorm.weight": ("BF16", (8,)),
            f"{here}.eh_proj.weight": ("BF16", (8, 16)),
            f"{here}.shared_head.norm.weight": ("BF16", (8,)),
            f"{here}.shared_head.head.weight": ("BF16", (30, 8)),
        }
    found[f"{prefix}.norm.weight"] = ("BF16", (8,))
    if family != "gemma3":
        found["lm_head.weight"] = ("BF16", (30, 8))
    return found


def _layer(family: str, here: str, *, is_dense: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (8,), "post_attention_layernorm.weight": (8,),
    }  # fmt: skip
    if family == "deepseek_v3":
        shapes |= {
            "self_attn.q_a_layernorm.weight": (6,), "self_attn.kv_a_layernorm.weight": (5,),
        }  # fmt: skip
        quantised = {
            "self_attn.q_a_proj": (6, 8), "self_attn.q_b_proj": (12, 6),
            "self_attn.kv_a_proj_with_mqa": (7, 8), "self_attn.kv_b_proj": (14, 5),
            "self_attn.o_proj": (8, 6),
        }  # fmt: skip
        quantised |= _ffn("mlp", 12) if is_dense else _ffn("mlp.shared_experts", 10)
        for expert in range(0 if is_dense else 4):
            quantised |= _ffn(f"mlp.experts.{expert}", 5)
        found = {f"{here}.{name}.weight": ("F8_E4M3", shape) for name, shape in quantised.items()}
        for name, shape in quantised.items():
            found[f"{here}.{name}.weight_scale_inv"] = (
                "F32", tuple(math.ceil(extent / 4) for extent in shape)
            )  # fmt: skip
        if not is_dense:
            shapes["mlp.gate.weight"] = (4, 8)
            found[f"{here}.mlp.gate.e_score_correction_bias"] = ("F32", (4,))
        return found | {f"{here}.{name}": ("BF16", shape) for name, shape in shapes.items()}
    head = 2 if family == "llama" else 3
    shapes |= {
        "self_attn.q_proj.weight": (4 * head, 8), "self_attn.k_proj.weight": (2 * head, 8),
        "self_attn.v_proj.weight": (2 * head, 8), "self_attn.o_proj.weight": (8, 4 * head),
    }  # fmt: skip
    if family != "llama":
        shapes |= {"self_attn.q_norm.weight": (3,), "self_attn.k_norm.weight": (3,)}
    if family == "gemma3":
        shapes |= {
            "pre_feedforward_layernorm.weight": (8,),
            "post_feedforward_layernorm.weight": (8,),
        }
    matrices: dict[str, tuple[int, ...]] = {}
    if family == "qwen3_moe":
        shapes["mlp.gate.weight"] = (4, 8)
        for expert in range(4):
            matrices |= _ffn(f"mlp.experts.{expert}", 5)
    else:
        matrices = _ffn("mlp", 12)
    shapes |= {f"{name}.weight": shape for name, shape in matrices.items()}
    return {f"{here}.{name}": ("BF16", shape) for name, shape in shapes.items()}


def _ffn(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj": (width, 8),
        f"{name}.up_proj": (width, 8),
        f"{name}.down_proj": (8, width),
    }


def header_bytes(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Returns the header of a safetensors file of these tensors; no data follows it."""
    found: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, (dtype, shape) in tensors.items():
        stop = start + math.prod(shape) * _ITEMSIZES[dtype]
        found[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(found).encode()
    return len(text).to_bytes(8, "little") + text


def write_checkpoint(folder: Path, family: str, *, num_shards: int = 2, headers: int = 0) -> Path:
    """Writes index, configuration and the headers of the first shard files; returns the index."""
    tensors = names_of(family)
    names = list(tensors)
    files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    weight_map = {name: files[i * num_shards // len(names)] for i, name in enumerate(names)}
    total = sum(math.prod(shape) * _ITEMSIZES[dtype] for dtype, shape in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    for file in files[:headers]:
        chosen = {name: tensors[name] for name in names if weight_map[name] == file}
        (folder / file).write_bytes(header_bytes(chosen))
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    return path
