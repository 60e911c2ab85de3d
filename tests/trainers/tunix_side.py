"""Tunix's program: see `trainer_side`. Runs in the environment of the demo's trainer."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

from typing import Any

import cases as numbers
import jax
import jax.numpy as jnp
import numpy as np
from cases import Case
from flax import nnx
from jax.sharding import Mesh
from trainer_side import Trainer, random_tree, run
from tunix.models.gemma3 import model as gemma3
from tunix.models.llama3 import model as llama3
from tunix.models.qwen3 import model as qwen3

_SIZES = {
    "num_layers": numbers.LAYERS,
    "embed_dim": numbers.EMBED,
    "hidden_dim": numbers.FFN,
    "num_heads": numbers.HEADS,
    "head_dim": numbers.HEAD_DIM,
    "num_kv_heads": numbers.KV_HEADS,
}
_OLDER = {"vocab_size": numbers.VOCAB, "rope_theta": numbers.ROPE_THETA}
_GEMMA3 = {
    "num_embed": numbers.VOCAB,
    "num_layers": numbers.GEMMA_LAYERS,
    "sliding_window_size": 4,
    "global_base_frequency": 1_000_000,
    "global_scale_factor": 8.0,
    "param_dtype": jnp.float32,
}
_MODELS = {
    "tunix_qwen3": (qwen3.Qwen3, qwen3.ModelConfig, _OLDER | {"norm_eps": 1e-6}),
    "tunix_llama3": (llama3.Llama3, llama3.ModelConfig, _OLDER | {"norm_eps": 1e-5}),
    "tunix_gemma3": (gemma3.Gemma3, gemma3.ModelConfig, _GEMMA3),
}


def _build(case: Case) -> Trainer:
    model_class, config_class, options = _MODELS[case.forms]
    config = config_class(**(_SIZES | options | case.trainer))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("fsdp", "tp"))
    with mesh:
        graph, params, rest = nnx.split(model_class(config, rngs=nnx.Rngs(0)), nnx.Param, ...)
        shardings = nnx.get_named_sharding(params, mesh)
        params = jax.tree.map(jax.device_put, params, shardings)

    @jax.jit
    def logits(params: Any, tokens: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params, rest)
        length = tokens.shape[1]
        positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        mask = jnp.broadcast_to(jnp.tri(length, dtype=bool), (len(tokens), length, length))
        return model(tokens, positions, None, mask)[0]

    def in_mesh(params: Any, tokens: np.ndarray) -> jax.Array:
        with mesh, jax.default_matmul_precision("highest"):
            return logits(params, jnp.asarray(tokens))

    noted = ("num_layers", *(name for name in case.trainer if "ty" in name or "tied" in name))
    return Trainer(config, random_tree(params), in_mesh, None, noted)


if __name__ == "__main__":
    run("tunix", _build)
