"""Small models are cut as the large ones are, fit into memory, and can be moved."""

from __future__ import annotations

import functools
import math

import pytest
from helpers.original_models import ORIGINAL_MODELS as NAMES
from helpers.sides import check_side, fill_side, hashed, typed
from hypothesis import given
from hypothesis import strategies as st

from reshard import LayoutError, Model, Parallelism, make_plan, run_in_process
from reshard.parameter import Parameter


def published(model):
    return [Parallelism.parse(text) for text in (model.trainer, model.generator)]


def parts_of(spec):
    """Per dim, how many parts a dim is cut into, how many of them are empty, if all are equal."""
    return parts_of_layout(spec.layout, spec.shape)


@functools.cache  # layers are alike
def parts_of_layout(layout, shape):
    found = []
    for dim, extent in enumerate(shape):
        lengths = [
            sum(stop - start for start, stop in runs) for runs in layout.runs_of_dim(dim, extent)
        ]
        found.append((len(lengths), lengths.count(0), len(set(lengths)) == 1))
    return found


@functools.cache
def num_held(layout, shape):
    """Returns the elements that all ranks hold, copies counted."""
    return sum(math.prod(layout.local_shape(rank, shape)) for rank in layout.ranks)


@pytest.mark.parametrize("name", NAMES)
def test_real_models_become_small_and_are_cut_alike(name):
    model = Model.load(name)
    small = model.scaled_down(*published(model))
    assert small.nbytes < 2_000_000
    for parameter, large in zip(small.parameters, model.parameters, strict=True):
        same = ("name", "rule", "layer", "dtype", "num_kv_heads")
        assert all(getattr(parameter, key) == getattr(large, key) for key in same)
    for side in published(model):
        held = 0
        for spec, large in zip(side.specs(small), side.specs(model), strict=True):
            assert spec.layout == large.layout
            assert parts_of(spec) == parts_of(large)
            held += num_held(spec.layout, spec.shape) * spec.dtype.itemsize
        assert held < 40_000_000


@given(
    st.integers(1, 200),
    st.lists(st.sampled_from(["tp", "fsdp", "ep"]), min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_uneven_dims_stay_uneven(extent, kinds, data):
    degrees = {kind: data.draw(st.integers(1, 5)) for kind in kinds}
    degrees["fsdp"] = degrees.get("fsdp", 1) if degrees.get("ep", 1) == 1 else 1
    side = Parallelism(**degrees)
    parameters = [
        Parameter("w", (extent, 3), "int8", "column", "first"),
        Parameter("m.experts.w", (extent, 3, 2), "int8", "expert_row", "first"),
    ]
    model = Model("m", parameters, 1)
    small = model.scaled_down(side)
    for spec, large in zip(side.specs(small), side.specs(model), strict=True):
        assert parts_of(spec) == parts_of(large)
        assert min(spec.shape[0], 4) == min(large.shape[0], 4)


def test_fewer_layers_are_of_every_kind():
    model = Model.load("nemotron-ultra")
    small = model.scaled_down(*published(model), num_layers=5)
    assert small.num_layers == 5
    assert small.pipeline_splits == ()
    names = {parameter.name for parameter in small.parameters}
    assert "backbone.layers.0.mixer.in_proj.weight" in names
    assert "backbone.layers.4.mixer.q_proj.weight" in names
    assert len(Parallelism.parse("pp5,tp2").specs(small)) == len(small.parameters)


@pytest.mark.parametrize("num_layers", [2, 109, 0])
def test_numbers_of_layers_that_are_refused(num_layers):
    with pytest.raises(LayoutError, match="108 layers of 3 kinds: give a number from 3 to 108"):
        Model.load("nemotron-ultra").scaled_down(num_layers=num_layers)


@pytest.mark.parametrize(
    ("name", "experts", "trainer", "generator"),
    [
        ("qwen3-235b", "stacked", "pp2,tp2,ep4", "tp8"),
        ("qwen3-235b", "separate", "pp3,ep6,fsdp2,tp3", "tp2,ep3"),
        ("deepseek-v3", "stacked", "fsdp3,dp2", "tp4,dp2"),
        ("nemotron-ultra", "stacked", "pp3:1+1+1,tp4,ep2", "tp2,cp2"),
    ],
)
def test_a_small_model_moves_byte_by_byte(name, experts, trainer, generator):
    sides = [Parallelism.parse(trainer), Parallelism.parse(generator)]
    small = Model.load(name).scaled_down(*sides, num_layers=3)
    if experts == "separate":
        small = small.with_experts("separate")
    src = sides[0].specs(small)
    dst = sides[1].specs(small, first_rank=sides[0].num_ranks)
    values = hashed({parameter.name: parameter.shape for parameter in small.parameters}, 2)
    sources = typed(src, fill_side(src, values, "src"))
    before = typed(dst, fill_side(dst, None, "dst"))
    found = run_in_process(make_plan(src, dst), sources, before)
    assert check_side(dst, found, values, fill_side(dst, None, "dst")) is None
