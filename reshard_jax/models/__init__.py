"""Ready-made forms: which canonical (Hugging Face) tensors the leaves of a model's tree hold.

One module per trainer library. A function takes the library's configuration object and returns
forms for `reshard_jax.Source` or `reshard_jax.Destination`; it reads a few attributes and imports
nothing of the library.
"""

from __future__ import annotations

from reshard_jax.models.tunix import tunix_gemma3, tunix_llama3, tunix_qwen3

__all__ = ["tunix_gemma3", "tunix_llama3", "tunix_qwen3"]
