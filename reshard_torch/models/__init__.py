"""Ready-made forms: what the parameters of a model family are called in canonical names."""

from __future__ import annotations

from reshard_torch.models.transformers import (
    transformers_llama,
    transformers_qwen3,
    transformers_qwen3_moe,
)

__all__ = ["transformers_llama", "transformers_qwen3", "transformers_qwen3_moe"]
