"""Forms of trainer models against einsum, reshape and transpose, tensor by tensor."""

from __future__ import annotations

import types

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices
from helpers.jax_in_process import move

use_cpu_devices()

import jax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from reshard import LayoutError  # noqa: E402
from reshard_jax.models import tunix_llama3, tunix_qwen3  # noqa: E402

pytestmark = pytest.mark.jax

LAYERS, VOCAB, D, N, K, H, F, E = 2, 24, 16, 4, 2, 4, 12, 4
"""N * H == D on purpose: a square q_proj hides a missing transpose from every test of shapes."""


def leaves_of_tunix(*, is_tied, has_head_norms, has_experts):
    """Returns stored name -> (shape, spec as Tunix shards it over fsdp and tp)."""
    leaves = {
        "embedder.input_embedding": ((VOCAB, D), P("tp", "fsdp")),
        "final_norm.w": ((D,), P("tp")),
    }
    if not is_tied:
        leaves["lm_head.w"] = (D, VOCAB), P("fsdp", "tp")
    for i in range(LAYERS):
        layer = {
            "input_layernorm.w": ((D,), P("tp")),
            "post_attention_layernorm.w": ((D,), P("tp")),
            "attn.q_proj.w": ((D, N, H), P("fsdp", "tp")),
            "attn.k_proj.w": ((D, K, H), P("fsdp", "tp", None)),
            "attn.v_proj.w": ((D, K, H), P("fsdp", "tp")),
            "attn.o_proj.w": ((N, H, D), P("tp", None, "fsdp")),
        }
        if has_head_norms:
            layer |= {"attn.q_norm.w": ((H,), P("tp")), "attn.k_norm.w": ((H,), P("tp"))}
        if has_experts:
            layer |= {
                "mlp.router.kernel": ((D, E), P()),
                "mlp.gate_proj": ((E, D, F), P("fsdp", None, "tp")),
                "mlp.up_proj": ((E, D, F), P("fsdp", None, "tp")),
                "mlp.down_proj": ((E, F, D), P("fsdp", "tp")),
            }
        else:
            layer |= {
                "mlp.gate_proj.kernel": ((D, F), P("fsdp", "tp")),
                "mlp.up_proj.kernel": ((D, F), P("fsdp", "tp")),
                "mlp.down_proj.kernel": ((F, D), P("tp", "fsdp")),
            }
        leaves |= {f"layers.{i}.{name}": value for name, value in layer.items()}
    return leaves


def canonical_tensors(stored, *, is_tied):
    """Returns Hugging Face tensors by name, made with NumPy out of the stored arrays."""
    canonical = {
        "model.embed_tokens.weight": stored["embedder.input_embedding"],
        "model.norm.weight": stored["final_norm.w"],
        "lm_head.weight": stored["embedder.input_embedding"] if is_tied else stored["lm_head.w"].T,
    }
    for name, array in stored.items():
        if not name.startswith("layers."):
            continue
        _, layer, rest = name.split(".", 2)
        prefix = f"model.layers.{layer}."
        if rest in ("attn.q_proj.w", "attn.k_proj.w", "attn.v_proj.w"):
            value = array.reshape(D, -1).T
            np.testing.assert_array_equal(value, np.einsum("dnh->nhd", array).reshape(-1, D))
            canonical[f"{prefix}self_attn.{rest[5:11]}.weight"] = value
        elif rest == "attn.o_proj.w":
            canonical[f"{prefix}self_attn.o_proj.weight"] = array.reshape(N * H, D).T
        elif rest in ("attn.q_norm.w", "attn.k_norm.w"):
            canonical[f"{prefix}self_attn.{rest[5:11]}.weight"] = array
        elif rest.endswith("layernorm.w"):
            canonical[f"{prefix}{rest[:-2]}.weight"] = array
        elif rest == "mlp.router.kernel":
            canonical[f"{prefix}mlp.gate.weight"] = array.T
        elif array.ndim == 3:
            for expert in range(E):
                canonical[f"{prefix}mlp.experts.{expert}.{rest[4:]}.weight"] = array[expert].T
        else:
            canonical[f"{prefix}{rest.removesuffix('.kernel')}.weight"] = array.T
    return canonical


def nested(flat):
    """Returns a tree of dicts out of dotted names, with integer keys for layers as nnx has them."""
    tree = {}
    for name, value in flat.items():
        *parents, last = (int(part) if part.isdigit() else part for part in name.split("."))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


FAMILIES = {
    "qwen3": (tunix_qwen3, {"has_head_norms": True, "has_experts": False}),
    "qwen3 moe": (tunix_qwen3, {"has_head_norms": True, "has_experts": True}),
    "llama3": (tunix_llama3, {"has_head_norms": False, "has_experts": False}),
}


def config_of(is_tied):
    return types.SimpleNamespace(
        num_layers=LAYERS, use_tied_embedding=is_tied, weight_tying=is_tied
    )


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_tunix_model(family, is_tied):
    forms, options = FAMILIES[family]
    leaves = leaves_of_tunix(is_tied=is_tied, **options)
    stored = {
        name: jax_patterns.values(name, shape, "float32") for name, (shape, _) in leaves.items()
    }
    mesh = Mesh(np.array(jax.devices())[:4].reshape(2, 2), ("fsdp", "tp"))
    params = nested(
        {
            name: jax.device_put(stored[name], NamedSharding(mesh, spec))
            for name, (_, spec) in leaves.items()
        }
    )
    expected = canonical_tensors(stored, is_tied=is_tied)
    engine = Mesh(np.array(jax.devices())[[6, 3]], ("tp",))
    template = {
        name: jax.ShapeDtypeStruct(
            value.shape, value.dtype, sharding=NamedSharding(engine, P("tp"))
        )
        for name, value in expected.items()
    }
    result = move(params, template, src_forms=forms(config_of(is_tied)))
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        found = np.asarray(result[name])
        np.testing.assert_array_equal(found.view(np.uint32), value.view(np.uint32), err_msg=name)


def test_case_a8_a_square_kernel_is_transposed_by_its_rule():
    forms = tunix_qwen3(config_of(False))
    stored = jax_patterns.values("q", (4, 2, 2), "float32")
    sharding = NamedSharding(Mesh(np.array(jax.devices())[:2], ("x",)), P("x"))
    params = nested({"layers.1.attn.q_proj.w": jax.device_put(stored, sharding)})
    name = "model.layers.1.self_attn.q_proj.weight"
    template = {name: jax.ShapeDtypeStruct((4, 4), np.float32, sharding=sharding)}
    found = np.asarray(move(params, template, src_forms=forms)[name])
    np.testing.assert_array_equal(found, stored.reshape(4, 4).T)
    assert not np.array_equal(found, stored.reshape(4, 4))


def test_case_a9_a_destination_that_keeps_its_kernel_transposed_declares_it():
    stored = jax_patterns.values("w", (4, 6), "float32")
    sharding = NamedSharding(Mesh(np.array(jax.devices())[:2], ("x",)), P("x"))
    params = {"w": jax.device_put(stored, sharding)}
    template = {"kernel": jax.ShapeDtypeStruct((6, 4), np.float32, sharding=sharding)}
    from reshard import Form, Part, PlanError

    found = move(params, template, dst_forms={"kernel": (Part("w", Form("a b -> b a")),)})
    np.testing.assert_array_equal(np.asarray(found["kernel"]), stored.T)
    with pytest.raises(PlanError, match=r"w: .*\(4, 6\).*\(6, 4\)"):
        move(params, template, dst_forms={"kernel": (Part("w"),)})


def test_case_d32_one_tied_tensor_fills_destinations_of_both_names():
    forms = tunix_qwen3(config_of(True))
    (part,) = forms("embedder.input_embedding", (VOCAB, D))
    assert part.names == ("model.embed_tokens.weight", "lm_head.weight")
    (part,) = tunix_qwen3(config_of(False))("embedder.input_embedding", (VOCAB, D))
    assert part.names == ("model.embed_tokens.weight",)


@pytest.mark.parametrize(
    "name",
    [
        "layers.2.input_layernorm.w",
        "layers.0.attn.q_proj.w_lora_a",
        "layers.0.attn.q_proj.kernel",
        "rngs.count",
        "lm_head.w",
    ],
)
def test_a_leaf_without_a_rule_is_refused_by_name(name):
    with pytest.raises(LayoutError, match=r"tunix_qwen3 has no rule for this leaf.*num_layers=2"):
        tunix_qwen3(config_of(True))(name, (4, 4))


@pytest.mark.parametrize("family", [tunix_llama3, tunix_qwen3])
def test_the_engines_configuration_is_refused(family):
    config = types.SimpleNamespace(num_hidden_layers=2, tie_word_embeddings=True)
    with pytest.raises(
        LayoutError, match=rf"{family.__name__}: .* has no num_layers and no .* Give the M"
    ):
        family(config)


def test_llama_has_no_head_norms_and_no_experts():
    for name in ("layers.0.attn.q_norm.w", "layers.0.mlp.gate_proj", "layers.0.mlp.router.kernel"):
        with pytest.raises(LayoutError, match="tunix_llama3 has no rule"):
            tunix_llama3(config_of(True))(name, (4,))
