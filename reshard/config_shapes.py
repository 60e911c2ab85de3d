"""Shapes of parameters from a Hugging Face `config.json`, for families whose rules are known.

One table of names per family, each with the dims of its shape. A name that is not in the table has
no shape here; whoever asks must say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from reshard.dtypes import DType
from reshard.errors import LayoutError

__all__ = ["ConfigShapes"]

_Table = tuple[tuple[str, tuple[str, ...]], ...]

_DENSE: Final[_Table] = (
    (r"(embed_tokens|lm_head)\.weight", ("vocab", "embed")),
    (r"(input_layernorm|post_attention_layernorm|(language_)?model\.norm)\.weight", ("embed",)),
    (r"mlp\.(gate_proj|up_proj)\.weight", ("ffn", "embed")),
    (r"mlp\.down_proj\.weight", ("embed", "ffn")),
)
_ATTENTION: Final[_Table] = (
    (r"self_attn\.q_proj\.weight", ("q", "embed")),
    (r"self_attn\.[kv]_proj\.weight", ("kv", "embed")),
    (r"self_attn\.o_proj\.weight", ("embed", "q")),
    (r"self_attn\.q_proj\.bias", ("q",)),
    (r"self_attn\.[kv]_proj\.bias", ("kv",)),
    (r"self_attn\.o_proj\.bias", ("embed",)),
    (r"self_attn\.[qk]_norm\.weight", ("head",)),
)
_EXPERTS: Final[_Table] = (
    (r"mlp\.gate\.weight", ("experts", "embed")),
    (r"mlp\.gate\.e_score_correction_bias", ("experts",)),
    (r"mlp\.experts\.\d+\.(gate_proj|up_proj)\.weight", ("expert_ffn", "embed")),
    (r"mlp\.experts\.\d+\.down_proj\.weight", ("embed", "expert_ffn")),
)
_LATENT_ATTENTION: Final[_Table] = (
    (r"self_attn\.q_proj\.weight", ("latent_q", "embed")),
    (r"self_attn\.q_a_proj\.weight", ("q_rank", "embed")),
    (r"self_attn\.q_a_layernorm\.weight", ("q_rank",)),
    (r"self_attn\.q_b_proj\.weight", ("latent_q", "q_rank")),
    (r"self_attn\.kv_a_proj_with_mqa\.weight", ("kv_rank_and_rope", "embed")),
    (r"self_attn\.kv_a_layernorm\.weight", ("kv_rank",)),
    (r"self_attn\.kv_b_proj\.weight", ("latent_kv", "kv_rank")),
    (r"self_attn\.o_proj\.weight", ("embed", "latent_v")),
    (r"mlp\.shared_experts\.(gate_proj|up_proj)\.weight", ("shared_ffn", "embed")),
    (r"mlp\.shared_experts\.down_proj\.weight", ("embed", "shared_ffn")),
    # The layers after the last one predict further tokens.
    (r"(enorm|hnorm|shared_head\.norm)\.weight", ("embed",)),
    (r"eh_proj\.weight", ("embed", "two_embed")),
    (r"shared_head\.head\.weight", ("vocab", "embed")),
)
_GEMMA: Final[_Table] = ((r"(pre|post)_feedforward_layernorm\.weight", ("embed",)),)

_LLAMA: Final = _DENSE + _ATTENTION
_DEEPSEEK: Final = _DENSE + _EXPERTS + _LATENT_ATTENTION
_FAMILIES: Final[Mapping[str, _Table]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _LLAMA + _EXPERTS,
    "gemma3": _LLAMA + _GEMMA,
    "gemma3_text": _LLAMA + _GEMMA,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
}
# Each extent is a sum of products of numbers of the configuration.
_SIZES: Final = {
    "vocab": (("vocab_size",),),
    "embed": (("hidden_size",),),
    "two_embed": (("hidden_size",), ("hidden_size",)),
    "ffn": (("intermediate_size",),),
    "head": (("head_dim",),),
    "q": (("num_attention_heads", "head_dim"),),
    "kv": (("kv_heads", "head_dim"),),
    "experts": (("experts",),),
    "expert_ffn": (("moe_intermediate_size",),),
    "shared_ffn": (("moe_intermediate_size", "n_shared_experts"),),
    "q_rank": (("q_lora_rank",),),
    "kv_rank": (("kv_lora_rank",),),
    "kv_rank_and_rope": (("kv_lora_rank",), ("qk_rope_head_dim",)),
    "latent_q": (
        ("num_attention_heads", "qk_nope_head_dim"),
        ("num_attention_heads", "qk_rope_head_dim"),
    ),
    "latent_kv": (
        ("num_attention_heads", "qk_nope_head_dim"),
        ("num_attention_heads", "v_head_dim"),
    ),
    "latent_v": (("num_attention_heads", "v_head_dim"),),
}
_PREFIX: Final = r"^(?:(?:language_model|model|layers|\d+)\.)*"
_SCALE: Final = "_scale_inv"


class ConfigShapes:
    """Answers type and shape of a parameter from a configuration.

    Args:
        config: the object of `config.json`.
        where: what messages call the file.

    Raises:
        LayoutError: if the family is unknown or the type of the parameters is not said.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        text_config = config.get("text_config")
        merged = {**config, **text_config} if isinstance(text_config, Mapping) else dict(config)
        self._config, self._where = merged, where
        family = merged.get("model_type")
        table = _FAMILIES.get(family) if isinstance(family, str) else None
        if table is None:
            raise LayoutError(
                f"{where}: shapes of model_type {family!r} do not follow from a configuration here."
                f" They do for {', '.join(_FAMILIES)}. Download the shard files, or only their "
                "headers: the first bytes of each."
            )
        self._table = [
            (
                re.compile(f"{_PREFIX}{name}$"),
                dims,
            )
            for name, dims in table
        ]
        self._dtype = self._read_dtype()
        self._block = self._read_block()

    def entry(self, name: str, is_quantised: bool) -> tuple[DType, tuple[int, ...]] | None:
        """Returns type and shape of a parameter, or None for a name that is not in the table.

        Args:
            name: canonical name.
            is_quantised: whether the checkpoint has scales for its blocks.

        Raises:
            LayoutError: if the configuration lacks a number, or is quantised in an unknown way.
        """
        plain = name.removesuffix(_SCALE)
        dims = next((dims for pattern, dims in self._table if pattern.search(plain)), None)
        if dims is None:
            return None
        shape = tuple(map(self._size, dims))
        if name != plain:
            blocks = self._block_of(name)
            return DType.FLOAT32, tuple(-(-n // b) for n, b in zip(shape, blocks, strict=True))
        if is_quantised:
            self._block_of(name)
            return DType.FLOAT8_E4M3FN, shape
        # Kept in float32 by the reference implementation whatever the type of the rest.
        if name.endswith("e_score_correction_bias"):
            return DType.FLOAT32, shape
        return self._dtype, shape

    def _block_of(self, name: str) -> tuple[int, int]:
        if self._block is None:
            raise LayoutError(
                f"{self._where}: {name} is quantised, but quantization_config has no "
                "weight_block_size of two numbers with quant_method 'fp8'. Download the shard "
                "files, or only their headers."
            )
        return self._block

    def _number(self, *keys: str, default: int | None = None) -> int:
        """Returns the first of some entries that is there, a whole number above 0.

        Raises:
            LayoutError: if none is there and there is no default, or it is no such number.
        """
        for key in keys:
            value = self._config.get(key)
            if value is None:
                continue
            if type(value) is not int or value < 1:
                raise LayoutError(f"{self._where}: {key} is {value!r}, not a whole number above 0.")
            return value
        if default is None:
            raise LayoutError(
                f"{self._where}: lacks {' or '.join(keys)}, from which shapes follow. Download "
                "the model's own config.json."
            )
        return default

    def _read_dtype(self) -> DType:
        for key in ("torch_dtype", "dtype"):
            if isinstance(self._config.get(key), str):
                return DType.of(self._config[key])
        raise LayoutError(
            f"{self._where}: says no torch_dtype or dtype. Add the type of the stored parameters, "
            'such as "torch_dtype": "bfloat16".'
        )

    def _read_block(self) -> tuple[int, int] | None:
        quantisation = self._config.get("quantization_config")
        if not isinstance(quantisation, Mapping) or quantisation.get("quant_method") != "fp8":
            return None
        block = quantisation.get("weight_block_size")
        if not isinstance(block, list) or not all(type(n) is int and n > 0 for n in block):
            return None
        return (block[0], block[1]) if len(block) == 2 else None

    def _size(self, dim: str) -> int:
        """Returns the extent of a named dim."""
        terms = _SIZES[dim]
        return sum(math.prod(map(self._factor, term)) for term in terms)

    def _factor(self, key: str) -> int:
        """Returns a number of the configuration, or one that stands for several keys."""
        match key:
            case "head_dim":
                heads = self._number("num_attention_heads")
                return self._number(key, default=self._number("hidden_size") // heads)
            case "kv_heads":
                return self._number("num_key_value_heads", "num_attention_heads")
            case "experts":
                return self._number("num_experts", "n_routed_experts")
        return self._number(key)
