"""Ready-made forms: which canonical (Hugging Face) tensors the leaves of a model's tree hold.

A function takes the configuration object of a trainer's library and returns forms for
`reshard_jax.Source` or `reshard_jax.Destination`; it reads a few attributes and imports nothing of
the library.
"""

from __future__ import annotations

from reshard_jax.models.maxtext import (
    maxtext_llama,
    maxtext_qwen3,
    maxtext_qwen3_moe,
    maxtext_weights,
)
from reshard_jax.models.maxtext_deepseek import maxtext_deepseek
from reshard_jax.models.maxtext_gemma3 import maxtext_gemma3
from reshard_jax.models.tunix import tunix_gemma3, tunix_llama3, tunix_qwen3

__all__ = [
    "maxtext_deepseek",
    "maxtext_gemma3",
    "maxtext_llama",
    "maxtext_qwen3",
    "maxtext_qwen3_moe",
    "maxtext_weights",
    "tunix_gemma3",
    "tunix_llama3",
    "tunix_qwen3",
]
