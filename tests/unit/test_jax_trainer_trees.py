"""Forms of trainers' trees against NumPy, leaf by leaf: every leaf, every tensor, both ways."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.trainer_oracle import TREES, canonical_of, canonical_shapes, config_of, values_of

from reshard import (
    Form,
    Layout,
    LayoutError,
    Mesh,
    Part,
    PlanError,
    TensorSpec,
    make_plan,
    parts_of,
    run_in_process,
)

pytest.importorskip("jax", reason="needs JAX: pip install reshard[jax]")
from reshard_jax import models

pytestmark = pytest.mark.jax

HERE = Layout.replicated(Mesh.of(x=1))
WITH_ELEMENTWISE = ("maxtext llama", "maxtext gemma3")
FUNCTIONS = {
    "tunix qwen3": models.tunix_qwen3,
    "tunix llama3": models.tunix_llama3,
    "tunix gemma3": models.tunix_gemma3,
    "maxtext llama": models.maxtext_llama,
    "maxtext qwen3 moe": models.maxtext_qwen3_moe,
    "maxtext qwen3": models.maxtext_qwen3,
    "maxtext gemma3": models.maxtext_gemma3,
    "maxtext deepseek": models.maxtext_deepseek,
}
NORMALIZER = 5.65625
"""sqrt(32) in bfloat16, by hand: 5.6568 lies between 5.65625 and 5.6875."""


def forms_of(case, **changes):
    name = next(name for name in FUNCTIONS if case.startswith(name))
    return FUNCTIONS[name](config_of(TREES[case], **changes))


def stored_specs(forms, leaves):
    return [
        TensorSpec(name, leaf.shape, "float32", HERE, parts_of(forms, name, leaf.shape))
        for name, leaf in leaves.items()
    ]


def canonical_specs(shapes):
    return [TensorSpec(name, shape, "float32", HERE) for name, shape in shapes.items()]


def moved(src_specs, src_values, dst_specs):
    plan = make_plan(src_specs, [spec.shifted(1) for spec in dst_specs])
    plan.check()
    out = {spec.name: np.full(spec.shape, np.nan, np.float32) for spec in dst_specs}
    run_in_process(plan, {0: src_values}, {1: out})
    return out


def to_canonical(case, forms, leaves):
    return moved(
        stored_specs(forms, leaves), leaves, canonical_specs(canonical_shapes(TREES[case]))
    )


def wrong_names(found, expected):
    return {name for name, value in expected.items() if not same(found[name], value)}


def same(one, other):
    return one.shape == other.shape and bool(
        (one.view(np.int32) == np.ascontiguousarray(other).view(np.int32)).all()
    )


@pytest.mark.parametrize("case", TREES)
def test_every_tensor_of_a_tree_both_ways(case):
    forms, leaves = forms_of(case), values_of(TREES[case])
    expected = canonical_of(case, leaves, NORMALIZER)
    assert expected.keys() == canonical_shapes(TREES[case]).keys()
    found = to_canonical(case, forms, leaves)
    assert wrong_names(found, expected) == set()
    back = moved(canonical_specs(canonical_shapes(TREES[case])), found, stored_specs(forms, leaves))
    if case.startswith(WITH_ELEMENTWISE):
        for name, leaf in leaves.items():
            np.testing.assert_allclose(back[name], leaf, rtol=0, atol=5e-7, err_msg=name)
    else:
        assert wrong_names(back, leaves) == set()


def test_the_trees_are_those_of_all_families_scanned_and_not():
    assert len(TREES) == 24
    assert {next(name for name in FUNCTIONS if case.startswith(name)) for case in TREES} == set(
        FUNCTIONS
    )
    for family in (
        "llama",
        "llama 3.1",
        "qwen3",
        "qwen3 moe",
        "gemma3",
        "deepseek v2",
        "deepseek v3",
    ):
        assert {f"maxtext {family} scanned", f"maxtext {family} unscanned"} <= TREES.keys()


# ---- negative controls: what is wrong is found, and nothing else


@pytest.mark.parametrize("way", ["scanned", "unscanned"])
def test_case_d31_another_rope_permutation_is_found(way):
    case = f"maxtext llama 3.1 {way}"
    leaves = values_of(TREES[case])
    found = to_canonical(case, forms_of(case, rope_type="default"), leaves)
    expected = canonical_of(case, leaves)
    assert wrong_names(found, expected) == {
        name for name in expected if name.endswith(("q_proj.weight", "k_proj.weight"))
    }


def test_case_d31_the_permutation_and_its_inverse():
    query = forms_of("maxtext llama 3.1 unscanned")(
        "decoder.layers_0.self_attention.query.kernel", (2, 1, 8)
    )
    (part,) = query
    leaf = np.arange(16, dtype=np.float32).reshape(2, 1, 8)
    src = TensorSpec("q", leaf.shape, "float32", HERE, (Part("q", part.form),))
    dst = TensorSpec("q", (8, 2), "float32", HERE)
    canonical = moved([src], {"q": leaf}, [dst])["q"]
    assert canonical[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    lanes = np.tile(np.arange(8, dtype=np.float32)[:, None], 2)
    stored = moved([dst], {"q": lanes}, [src])["q"]
    assert stored[0, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("case", ["maxtext qwen3 unscanned", "tunix qwen3 tied"])
@pytest.mark.parametrize("projection", ["q_proj", "o_proj"])
def test_case_a8_a_missed_transpose_of_a_square_kernel_is_found(case, projection):
    right, leaves = forms_of(case), values_of(TREES[case])
    wanted = f"model.layers.1.self_attn.{projection}.weight"

    def forms(name, shape):
        (part,) = right(name, shape)
        if part.name != wanted:
            return part
        dims = part.form.pattern.split("->")[0].split()
        rows = "a (b c)" if projection == "q_proj" else "(a b) c"
        return Part(wanted, Form(f"a b c -> {rows}")) if len(dims) == 3 else part

    found, expected = to_canonical(case, forms, leaves), canonical_of(case, leaves)
    assert wrong_names(found, expected) == {wanted}


def test_case_d28_layers_of_a_cycle_in_another_order_are_found():
    case = "maxtext gemma3 scanned"
    right, leaves = forms_of(case), values_of(TREES[case])

    def forms(name, shape):
        def renamed(part):
            layer = re.match(r"model\.layers\.(\d+)\.", part.name)
            if layer is None or int(layer[1]) >= 12:
                return part
            block, step = int(layer[1]) % 6, int(layer[1]) // 6
            number = 2 * block + step  # as if each stack held neighbours
            return replace_name(part, f"model.layers.{number}.{part.name[layer.end() :]}")

        return tuple(map(renamed, right(name, shape)))

    wrong = wrong_names(to_canonical(case, forms, leaves), canonical_of(case, leaves, NORMALIZER))
    numbers = {int(name.split(".")[2]) for name in wrong}
    assert numbers == set(range(1, 11))


def replace_name(part, name):
    return Part(name, part.form, part.aliases, part.elementwise)


@pytest.mark.parametrize("case", ["maxtext deepseek v3 scanned", "tunix gemma3 qkv"])
def test_case_d30_a_leaf_that_is_not_there_is_named(case):
    leaves = values_of(TREES[case])
    gone = next(name for name in leaves if name.endswith(("wkv_b.kernel", "qkv_einsum.w")))
    names = [part.name for part in forms_of(case)(gone, leaves[gone].shape)]
    del leaves[gone]
    with pytest.raises(PlanError) as error:
        to_canonical(case, forms_of(case), leaves)
    assert all(name in str(error.value) for name in names[:3])


# ---- values


def test_case_d24_the_norm_offset_is_applied_once():
    case = "maxtext gemma3 unscanned"
    (part,) = forms_of(case)("decoder.layers_3.pre_ffw_norm.scale", (32,))
    assert part.name == "model.layers.3.pre_feedforward_layernorm.weight"
    src = TensorSpec("w", (2,), "float32", HERE, (replace_name(part, "w"),))
    found = moved(
        [src], {"w": np.array([1.1, 0.8], np.float32)}, [TensorSpec("w", (2,), "float32", HERE)]
    )["w"]
    np.testing.assert_array_equal(found, np.array([1.1, 0.8], np.float32) - np.float32(1))


@pytest.mark.parametrize(
    ("options", "divisor"), [({}, 50.5), ({"normalizer_dtype": np.float32}, 50.596443176269531)]
)
def test_case_d25_the_normalizer_is_rounded_to_the_dtype_of_the_engine(options, divisor):
    config = config_of(TREES["maxtext gemma3 scanned"], emb_dim=2560)
    (part,) = models.maxtext_gemma3(config, **options)("token_embedder.embedding", (40, 2560))
    assert part.elementwise.divisor == divisor
    assert part.names == ("model.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize("case", ["maxtext llama scanned", "maxtext llama 3.1 unscanned"])
def test_queries_are_multiplied_and_keys_are_not(case):
    forms, leaves = forms_of(case), values_of(TREES[case])
    parts = [part for name, leaf in leaves.items() for part in forms(name, leaf.shape)]
    scaled = {part.name.split(".")[-2] for part in parts if part.elementwise is not None}
    assert scaled == {"q_proj"}
    scales = {part.elementwise.scale for part in parts if part.elementwise is not None}
    assert scales == {float(np.float32(8) ** np.float32(0.5))}


# ---- what is read of the configuration


@pytest.mark.parametrize(
    "case",
    ["maxtext llama scanned", "maxtext qwen3 scanned", "maxtext gemma3 scanned"],
)
def test_rows_of_padding_are_left_out(case):
    name = next(name for name in FUNCTIONS if case.startswith(name))
    forms = FUNCTIONS[name](config_of(TREES[case]), vocab_size=37)
    (part,) = forms("token_embedder.embedding", (40, 32))
    assert part.resolve((40, 32)).canonical_shape == (37, 32)
    if not TREES[case]["config"]["logits_via_embedding"]:
        (part,) = forms("decoder.logits_dense.kernel", (32, 40))
        assert part.resolve((32, 40)).canonical_shape == (37, 32)
    with pytest.raises(LayoutError, match=r"vocab_size=41 is not within the 40 rows"):
        FUNCTIONS[name](config_of(TREES[case]), vocab_size=41)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("maxtext qwen3 scanned", {"decoder_block": "llama2"}, "decoder_block is 'llama2'"),
        ("maxtext llama scanned", {"decoder_block": "qwen3"}, "decoder_block is 'qwen3'"),
        ("maxtext qwen3 scanned", {"normalize_embedding_logits": True}, "=False in the trainer"),
        ("maxtext gemma3 scanned", {"normalize_embedding_logits": False}, "=True in the trainer"),
        ("maxtext deepseek v3 scanned", {"rope_type": "default"}, "rotates halves of a head"),
        ("maxtext deepseek v3 scanned", {"rope_interleave": False}, "rotates halves of a head"),
    ],
)
def test_configurations_of_other_models_are_refused(case, changes, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        forms_of(case, **changes)


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS.values()), key=lambda f: f.__name__))
def test_the_engines_configuration_is_refused(function):
    engine = config_of({"config": {"num_hidden_layers": 2, "tie_word_embeddings": True}})
    with pytest.raises(LayoutError, match=rf"{function.__name__}: .* has no .* Give the "):
        function(engine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_decoder_layers": 4}, "4 of them layers along dim 1"),
        ({"param_scan_axis": 0}, "3 of them layers along dim 0"),
    ],
)
def test_a_stack_of_another_shape_is_refused(changes, message):
    forms = forms_of("maxtext qwen3 scanned", **changes)
    with pytest.raises(LayoutError, match=message):
        forms("decoder.layers.mlp.wi_0.kernel", (32, 3, 48))


def test_case_d29_random_number_states_are_no_weights():
    assert not models.maxtext_weights("decoder.moe_layers.rngs.params.key", None)
    assert not models.maxtext_weights("decoder.rngs.dropout.count", None)
    assert models.maxtext_weights(
        "decoder.moe_layers.DeepSeekMoeBlock_0.MoeBlock_0.gate.bias", None
    )
    with pytest.raises(LayoutError, match="maxtext_qwen3 has no rule for this leaf"):
        forms_of("maxtext qwen3 scanned")("decoder.rngs.dropout.count", ())


@pytest.mark.parametrize(
    "name",
    [
        "decoder.layers_0.mlp.wi_0.kernel",
        "decoder.layers.self_attention.query.bias",
        "decoder.layers.self_attention.qkv_proj.kernel",
        "layers.mlp.wi_0.kernel",
        "decoder.layers",
    ],
)
def test_a_leaf_without_a_rule_is_refused_by_name(name):
    with pytest.raises(
        LayoutError, match=rf"{name}: maxtext_qwen3 has no rule.*exclude it with leaves"
    ):
        forms_of("maxtext qwen3 scanned")(name, (32, 3, 48))


def test_padded_experts_have_another_shape_than_the_engines():
    forms = forms_of("maxtext qwen3 moe scanned on 0, wi in one")
    parts = forms("decoder.layers.moe_block.wi", (3, 4, 32, 2 * 64))
    assert {part.resolve((3, 4, 32, 128)).canonical_shape for part in parts} == {(64, 32)}


def test_names_of_tunixs_adapter_for_maxtext_are_known():
    forms = forms_of("maxtext qwen3 scanned")
    for name, shape in (
        ("token_embedder.embedding", (40, 32)),
        ("decoder.decoder_norm.scale", (32,)),
    ):
        assert forms(f"base.{name}", shape) == forms(name, shape)


@pytest.mark.parametrize("case", ["tunix gemma3 qkv", "maxtext gemma3 scanned"])
def test_the_prefix_of_a_model_with_vision(case):
    name = next(name for name in FUNCTIONS if case.startswith(name))
    forms = FUNCTIONS[name](config_of(TREES[case]), prefix="model.language_model.")
    names = {
        part.name
        for leaf, shape in TREES[case]["leaves"].items()
        for part in forms(leaf, tuple(shape))
    }
    assert all(name.startswith("model.language_model.") for name in names)
    assert "model.language_model.layers.13.mlp.up_proj.weight" in names
