"""Rules and layers from names, one row per kind of name."""

from __future__ import annotations

import pytest

from reshard.sharding_rules import layer_of_name, place_of_expert, rule_of_name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("model.embed_tokens.weight", "vocab"),
        ("backbone.embeddings.weight", "vocab"),
        ("lm_head.weight", "vocab"),
        ("model.layers.61.shared_head.head.weight", "vocab"),
        ("model.layers.0.self_attn.q_proj.weight", "column"),
        ("model.layers.0.self_attn.q_proj.bias", "column"),
        ("model.layers.0.self_attn.k_proj.weight", "kv"),
        ("model.layers.0.self_attn.v_proj.bias", "kv"),
        ("model.layers.0.self_attn.o_proj.weight", "row"),
        ("model.layers.0.self_attn.o_proj.bias", "replicated"),
        ("model.layers.0.self_attn.q_norm.weight", "replicated"),
        ("model.layers.0.self_attn.q_a_proj.weight", "replicated"),
        ("model.layers.0.self_attn.q_b_proj.weight", "column"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "replicated"),
        ("model.layers.0.self_attn.kv_b_proj.weight_scale_inv", "column"),
        ("model.layers.0.mlp.gate.weight", "replicated"),
        ("model.layers.0.mlp.gate.e_score_correction_bias", "replicated"),
        ("model.layers.0.mlp.gate_proj.weight", "column"),
        ("model.layers.0.mlp.down_proj.weight_scale_inv", "row"),
        ("model.layers.0.mlp.experts.gate_proj.weight", "expert_column"),
        ("model.layers.0.mlp.experts.31.down_proj.weight", "expert_row"),
        ("model.layers.0.block_sparse_moe.experts.3.w2.weight", "expert_row"),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", "column"),
        ("backbone.layers.0.mixer.norm.weight", "column"),
        ("backbone.layers.0.norm.weight", "replicated"),
        ("backbone.layers.0.mixer.conv1d.bias", "column"),
        ("backbone.layers.1.mixer.fc2_latent_proj.weight", "replicated"),
        ("model.norm.weight", "replicated"),
        ("backbone.norm_f.weight", "replicated"),
        ("model.layers.0.mlp.surprise.weight", None),
        ("model.layers.0.mlp.my_gate_proj.weight", None),
        ("model.layers.0.mlp.gate_proj.weight.extra", None),
    ],
)
def test_rules(name, rule):
    assert rule_of_name(name) == rule


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.0.input_layernorm.weight", 0),
        ("language_model.model.layers.12.mlp.gate.weight", 12),
        ("model.language_model.layers.3.mlp.gate.weight", 3),
        ("backbone.layers.107.norm.weight", 107),
        ("model.embed_tokens.weight", "first"),
        ("model.norm.weight", "last"),
        ("backbone.norm_f.weight", "last"),
        ("lm_head.weight", "last"),
        ("language_model.lm_head.weight", "last"),
        ("vision_tower.encoder.layers.4.self_attn.q_proj.weight", "first"),
        ("vision_tower.norm.weight", "first"),
    ],
)
def test_layers(name, layer):
    assert layer_of_name(name) == layer


def test_experts_have_a_place_in_a_stack():
    name = "model.layers.3.mlp.experts.{}up_proj.weight"
    assert place_of_expert(name.format("7.")) == (name.format(""), 7)
    assert place_of_expert(name.format("")) is None
    assert place_of_expert("model.layers.3.mlp.shared_experts.up_proj.weight") is None
