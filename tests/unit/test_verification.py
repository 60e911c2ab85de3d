"""What ranks sum up and what follows from it; laws are in property/test_fingerprint_laws.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers.reports import native_reports, verdict_of

from reshard import Box, BoxLayout, DType, Layout, Mesh, Replicate, Shard, TensorSpec, make_plan
from reshard.fingerprint import fingerprint_of_values, seed_of_name
from reshard.verification import Verifier

R = Replicate()
W = np.arange(24, dtype=np.uint16).reshape(4, 6) * 321


def spec(layout, name="w"):
    return TensorSpec(name, (4, 6), DType.UINT16, layout)


def held(side, values=W):
    """Returns what each rank of a spec holds of the values."""
    found = {}
    for rank in side.layout.ranks:
        local = np.zeros(side.layout.local_shape(rank, side.shape), values.dtype)
        for box, at in side.layout.local_boxes(rank, side.shape):
            here = tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))
            there = tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
            local[here] = values[there]
        found[rank] = {side.name: local}
    return found


ROWS = spec(Layout(Mesh.of(x=2), (Shard(0),)))
COLUMNS = spec(Layout(Mesh.of(y=2, dp=2), (Shard(1), R)).shifted(2))


def verdict(src, dst, sources=None, destinations=None):
    plan = make_plan([src], [dst])
    return verdict_of(
        plan, [[rank] for rank in plan.ranks], sources or held(src), destinations or held(dst)
    )


def test_sides_that_agree():
    found = verdict(ROWS, COLUMNS)
    assert found.problems == ()
    expected = fingerprint_of_values(seed_of_name("w"), W.reshape(-1).tolist())
    assert found.fingerprints == {"w": expected}


def test_sides_that_differ_are_told_with_both_numbers():
    destinations = held(COLUMNS, W[:, ::-1])
    (problem,) = verdict(ROWS, COLUMNS, None, destinations).problems
    assert problem.startswith("w: fingerprint ")
    assert " at the source, " in problem
    assert problem.endswith(" at the destination.")


def test_replicas_that_differ_are_told_with_their_box():
    destinations = held(COLUMNS)
    destinations[3]["w"][1, 2] += 1
    (problem,) = verdict(ROWS, COLUMNS, None, destinations).problems
    assert problem.startswith(
        "w: destination ranks 2 and 3 both store [0:4, 0:3] but hold different values ("
    )


def test_a_destination_that_stores_a_part_is_compared_with_that_part():
    part = spec(BoxLayout({5: Box((1, 2), (2, 3))}))
    found = verdict(ROWS, part)
    assert found.problems == ()
    seed = seed_of_name("w")
    rows = [fingerprint_of_values(seed, W[i, 2:5].tolist(), 6 * i + 2) for i in (1, 2)]
    assert found.fingerprints == {"w": sum(rows) % 2**64}


def test_elements_that_several_boxes_hold_count_once():
    overlapping = spec(BoxLayout({5: Box((0, 0), (3, 6)), 6: Box((1, 0), (3, 6))}))
    found = verdict(ROWS, overlapping)
    assert found.problems == ()
    assert found.fingerprints == verdict(ROWS, COLUMNS).fingerprints


def test_boxes_that_overlap_in_part_check_each_other():
    overlapping = spec(BoxLayout({5: Box((0, 0), (3, 6)), 6: Box((1, 0), (3, 6))}))
    destinations = held(overlapping)
    destinations[6]["w"][0, 0] += 1
    (problem,) = verdict(ROWS, overlapping, None, destinations).problems
    assert "destination ranks 5 and 6 both store [1:3, 0:6]" in problem


def test_each_tensor_that_differs_is_told_once():
    src = [spec(ROWS.layout, name) for name in "abc"]
    dst = [spec(COLUMNS.layout, name) for name in "abc"]
    plan = make_plan(src, dst)
    sources = {
        rank: {n: held(s)[rank][n] for s, n in zip(src, "abc", strict=True)} for rank in (0, 1)
    }
    destinations = {
        rank: {n: held(s)[rank][n] for s, n in zip(dst, "abc", strict=True)}
        for rank in (2, 3, 4, 5)
    }
    for rank in (2, 3, 4, 5):
        destinations[rank]["b"][0] += 1
    found = verdict_of(plan, [plan.ranks], sources, destinations)
    assert [problem[:2] for problem in found.problems] == ["b:"]
    assert set(found.fingerprints) == set("abc")


def test_a_widening_cast_is_compared_in_the_type_of_the_destination():
    """Not in the narrow one that travels, which would not see what it cannot represent."""
    src = dataclasses.replace(ROWS, dtype=DType.FLOAT16)
    dst = dataclasses.replace(COLUMNS, dtype=DType.FLOAT32)
    plan = make_plan([src], [dst], casts=[("float16", "float32")])
    assert plan.pairs[0].wire_dtype is DType.FLOAT16
    narrow = W.astype(np.float16)
    wide = narrow.astype(np.float32)
    found = verdict_of(plan, [plan.ranks], held(src, narrow), held(dst, wide))
    assert found.problems == ()
    bits = wide.view(np.uint32).reshape(-1).tolist()
    assert found.fingerprints == {"w": fingerprint_of_values(seed_of_name("w"), bits)}
    wide.view(np.uint32)[1, 2] += 1
    assert np.array_equal(wide.astype(np.float16), narrow)
    found = verdict_of(plan, [plan.ranks], held(src, narrow), held(dst, wide))
    assert [problem[:2] for problem in found.problems] == ["w:"]


@pytest.mark.parametrize("processes", [[[0, 1, 2, 3, 4, 5]], [[0], [1], [5, 2], [4, 3]]])
def test_the_verdict_does_not_depend_on_how_ranks_are_spread(processes):
    plan = make_plan([ROWS], [COLUMNS])
    reports = native_reports(plan, processes, held(ROWS), held(COLUMNS))
    found = Verifier(plan, processes).verdict(reports)
    assert found == verdict(ROWS, COLUMNS)


def test_a_report_of_the_wrong_length_is_refused():
    plan = make_plan([ROWS], [COLUMNS])
    reports = native_reports(plan, [plan.ranks], held(ROWS), held(COLUMNS))
    with pytest.raises(ValueError, match="shorter"):
        Verifier(plan, [plan.ranks]).verdict([reports[0][:-1]])
