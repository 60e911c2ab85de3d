"""Simulations agree with another oracle, and their checker finds every kind of error."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import oracle

from reshard import (
    Elementwise,
    Form,
    Layout,
    Mesh,
    Part,
    Replicate,
    Shard,
    TensorSpec,
    UnsupportedError,
    make_plan,
    simulation,
)
from reshard.simulation import find_wrong, simulate
from reshard.topology import Topology

SRC = Layout(Mesh.of(x=3), (Shard(0),))
DST = Layout(Mesh.of(dp=2, x=2), (Replicate(), Shard(1)))


def plan_of(src_dtype="float32", dst_dtype=None, **options):
    dst_dtype = dst_dtype or src_dtype
    src = [TensorSpec(name, (7, 5), src_dtype, SRC) for name in ("v", "w")]
    dst = [TensorSpec(name, (7, 5), dst_dtype, DST).shifted(3) for name in ("v", "w")]
    casts = [(src_dtype, dst_dtype)] if src_dtype != dst_dtype else []
    return make_plan(src, dst, casts=casts, **options)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int64", "bfloat16", "float32", "float64", "float8_e4m3fn"]
)
def test_every_element_of_every_type_arrives(dtype):
    found = simulate(plan_of(dtype))
    assert found.wrong == ()
    assert (found.num_arrays, found.num_elements) == (8, 2 * 7 * 5 * 2)


def test_complex_elements_of_16_bytes():
    assert simulate(plan_of("complex128")).wrong == ()


@pytest.mark.parametrize(
    ("src", "dst"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16")]
)
def test_casts(src, dst):
    assert simulate(plan_of(src, dst)).wrong == ()


def test_hops_are_carried_out_and_counted():
    topology = Topology((0, 0, 0, 1, 1, 1, 1), (0, 0, 0, 1, 1, 1, 1), 1, 1.0, 1e9)
    plan = plan_of(topology=topology)
    found = simulate(plan)
    assert found.wrong == ()
    assert len(found.volumes.moved) == plan.num_hops > 1
    assert sum(found.volumes.moved) == 2 * 7 * 5 * 4 * 2
    assert found.volumes.copied == 0


# Ranks 0 and 1 hold all, and one card serves both; in each of three domains four ranks want it.
HOSTS = (0, 0, *[1 + rank // 4 for rank in range(12)])


def test_small_tensors_are_cut_as_the_large_ones_that_they_stand_for():
    both = Layout.replicated(Mesh.of(x=2))
    engines = Layout.replicated(Mesh.of(x=12))
    topology = Topology(HOSTS, HOSTS, 1, 1.0, 1e9)

    def found(times_larger):
        plan = make_plan(
            [TensorSpec("w", (64, 2), "float32", both)],
            [TensorSpec("w", (64, 2), "float32", engines).shifted(2)],
            topology=topology,
            times_larger=times_larger,
        )
        simulated = simulate(plan)
        assert simulated.wrong == ()
        return simulated.volumes

    small, large = found(1), found(1 << 20)
    nbytes = 64 * 2 * 4
    assert small.striped == 0
    assert large.striped > 0
    for volumes in (small, large):
        # Each domain gets one copy from outside, and its other three ranks get theirs inside it.
        assert volumes.exchanged == 3 * 3 * nbytes
        assert volumes.relayed + volumes.moved[0] == 3 * nbytes
        assert sum(volumes.moved[1:]) == volumes.exchanged + volumes.relayed
    assert large.relayed > 0
    assert large.striped == large.moved[0]


def test_what_is_expected_is_what_another_oracle_expects(monkeypatch):
    plan = plan_of()
    kept = {}

    def keeping(plan, sources, **options):
        kept.update(sources)
        return honest(plan, sources, **options)

    honest = simulation.run_in_process
    monkeypatch.setattr(simulation, "run_in_process", keeping)
    simulate(plan)
    for rank, by_name in kept.items():
        for name, array in by_name.items():
            places = oracle.local_indices(SRC, (7, 5), rank)
            whole = simulation._whole(TensorSpec(name, (7, 5), "float32", SRC), is_cast=False)
            np.testing.assert_array_equal(
                array.view("u4"), whole.reshape(-1).view("u4")[places], strict=True
            )


def test_values_differ_from_element_to_element_and_name_to_name():
    spec = TensorSpec("w", (100, 100), "float64", SRC)
    other = TensorSpec("v", (100, 100), "float64", SRC)
    wholes = [simulation._whole(each, is_cast=False).view("u8") for each in (spec, other)]
    assert len(np.unique(np.concatenate(wholes))) == 20_000


def results_of(spec, whole):
    return {
        rank: {spec.name: simulation.local_array(spec, rank, whole).copy()}
        for rank in spec.layout.ranks
    }


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_the_first_wrong_element_is_named(value):
    spec = TensorSpec("w", (7, 5), "float32", DST)
    whole = simulation._whole(spec, is_cast=False)
    results = results_of(spec, whole)
    assert find_wrong([spec], {"w": whole}, results) == []
    results[2]["w"][3:, 1] = value
    (found,) = find_wrong([spec], {"w": whole}, results)
    assert (found.name, found.rank, found.index) == ("w", 2, (3, 1))
    assert (found.num_wrong, found.num_elements) == (4, 21)


def test_arrays_that_are_missing_or_of_another_shape_or_type_are_all_wrong():
    spec = TensorSpec("w", (7, 5), "float32", DST)
    whole = simulation._whole(spec, is_cast=False)
    results = results_of(spec, whole)
    del results[0]["w"]
    results[1]["w"] = results[1]["w"][:1]
    results[2]["w"] = results[2]["w"].view("i4")
    found = find_wrong([spec], {"w": whole}, results)
    assert [(each.rank, each.num_wrong) for each in found] == [(0, 21), (1, 14), (2, 21)]


def test_forms_are_refused():
    src = TensorSpec("w", (7, 5), "float32", SRC, Form("a b -> b a"))
    dst = TensorSpec("w", (5, 7), "float32", DST.shifted(3))
    with pytest.raises(UnsupportedError, match="w: it is stored in another form"):
        simulate(make_plan([src], [dst]))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float32", "float8_e4m3fn"),
        ("float16", "float64"),
        ("float8_e5m2", "bfloat16"),
    ],
)
@pytest.mark.parametrize("rules", [(Elementwise(1e4, 3, -1), None), (None, Elementwise(7, 0.1))])
def test_changes_of_values(src, dst, rules, monkeypatch):
    parts = [Part("w", elementwise=rule) for rule in rules]
    specs = [
        TensorSpec("w", (7, 5), dtype, layout, part)
        for dtype, layout, part in zip((src, dst), (SRC, DST), parts, strict=True)
    ]
    plan = make_plan([specs[0]], [specs[1].shifted(3)], casts=[(src, dst)])
    assert simulate(plan).wrong == ()
    # The comparison sees a rule that is not followed.
    monkeypatch.setattr(simulation, "_arriving", lambda pair, whole: whole)
    assert {wrong.name for wrong in simulate(plan).wrong} == {"w"}
