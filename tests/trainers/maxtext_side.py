"""MaxText's program: see `trainer_side`. Needs Python 3.12 and requirements-maxtext.txt."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

from pathlib import Path
from typing import Any

import cases as numbers
import jax
import jax.numpy as jnp
import maxtext
import numpy as np
from cases import Case
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.layers import nnx_decoders
from maxtext.utils import maxtext_utils, model_creation_utils
from trainer_side import Trainer, random_tree, run

import reshard_jax

_OPTIONS = {
    "run_name": "check",
    "enable_checkpointing": False,
    "override_model_config": True,
    "skip_jax_distributed_system": True,
    "dataset_type": "synthetic",
    "hardware": "cpu",
    "log_config": False,
    "attention": "dot_product",
    "dtype": "float32",
    "weight_dtype": "float32",
    "matmul_precision": "highest",
    "float32_qk_product": True,
    "float32_logits": True,
    "ici_fsdp_parallelism": 2,
    "ici_tensor_parallelism": 2,
    "per_device_batch_size": 1,
    "max_target_length": 12,
    "vocab_size": numbers.VOCAB,
    "base_emb_dim": numbers.EMBED,
    "base_mlp_dim": numbers.FFN,
    "base_num_query_heads": numbers.HEADS,
    "base_num_kv_heads": numbers.KV_HEADS,
    "head_dim": numbers.HEAD_DIM,
    "base_num_decoder_layers": numbers.LAYERS,
    "mlp_activations": ["silu", "linear"],
    "normalization_layer_epsilon": 1e-6,
    "rope_max_timescale": numbers.ROPE_THETA,
    "enable_dropout": False,
}
_NOTED = (
    "decoder_block",
    "num_decoder_layers",
    "scan_layers",
    "param_scan_axis",
    "logits_via_embedding",
    "normalize_embedding_logits",
    "vocab_size",
    "emb_dim",
    "head_dim",
    "model_name",
    "rope_type",
    "rope_interleave",
    "first_num_dense_layers",
)


def _float32_head(query: jax.Array, embedding: jax.Array, *_: object) -> jax.Array:
    return jnp.dot(query, embedding.T, precision="highest")


# MaxText rounds a tied head to bfloat16 whatever the dtypes of the model are.
nnx_decoders.attend_on_embedding = _float32_head


def _build(case: Case) -> Trainer:
    options = _OPTIONS | case.trainer
    if case.forms == "maxtext_gemma3":
        options["mlp_activations"] = ["gelu", "linear"]
    base = Path(maxtext.__file__).parent / "configs" / "base.yml"
    config = pyconfig.initialize(["check", str(base)], **options)
    mesh = maxtext_utils.get_mesh_from_config(config)
    create, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh)
    graph, state = nnx.split(create())
    shardings = jax.tree.map(lambda leaf: leaf.sharding, nnx.state(abstract))
    state = jax.tree.map(jax.device_put, state, shardings)
    weights = nnx.filter_state(state, _is_weight)
    rest = nnx.filter_state(state, lambda path, leaf: not _is_weight(path, leaf))

    @jax.jit
    def logits(params: Any, rest: Any, tokens: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params, rest)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        segments = jnp.ones_like(tokens)
        return model(tokens, positions, segments, enable_dropout=False, model_mode="train")

    def in_mesh(params: Any, tokens: np.ndarray) -> jax.Array:
        with jax.set_mesh(mesh), nnx.logical_axis_rules(config.logical_axis_rules):
            return logits(params, rest, jnp.asarray(tokens))

    leaves = reshard_jax.models.maxtext_weights
    return Trainer(config, random_tree(weights), in_mesh, leaves, _NOTED)


def _is_weight(path: tuple[Any, ...], leaf: object) -> bool:
    return reshard_jax.models.maxtext_weights(".".join(map(str, path)), leaf)


if __name__ == "__main__":
    run("maxtext", _build)
