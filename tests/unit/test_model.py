"""Ready-made models against the files they were made from; experts both ways; what is refused."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from helpers.original_models import ORIGINAL_MODELS as NAMES
from helpers.original_models import original_model

from reshard import DType, LayoutError, Model
from reshard.parameter import Parameter

RULES = {
    "rep": {"replicated"},
    "col": {"column", "vocab"},
    "col1": {"column"},
    "row": {"row"},
    "kv": {"kv"},
    "exp_col": {"expert_column"},
    "exp_row": {"expert_row"},
}
LAYERS = {-1: "first", -2: "last"}


def small(**changes):
    parameters = (
        Parameter("model.embed_tokens.weight", (10, 4), "bfloat16", "vocab", "first"),
        Parameter("model.layers.0.mlp.experts.up_proj.weight", (2, 6, 4), "bfloat16",
                  "expert_column", 0),
        Parameter("model.layers.0.mlp.experts.down_proj.weight", (2, 4, 6), "bfloat16",
                  "expert_row", 0),
        Parameter("model.layers.1.mlp.up_proj.weight", (6, 4), "float32", "column", 1),
    )  # fmt: skip
    return Model(**{"name": "small", "parameters": parameters, "num_layers": 2, **changes})


def test_all_models_are_there():
    assert Model.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_made_model_is_its_original_model(name):
    model, file = Model.load(name), original_model(name)
    assert (model.name, model.source) == (name, file["source"])
    assert model.num_layers == file["layers"]
    assert len(model.parameters) == len(file["parameters"])
    for parameter, row in zip(model.parameters, file["parameters"], strict=True):
        assert parameter.name == row["name"]
        assert parameter.shape == tuple(row["shape"])
        assert str(parameter.dtype) == file["dtype"]
        assert parameter.rule in RULES[row["rule"]]
        assert (parameter.rule == "vocab") == (row["rule"] == "col" and row["layer"] < 0)
        assert parameter.layer == LAYERS.get(row["layer"], row["layer"])
        assert parameter.num_kv_heads == row.get("kv_heads")


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_of_ready_made_models_are_those_of_their_names(name):
    from reshard.sharding_rules import layer_of_name, rule_of_name

    for parameter in Model.load(name).parameters:
        assert parameter.rule == rule_of_name(parameter.name)
        assert parameter.layer == layer_of_name(parameter.name)


def test_sizes_of_models():
    assert str(Model.load("synth-2.8t")) == (
        "synth-2.8t: 1035 parameters in 61 layers, 2803.3 G elements, 5606.5 GB"
    )


@pytest.mark.parametrize(
    ("shape", "text"),
    [((3,), "3 elements, 6 B"), ((2000,), "2.0 k elements, 4.0 kB"), ((1200, 1000), "1.2 M ele")],
)
def test_small_models_say_their_size_in_units_that_suit_it(shape, text):
    model = Model("m", (Parameter("w", shape, "bfloat16", "replicated", "first"),), 0)
    assert str(model).startswith(f"m: 1 parameters in 0 layers, {text}")


@pytest.mark.parametrize("name", NAMES)
def test_json_gives_a_model_back_and_is_short(name, tmp_path):
    for experts in ("stacked", "separate"):
        model = Model.load(name, experts=experts)
        text = model.to_json()
        assert len(text) < 5000
        (tmp_path / "model.json").write_text(text)
        assert Model.load(tmp_path / "model.json") == model


def test_json_of_irregular_models_lists_parameters(tmp_path):
    shuffled = small(parameters=tuple(reversed(small().parameters)))
    mixed = dataclasses.replace(
        small(), parameters=small().with_experts("separate").parameters[:-2], notes=("a", "b")
    )
    for model in (small(), shuffled, mixed, mixed.with_experts("separate"), small(parameters=())):
        (tmp_path / "model.json").write_text(model.to_json())
        assert Model.load(tmp_path / "model.json") == model


def test_experts_one_by_one_and_back():
    model = Model.load("qwen3-235b")
    separate = model.with_experts("separate")
    assert len(separate.parameters) == 36_945
    assert (separate.num_elements, separate.nbytes) == (model.num_elements, model.nbytes)
    names = [parameter.name for parameter in separate.parameters]
    first = names.index("model.layers.0.mlp.experts.0.gate_proj.weight")
    assert names[first + 1 : first + 4] == [
        "model.layers.0.mlp.experts.0.up_proj.weight",
        "model.layers.0.mlp.experts.0.down_proj.weight",
        "model.layers.0.mlp.experts.1.gate_proj.weight",
    ]
    assert separate.with_experts("stacked") == model
    assert separate.with_experts("separate") == separate
    assert Model.load("qwen3-235b", experts="separate") == separate


def test_values():
    model = small()
    names = {"Model": Model, "Parameter": Parameter, "DType": DType}
    assert eval(repr(model), names) == model
    assert pickle.loads(pickle.dumps(model)) == model
    assert hash(model) == hash(small())


def test_stages_are_published_or_balanced():
    model = Model.load("deepseek-v3")
    assert model.layers_per_stage(16) == (3, *[4] * 14, 2)
    assert model.layers_per_stage(4) == (16, 15, 15, 15)
    assert small().stage_of_layers((1, 1)) == (0, 1)
    assert small(num_layers=5).layers_per_stage(2) == (3, 2)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: small(parameters=small().parameters * 2), "comes twice"),
        (lambda: small(num_layers=1), "in layer 1, but the model has 1 layers"),
        (lambda: small(num_layers=10**9), "num_layers=1000000000 is not from 0 to 100000"),
        (lambda: small(num_layers=True), "num_layers=True"),
        (lambda: small(pipeline_splits=((1, 2),)), r"of 1\+2 layers are 3 layers"),
        (lambda: small(pipeline_splits=((),)), "0 pipeline stages"),
        (lambda: small().layers_per_stage(3), "pp=3 stages for 2 layers.* from 1 to 2"),
        (lambda: small().layers_per_stage(0), "pp=0 stages"),
        (lambda: small().stage_of_layers((3, -1)), "2 pipeline stages"),
        (lambda: small().with_experts("bundled"), "experts='bundled' is unknown"),
        (lambda: Model.load("qwen4"), "'qwen4' is no ready-made one and no file.*qwen3-235b"),
        (lambda: Model.load(3), "3 is neither a name nor a path"),
    ],
)
def test_refused(act, message):
    with pytest.raises(LayoutError, match=message):
        act()


def separate_with(change):
    parameters = list(small().with_experts("separate").parameters)
    change(parameters)
    return small(parameters=parameters)


def rename(old, new):
    def change(parameters):
        parameters[1] = Parameter(
            parameters[1].name.replace(old, new), (6, 4), "bfloat16", "expert_column", 0,
            expert=0, num_experts=2,
        )  # fmt: skip

    return change


def reshape(parameters):
    parameters[1] = Parameter(
        parameters[1].name, (5, 4), "bfloat16", "expert_column", 0, expert=0, num_experts=2
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parameters: parameters.pop(1), r"experts \[0\] of 2 are missing"),
        (rename("experts.0", "experts.5"), "expert 0 is called '...experts.0"),
        (rename("experts.0", "zero"), "expert 0 is called"),
        (reshape, r"bfloat16\[6, 4\] in layer 0 cannot be stacked"),
    ],
)
def test_experts_that_do_not_stack(change, message):
    model = separate_with(change)
    with pytest.raises(LayoutError, match=message):
        model.with_experts("stacked")


def test_a_stack_without_the_word_experts_cannot_be_told_apart():
    stack = Parameter("moe.w", (2, 3, 4), "float32", "expert_row", 0)
    with pytest.raises(LayoutError, match=r"moe.w: a stack of experts is called"):
        small(parameters=(stack,)).with_experts("separate")


def test_far_too_many_experts_stay_stacked():
    stack = Parameter("m.experts.w", (10**9, 3, 4), "float32", "expert_row", 0)
    with pytest.raises(LayoutError, match="1000000000 experts are more than 100000"):
        small(parameters=(stack,)).with_experts("separate")
    one = Parameter("m.experts.7.w", (3, 4), "int8", "expert_row", 0, expert=7, num_experts=10**12)
    with pytest.raises(LayoutError, match=r"experts \[0, 1, 2, 3, 4\] of 1000000000000"):
        small(parameters=(one,)).with_experts("stacked")
