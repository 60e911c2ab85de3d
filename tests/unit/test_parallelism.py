"""Degrees as texts; the layouts they mean, against the rules written out; what is refused."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import pytest
from helpers.original_models import ORIGINAL_MODELS as NAMES
from helpers.original_models import original_model
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import Layout, LayoutError, Mesh, Model, Parallelism, Replicate, Shard, TensorSpec
from reshard.parameter import Parameter

STAGES = {
    "deepseek-v3": (3, *[4] * 14, 2),
    "kimi-k2": (3, *[4] * 14, 2),
    "synth-2.8t": (3, *[4] * 14, 2),
    "qwen3-235b": (11, *[12] * 6, 11),
    "nemotron-ultra": (54, 54),
}
DIM = {"col": 0, "col1": 0, "row": 1, "exp_col": 1, "exp_row": 2}
DEGREES = st.integers(1, 4)


def layout_by_hand(row, ranks, tp, ep=None):
    """The layout of a row of an original file on the ranks of one stage."""

    def made(sizes, shards):
        placements = tuple(Shard(shards[a]) if a in shards else Replicate() for a in sizes)
        return Layout(Mesh(tuple(sizes), tuple(sizes.values()), ranks), placements)

    if ep is not None and row["rule"].startswith("exp_"):
        return made({"edp": len(ranks) // ep, "ep": ep}, {"ep": 0})
    dp, heads = len(ranks) // tp, row.get("kv_heads")
    if heads is not None and tp > heads:
        return made({"dp": dp, "heads": heads, "repeat": tp // heads}, {"heads": 0})
    dim = 0 if row["rule"] == "kv" else DIM.get(row["rule"])
    return made({"dp": dp, "tp": tp}, {} if dim is None else {"tp": dim})


@pytest.mark.parametrize("name", NAMES)
def test_published_pairs_are_laid_out_as_the_original_files_say(name):
    model, file = Model.load(name), original_model(name)
    degrees = file["published_layout_pair"]["trainer"]
    trainer = Parallelism.parse(model.trainer)
    assert (trainer.num_ranks, trainer.pp, trainer.tp, trainer.ep) == tuple(
        degrees[key] for key in ("world", "pp", "tp", "ep")
    )
    size = degrees["world"] // degrees["pp"]
    stage_of_layer = [stage for stage, n in enumerate(STAGES[name]) for _ in range(n)]
    for spec, row in zip(trainer.specs(model), file["parameters"], strict=True):
        stage = {-1: 0, -2: degrees["pp"] - 1}.get(row["layer"])
        stage = stage_of_layer[row["layer"]] if stage is None else stage
        ranks = tuple(range(stage * size, (stage + 1) * size))
        layout = layout_by_hand(row, ranks, degrees["tp"], degrees["ep"])
        assert spec == TensorSpec(row["name"], row["shape"], file["dtype"], layout)

    degrees = file["published_layout_pair"]["generator"]
    generator = Parallelism.parse(model.generator)
    assert (generator.tp, generator.dp) == (degrees["tp"], degrees["dp"])
    ranks = tuple(range(1000, 1000 + degrees["tp"] * degrees["dp"]))
    for spec, row in zip(generator.specs(model, 1000), file["parameters"], strict=True):
        layout = layout_by_hand(row, ranks, degrees["tp"])
        assert spec == TensorSpec(row["name"], row["shape"], file["dtype"], layout)


@pytest.mark.parametrize("name", NAMES)
def test_equal_layouts_are_one_object(name):
    model = Model.load(name)
    for text in (model.trainer, model.generator):
        layouts = [spec.layout for spec in Parallelism.parse(text).specs(model)]
        assert len(set(map(id, layouts))) == len(set(layouts))


@pytest.mark.parametrize(
    ("text", "num_ranks", "shown"),
    [
        ("pp16,ep16", 256, "pp16,ep16"),
        ("ep16,pp16,dp16,tp1", 256, "pp16,ep16"),
        ("pp16,ep16,dp32", 512, "pp16,ep16,dp32"),
        ("pp16,ep16,world512", 512, "pp16,ep16,dp32"),
        ("tp32,dp8", 256, "tp32,dp8"),
        (" tp32 , dp8 ", 256, "tp32,dp8"),
        ("tp4,ep16", 16, "tp4,ep16"),
        ("tp4,ep6", 12, "tp4,ep6"),
        ("tp8,ep8", 8, "tp8,ep8"),
        ("tp8,ep4", 8, "tp8,ep4"),
        ("fsdp8,dp2", 16, "fsdp8,dp2"),
        ("cp2,tp2,fsdp4", 16, "tp2,cp2,fsdp4"),
        ("pp2:54+54,tp8,ep32", 64, "pp2:54+54,tp8,ep32"),
        ("pp1:94", 1, "pp1:94"),
        ("tp1", 1, "dp1"),
    ],
)
def test_texts(text, num_ranks, shown):
    found = Parallelism.parse(text)
    assert (found.num_ranks, str(found)) == (num_ranks, shown)
    assert Parallelism.parse(shown) == found
    assert Parallelism.parse(text, world=num_ranks) == found


@st.composite
def parallelisms(draw, max_stages=3):
    layers = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=max_stages)))
    chosen = {kind: draw(DEGREES) for kind in ("tp", "ep", "cp", "fsdp")}
    pp = len(layers)
    chosen["pp_layers"] = layers if draw(st.booleans()) else ()
    inner = chosen["tp"] * chosen["cp"] * chosen["fsdp"]
    if chosen["fsdp"] > 1 and inner % chosen["ep"] and chosen["ep"] % inner:
        chosen["ep"] = 1
    implied = Parallelism(pp, **chosen)
    return Parallelism(pp, **chosen, dp=implied.dp * draw(st.integers(1, 2)))


@given(parallelisms())
def test_texts_and_reprs_give_values_back(parallelism):
    assert Parallelism.parse(str(parallelism)) == parallelism
    assert eval(repr(parallelism)) == parallelism
    assert pickle.loads(pickle.dumps(parallelism)) == parallelism
    world = Parallelism.parse(str(parallelism), world=parallelism.num_ranks)
    assert world == parallelism


@st.composite
def models(draw, experts):
    embed, heads, dim = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    num_experts, width = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    parameters = [
        Parameter("model.embed_tokens.weight", (draw(st.integers(0, 9)), embed), "int8", "vocab",
                  "first"),
        Parameter("model.scale", (), "int8", "replicated", "first"),
    ]  # fmt: skip
    num_layers = draw(st.integers(1, 4))
    for layer in range(num_layers):
        name = f"model.layers.{layer}"
        parameters += [
            Parameter(f"{name}.q", (draw(st.integers(1, 9)), embed), "int8", "column", layer),
            Parameter(f"{name}.k", (heads * dim, embed), "int8", "kv", layer, heads),
            Parameter(f"{name}.o", (embed, draw(st.integers(1, 9))), "int8", "row", layer),
            Parameter(f"{name}.n", (embed,), "int8", "replicated", layer),
            Parameter(f"{name}.experts.u", (num_experts, width, embed), "int8", "expert_column",
                      layer),
            Parameter(f"{name}.experts.d", (num_experts, embed, width), "int8", "expert_row",
                      layer),
        ]  # fmt: skip
    parameters.append(Parameter("lm_head.weight", (embed,), "int8", "replicated", "last"))
    return Model("random", parameters, num_layers).with_experts(experts)


def held(spec):
    """How many ranks hold each element."""
    counts = Counter()
    for rank in spec.layout.ranks:
        for local in spec.layout.local_boxes(rank, spec.shape):
            counts.update(_all(local.box))
    return counts


def _all(box):
    indices = [()]
    for start, extent in zip(box.offset, box.shape, strict=True):
        indices = [(*index, start + i) for index in indices for i in range(extent)]
    return indices


def num_replicas(parallelism, parameter):
    size = parallelism.ranks_per_stage
    fsdp = parallelism.fsdp if parameter.shape else 1
    inner = parallelism.fsdp * parallelism.cp * parallelism.tp
    if parameter.is_expert and parallelism.ep > 1:
        fsdp = inner // parallelism.ep if parallelism.fsdp > 1 and inner > parallelism.ep else 1
        return size // (parallelism.ep * fsdp)
    cut = parallelism.tp if parameter.rule != "replicated" else 1
    if parameter.num_kv_heads is not None:
        cut = min(cut, parameter.num_kv_heads)
    return size // (fsdp * cut)


@settings(max_examples=60)
@given(parallelisms(), st.data(), st.sampled_from(("stacked", "separate")))
def test_every_element_is_held_by_as_many_ranks_as_the_degrees_say(parallelism, data, experts):
    model = data.draw(models(experts))
    parallelism = Parallelism(
        **{name: getattr(parallelism, name) for name in ("tp", "ep", "cp", "fsdp", "dp")},
        pp=min(parallelism.pp, model.num_layers),
    )
    try:
        specs = parallelism.specs(model, first_rank=3)
    except LayoutError as error:
        assert "kv heads" in str(error)
        return
    used = set()
    for spec, parameter in zip(specs, model.parameters, strict=True):
        used |= set(spec.layout.ranks)
        counts = held(spec)
        assert len(counts) == math.prod(spec.shape)
        assert set(counts.values()) <= {num_replicas(parallelism, parameter)}
    assert used == set(range(3, 3 + parallelism.num_ranks))


def test_separate_experts_lie_where_their_slices_of_the_stack_do():
    model = Model.load("qwen3-235b")
    for text in ("pp8,tp4,ep16", "tp2,ep48", "tp4,ep16,world128"):
        parallelism = Parallelism.parse(text)
        stack = next(s for s in parallelism.specs(model) if ".experts." in s.name)
        separate = parallelism.specs(model.with_experts("separate"))
        prefix, what = stack.name.split(".experts.")
        ranks_of = {s.name: set(s.layout.ranks) for s in separate}
        for rank in stack.layout.ranks:
            (local,) = stack.layout.local_boxes(rank, stack.shape)
            mine = set(range(local.box.offset[0], local.box.stop[0]))
            assert mine
            for expert in range(stack.shape[0]):
                name = f"{prefix}.experts.{expert}.{what}"
                assert (rank in ranks_of[name]) == (expert in mine)


def test_fsdp_cuts_after_tensor_parallelism():
    model = Model("m", [Parameter("w", (8, 4), "int8", "column", "first")], 0)
    (spec,) = Parallelism(fsdp=2, tp=2, pp_layers=(0,)).specs(model)
    boxes = [str(spec.layout.local_boxes(rank, (8, 4))[0].box) for rank in range(4)]
    assert boxes == ["[0:2, 0:4]", "[4:6, 0:4]", "[2:4, 0:4]", "[6:8, 0:4]"]


def test_kv_heads_repeat_side_by_side():
    model = Model("m", [Parameter("k", (4, 1), "int8", "kv", "first", 2)], 0)
    (spec,) = Parallelism(tp=4, pp_layers=(0,)).specs(model)
    offsets = [spec.layout.local_boxes(rank, (4, 1))[0].box.offset[0] for rank in range(4)]
    assert offsets == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no degree"),
        ("pp8,tp", "'tp' is no degree. Its number is missing, as in 'tp2'"),
        ("pp=8", "'pp=8' is no degree. Did you mean 'pp8'"),
        ("PP8", "'PP8' is no degree. Did you mean 'pp8'"),
        ("tp4;dp2", "'tp4;dp2' is no degree"),
        ("tp4,,dp2", "'' is no degree"),
        ("tensor4", "'tensor4' is no degree.*tp .tensor parallelism"),
        ("tp-4", "is no degree"),
        ("tp2:1+1", "'tp2:1.1' is no degree"),
        ("tp0", "tp=0 is not a whole number above 0"),
        ("tp4,tp4", "tp is given twice"),
        ("ep16,dp4", "ep=16 does not divide the 4 ranks.*dp as a multiple of 16"),
        ("tp4,ep16,dp2", "does not divide the 8 ranks .*dp as a multiple of 4"),
        ("pp4,tp2,world12", "make 8 ranks, or a multiple of 8 .* not world=12"),
        ("tp2,dp4,world16", "make 8 ranks, or a multiple of 2 .* not world=16"),
        ("pp2:1+2+3", "pp=2 stages but layers for 3"),
        ("tp999999999", "999999999 ranks are more than 1048576"),
        ("tp" + "9" * 5000, "is no degree"),
        ("fsdp4,ep6", "ep may be 1, 2, 4, 12"),
    ],
)
def test_refused_texts(text, message):
    with pytest.raises(LayoutError, match=message):
        Parallelism.parse(text)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Parallelism(tp=True), "tp=True is not a whole number"),
        (lambda: Parallelism(pp_layers=("1",)), "pp_layers=.* are not whole numbers"),
        (lambda: Parallelism(dp=1.5), "dp=1.5 is not a whole number"),
        (lambda: Parallelism().specs("qwen3-235b"), "'qwen3-235b', which is no Model. Give one"),
        (lambda: Parallelism.parse(None), "'None' is no degree"),
        (lambda: Parallelism.parse("tp2,world2", world=4), "says world2, but world=4"),
        (lambda: Parallelism(pp=95).specs(Model.load("qwen3-235b")), "pp from 1 to 94"),
        (lambda: Parallelism.parse("pp2:40+50").specs(Model.load("qwen3-235b")), "are 90 layers"),
        (lambda: Parallelism(tp=6).specs(Model.load("qwen3-235b")), "tp=6 ranks for 4 kv heads"),
    ],
)
def test_refused(act, message):
    with pytest.raises(LayoutError, match=message):
        act()


def test_the_originals_have_the_splits_of_the_models():
    for name in NAMES:
        assert Model.load(name).pipeline_splits == (STAGES[name],)
        assert sum(STAGES[name]) == original_model(name)["layers"]
