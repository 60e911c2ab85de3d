"""The models that trainers and engine build alike, in numbers; no framework is imported.

`EMBED` is `HEADS * HEAD_DIM`, so kernels are square and a missing transpose shows in no shape; its
square root is no number of bfloat16, so a normaliser of the wrong dtype shows in logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "Case", "cases_of"]

VOCAB, EMBED, HEADS, KV_HEADS, HEAD_DIM, FFN = 40, 32, 4, 2, 8, 48
LAYERS, GEMMA_LAYERS, EXPERTS, EXPERTS_PER_TOKEN = 3, 14, 4, 2
ROPE_THETA = 1_000_000
"""What Tunix's Qwen3 and Llama 3 always use."""

_ENGINE = {
    "vocab_size": VOCAB,
    "hidden_size": EMBED,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
_ROPE = {"rope_type": "default", "rope_theta": float(ROPE_THETA)}
_LLAMA31_ROPE = {
    "rope_type": "llama3",
    "rope_theta": float(ROPE_THETA),
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": float(ROPE_THETA),
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_EXPERTS = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "moe_intermediate_size": FFN,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}
_GEMMA = {
    "num_hidden_layers": GEMMA_LAYERS,
    "query_pre_attn_scalar": HEAD_DIM,
    "sliding_window": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
_DEEPSEEK = {
    "num_key_value_heads": HEADS,
    "head_dim": 4,  # of what is rotated
    "first_k_dense_replace": 1,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "n_shared_experts": 1,
    "moe_intermediate_size": FFN,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": HEAD_DIM,
    "max_position_embeddings": 1024,
    "rope_parameters": _YARN,
    "rope_interleave": True,
    "tie_word_embeddings": False,
}
_DEEPSEEK_V2 = {
    "q_lora_rank": None,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "rope_parameters": _ROPE,
}


@dataclass(frozen=True)
class Case:
    """One model, as a trainer has it and as the engine has it.

    Attributes:
        name: of the case.
        library: which trainer: `tunix` or `maxtext`.
        forms: name of the function in `reshard_jax.models`.
        trainer: options of the trainer's configuration.
        engine: kind of the engine's model and options of its configuration.
        forms_options: further arguments of `forms`.
    """

    name: str
    library: str
    forms: str
    trainer: dict[str, Any]
    engine: tuple[str, dict[str, Any]]
    forms_options: dict[str, Any] = field(default_factory=dict)


def _engine(kind: str, *options: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    merged = dict(_ENGINE)
    for option in (*options, more):
        merged |= option
    return kind, merged


def _tunix() -> list[Case]:
    cases = []
    for is_tied in (True, False):
        word = "tied" if is_tied else "untied"
        head = {"tie_word_embeddings": is_tied, "rope_parameters": _ROPE}
        tied = {"use_tied_embedding": is_tied}
        cases += [
            Case(f"tunix qwen3 {word}", "tunix", "tunix_qwen3", tied, _engine("qwen3", head)),
            Case(
                f"tunix qwen3 moe {word}",
                "tunix",
                "tunix_qwen3",
                tied | {"num_experts": EXPERTS, "num_experts_per_tok": EXPERTS_PER_TOKEN},
                _engine("qwen3_moe", head, _EXPERTS),
            ),
            Case(
                f"tunix llama3 {word}",
                "tunix",
                "tunix_llama3",
                {"weight_tying": is_tied},
                _engine("llama", head, rms_norm_eps=1e-5),
            ),
        ]
    for word, kv_heads in (("q and kv", KV_HEADS), ("qkv", HEADS)):
        cases.append(
            Case(
                f"tunix gemma3 {word}",
                "tunix",
                "tunix_gemma3",
                {"num_kv_heads": kv_heads},
                _engine("gemma3_text", _GEMMA, num_key_value_heads=kv_heads),
            )
        )
    return cases


_MAXTEXT_EXPERTS = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "base_moe_mlp_dim": FFN,
    "norm_topk_prob": True,
    "sparse_matmul": False,
}
_MAXTEXT_DEEPSEEK = {
    **_MAXTEXT_EXPERTS,
    "decoder_block": "deepseek",
    "attention_type": "mla",
    "base_num_kv_heads": HEADS,
    "first_num_dense_layers": 1,
    "shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "routed_score_func": "sigmoid",
    "routed_bias": True,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": HEAD_DIM,
    "rope_type": "yarn",
    "rope_factor": 4,
    "max_position_embeddings": 1024,
    "original_max_position_embeddings": 256,
    "beta_fast": 32,
    "logits_via_embedding": False,
}
_TIED = {"logits_via_embedding": True, "normalize_embedding_logits": False}
_UNTIED = {"logits_via_embedding": False}
_QWEN3 = {"use_qk_norm": True}
_MAXTEXT = {
    "llama": (
        "maxtext_llama",
        {"decoder_block": "llama2", **_UNTIED},
        _engine("llama", rope_parameters=_ROPE, tie_word_embeddings=False),
        {},
    ),
    "llama 3.1": (
        "maxtext_llama",
        {"decoder_block": "llama2", "rope_type": "llama3.1", **_TIED},
        _engine("llama", rope_parameters=_LLAMA31_ROPE, tie_word_embeddings=True),
        {},
    ),
    "qwen3": (
        "maxtext_qwen3",
        {"decoder_block": "qwen3", **_QWEN3, **_TIED},
        _engine("qwen3", rope_parameters=_ROPE, tie_word_embeddings=True),
        {},
    ),
    "qwen3 moe": (
        "maxtext_qwen3_moe",
        {"decoder_block": "qwen3_moe", **_QWEN3, **_UNTIED, **_MAXTEXT_EXPERTS},
        _engine("qwen3_moe", _EXPERTS, rope_parameters=_ROPE, tie_word_embeddings=False),
        {},
    ),
    "gemma3": (
        "maxtext_gemma3",
        {
            "model_name": "gemma3-4b",
            "base_num_decoder_layers": GEMMA_LAYERS,
            "use_multimodal": False,
            "sliding_window_size": 4,
        },
        _engine("gemma3_text", _GEMMA),
        # The engine is in float32 here.
        {"normalizer_dtype": "float32"},
    ),
    "deepseek v3": (
        "maxtext_deepseek",
        {**_MAXTEXT_DEEPSEEK, "model_name": "deepseek3-671b"},
        _engine("deepseek_v3", _DEEPSEEK),
        {},
    ),
    "deepseek v2": (
        "maxtext_deepseek",
        {
            **_MAXTEXT_DEEPSEEK,
            "q_lora_rank": 0,
            "rope_factor": 1,
            "routed_score_func": "softmax",
            "routed_bias": False,
            "routed_scaling_factor": 1.0,
        },
        _engine("deepseek_v2", _DEEPSEEK, _DEEPSEEK_V2),
        {},
    ),
}


def _maxtext() -> list[Case]:
    cases = []
    for name, (forms, trainer, engine, options) in _MAXTEXT.items():
        for word, is_scanned in (("scanned", True), ("unscanned", False)):
            config = {**trainer, "scan_layers": is_scanned}
            cases.append(Case(f"maxtext {name} {word}", "maxtext", forms, config, engine, options))
    forms, trainer, engine, options = _MAXTEXT["qwen3 moe"]
    # With 2 for its axis MaxText cuts stacks of norms along the layers, so their number is even.
    for axis, layers in ((0, LAYERS), (2, 4)):
        config = {
            **trainer,
            "scan_layers": True,
            "param_scan_axis": axis,
            "prefuse_moe_weights": True,
            "base_num_decoder_layers": layers,
        }
        name = f"maxtext qwen3 moe scanned on {axis}, wi in one"
        sizes = (engine[0], engine[1] | {"num_hidden_layers": layers})
        cases.append(Case(name, "maxtext", forms, config, sizes, options))
    return cases


CASES = (*_tunix(), *_maxtext())
"""All of them; names are unique."""


def cases_of(library: str) -> list[Case]:
    """Returns the cases of one trainer."""
    return [case for case in CASES if case.library == library]
