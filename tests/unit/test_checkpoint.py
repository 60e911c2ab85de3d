"""Checkpoints with and without shard files give the same model; all that can be wrong is named."""

from __future__ import annotations

import json
import math

import pytest
from helpers.checkpoints import CONFIGS, header_bytes, names_of, write_checkpoint

from reshard import LayoutError, Model, Parallelism, UnsupportedError

DTYPES = {"BF16": "bfloat16", "F32": "float32", "F8_E4M3": "float8_e4m3fn"}
FAMILIES = sorted(CONFIGS)


def edit(path, change):
    found = json.loads(path.read_text())
    path.write_text(json.dumps(change(found) or found))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("headers", [0, 1, 2])
def test_types_and_shapes_from_headers_and_from_the_configuration(family, headers, tmp_path):
    index = write_checkpoint(tmp_path / family, family, headers=headers)
    model = Model.load(index)
    expected = {name: (DTYPES[dtype], shape) for name, (dtype, shape) in names_of(family).items()}
    found = {p.name: (str(p.dtype), p.shape) for p in model.parameters}
    assert found == expected
    assert (model.name, model.unknown_names) == (family, ())
    assert [note.split(" ")[0] for note in model.notes] == ["shapes"] * (headers < 2)
    assert Model.load(index.parent) == model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_can_be_laid_out_stacked_and_saved(family, tmp_path):
    index = write_checkpoint(tmp_path / family, family)
    for experts in ("separate", "stacked"):
        model = Model.load(index, experts=experts)
        specs = Parallelism.parse("pp2,tp2,ep2,dp2").specs(model)
        assert len(specs) == len(model.parameters)
        (tmp_path / "model.json").write_text(model.to_json())
        assert Model.load(tmp_path / "model.json") == model
        assert len(model.to_json()) < 12_000


def test_rules_layers_heads_and_experts(tmp_path):
    model = Model.load(write_checkpoint(tmp_path / "m", "qwen3_moe"))
    by_name = {parameter.name: parameter for parameter in model.parameters}
    key = by_name["model.layers.2.self_attn.k_proj.weight"]
    assert (key.rule, key.layer, key.num_kv_heads) == ("kv", 2, 2)
    expert = by_name["model.layers.1.mlp.experts.3.down_proj.weight"]
    assert (expert.rule, expert.expert, expert.num_experts) == ("expert_row", 3, 4)
    assert model.num_layers == 3
    assert [p.layer for p in model.parameters][0 :: len(model.parameters) - 1] == ["first", "last"]


def test_layers_that_predict_further_tokens_lie_in_the_last_stage(tmp_path):
    model = Model.load(write_checkpoint(tmp_path / "m", "deepseek_v3"))
    assert model.num_layers == 2
    further = [p for p in model.parameters if ".layers.2." in p.name]
    assert further
    assert {parameter.layer for parameter in further} == {"last"}


def test_the_index_of_the_real_qwen3_gives_the_ready_made_model(tmp_path):
    ready = Model.load("qwen3-235b", experts="separate")
    config = {
        "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "hidden_size": 4096,
        "vocab_size": 151936, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_experts": 128, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "num_hidden_layers": 94,
    }  # fmt: skip
    index = {
        "metadata": {"total_size": 470187269120},
        "weight_map": {p.name: "model-00001-of-00118.safetensors" for p in ready.parameters},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = Model.load(tmp_path)
    assert set(model.parameters) == set(ready.parameters)
    assert model.notes == ("shapes of 36945 of 36945 parameters follow from config.json",)


def test_one_file_of_weights(tmp_path):
    tensors = names_of("llama")
    (tmp_path / "model.safetensors").write_bytes(header_bytes(tensors))
    with_config = {"num_kv_heads": 2, "notes": ()}
    without = {"num_kv_heads": None}
    for expected in (without, with_config):
        model = Model.load(tmp_path)
        assert model == Model.load(tmp_path / "model.safetensors")
        assert {p.name: p.shape for p in model.parameters} == {
            n: s for n, (_, s) in tensors.items()
        }
        heads = {p.num_kv_heads for p in model.parameters if p.rule == "kv"}
        assert heads == {expected["num_kv_heads"]}
        assert bool(model.notes) == (expected is without)
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))


def test_unknown_names_are_replicated_and_told(tmp_path):
    tensors = {"model.layers.0.surprise": ("BF16", (4,)), "lm_head.weight": ("BF16", (4, 2))}
    (tmp_path / "tiny.safetensors").write_bytes(header_bytes(tensors))
    model = Model.load(tmp_path / "tiny.safetensors")
    assert model.unknown_names == ("model.layers.0.surprise",)
    assert [p.rule for p in model.parameters] == ["replicated", "vocab"]
    assert model.name == "tiny"


def test_a_git_checkout_without_its_large_files_has_none(tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3", headers=2)
    expected = Model.load(index).parameters
    for path in index.parent.glob("*.safetensors"):
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert Model.load(index).parameters == expected


def test_a_total_size_that_disagrees_is_told(tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3", headers=2)
    edit(index, lambda found: found["metadata"].update(total_size=7))
    (note,) = Model.load(index).notes
    assert "total_size 7" in note


def test_layers_that_are_missing_are_told(tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3", headers=2)
    num_layers = Model.load(index).num_layers
    edit(
        index.with_name("config.json"), lambda found: found.update(num_hidden_layers=num_layers + 3)
    )
    (note,) = Model.load(index).notes
    assert f"says {num_layers + 3} layers, but parameters are there of {num_layers} only" in note


CONFIG_ERRORS = [
    ({"model_type": "mamba"}, "model_type 'mamba' do not follow .* qwen3_moe"),
    ({"model_type": None}, "model_type None"),
    ({"torch_dtype": None}, "says no torch_dtype or dtype"),
    ({"hidden_size": None}, "lacks hidden_size"),
    ({"hidden_size": "8"}, "hidden_size is '8'"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIG_ERRORS)
def test_configurations_that_are_refused(changes, message, tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3")
    edit(index.parent / "config.json", lambda found: found.update(changes))
    with pytest.raises(LayoutError, match=message):
        Model.load(index)


def test_unknown_quantisation_is_refused(tmp_path):
    index = write_checkpoint(tmp_path / "m", "deepseek_v3")
    edit(index.parent / "config.json", lambda found: found.pop("quantization_config") and None)
    with pytest.raises(LayoutError, match="is quantised, but quantization_config has no"):
        Model.load(index)


def test_parameters_whose_shape_cannot_be_known_are_named(tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3")
    extra = {f"model.layers.0.extra{i}.weight": "more.safetensors" for i in range(7)}
    edit(index, lambda found: found["weight_map"].update(extra))
    with pytest.raises(LayoutError, match=r"7 parameters .*extra4\.weight and 2 more.*more\.saf"):
        Model.load(index)


INDEX_ERRORS = [
    (lambda found: {"weight_map": {}}, "no weight_map"),
    (lambda found: {"weight_map": [1]}, "no weight_map"),
    (lambda found: {"weight_map": {"w": "../w.safetensors"}}, "in file '../w.safetensors'"),
    (lambda found: {"weight_map": {"w": "/w.safetensors"}}, "in file '/w.safetensors'"),
    (lambda found: {"weight_map": {"w": ".."}}, "in file '..'"),
    (lambda found: {"weight_map": {"w": 3}}, "in file 3"),
    (lambda found: {**found, "metadata": {"total_size": "7"}}, "total_size is '7'"),
    (lambda found: {**found, "metadata": {"total_size": -7}}, "total_size is -7"),
]


@pytest.mark.parametrize(("change", "message"), INDEX_ERRORS)
def test_indices_that_are_refused(change, message, tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3")
    edit(index, change)
    with pytest.raises(LayoutError, match=message):
        Model.load(index)


def test_missing_files(tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3")
    (index.parent / "config.json").unlink()
    with pytest.raises(LayoutError, match=r"missing, such as model-00001.*no config\.json"):
        Model.load(index)
    with pytest.raises(LayoutError, match=r"has neither model\.safetensors\.index\.json nor"):
        Model.load(tmp_path)


def test_an_index_of_another_checkpoint(tmp_path):
    index = write_checkpoint(tmp_path / "m", "qwen3", headers=2)
    edit(index, lambda found: found["weight_map"].update(w="model-00001-of-00002.safetensors"))
    with pytest.raises(LayoutError, match="lacks w, which"):
        Model.load(index)


ENTRY = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
HEADER_ERRORS = [
    (b"", "would have 0 bytes"),
    (b"\x01\0\0\0\0\0\0\0{", "would have 1 bytes"),
    (b"\xff" * 20, "From 2 to 100000000 are right"),
    (b"\x09\0\0\0\0\0\0\0{}", "ends after 2 of the 9 bytes.* first 17 bytes"),
    (b"\x02\0\0\0\0\0\0\0{]", "not JSON"),
    (b"\x02\0\0\0\0\0\0\0[]", "a list, not an object"),
    ({"w": 3}, "w: 3 lacks one of"),
    ({"w": {"dtype": "BF16"}}, "lacks one of dtype, shape, data_offsets"),
    ({"w": {**ENTRY, "shape": [2, -2]}}, "must be lists of whole numbers"),
    ({"w": {**ENTRY, "shape": 4}}, "must be lists of whole numbers"),
    ({"w": {**ENTRY, "data_offsets": [0]}}, "must be lists of whole numbers"),
    ({"w": {**ENTRY, "data_offsets": [0, 9]}}, "has 8 bytes, its data_offsets .* span 9"),
]


@pytest.mark.parametrize(("content", "message"), HEADER_ERRORS)
def test_headers_that_are_refused(content, message, tmp_path):
    if isinstance(content, dict):
        text = json.dumps(content).encode()
        content = len(text).to_bytes(8, "little") + text
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(LayoutError, match=message):
        Model.load(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.999999999.input_layernorm.weight", "num_layers=1000000000 is not from"),
        ("model.layers.0.mlp.experts.07.down_proj.weight", "needs 3 dims or more"),
    ],
)
def test_names_that_are_refused(name, message, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(header_bytes({name: ("BF16", (4, 2))}))
    with pytest.raises(LayoutError, match=message):
        Model.load(tmp_path / "w.safetensors")


def test_elements_of_less_than_a_byte_are_refused(tmp_path):
    text = json.dumps({"w": {**ENTRY, "dtype": "F4"}}).encode()
    (tmp_path / "w.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(UnsupportedError, match="dtype 'F4' is none of"):
        Model.load(tmp_path / "w.safetensors")


def test_sizes_of_a_checkpoint_follow_its_shapes(tmp_path):
    model = Model.load(write_checkpoint(tmp_path / "m", "llama"))
    assert model.num_elements == sum(math.prod(shape) for _, shape in names_of("llama").values())
    assert model.nbytes == 2 * model.num_elements
