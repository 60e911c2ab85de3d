"""Every named pair of layouts, planned by both planners and moved, against gather-then-slice."""

from __future__ import annotations

from random import Random

import pytest
from helpers import oracle
from helpers.cases import CASES
from helpers.reports import verdict_of
from helpers.sides import check_side, fill_side, hashed, in_memory

from reshard import make_plan, reference_transfers, run_in_process


def shapes_of(case):
    found = {}
    for spec in (*case.src, *case.dst):
        for part in spec.parts:
            for name in part.names:
                found[name] = oracle.canonical_shape(spec.shape, part)
    return found


def values_of(case):
    """Returns canonical tensors; names of one storage have one value."""
    values = hashed(shapes_of(case), case.src[0].dtype.itemsize)
    for spec in (*case.src, *case.dst):
        for part in spec.parts:
            for name in part.names:
                values[name] = values[part.names[0]] if len(part.names) > 1 else values[name]
    return values


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_planned_alike_by_the_reference(name):
    case = CASES[name]
    plan = make_plan(case.src, case.dst)
    plan.check()
    assert sorted(plan.transfers()) == sorted(reference_transfers(plan.pairs))


@pytest.mark.parametrize("name", CASES)
def test_a_case_arrives_byte_by_byte(name):
    case = CASES[name]
    random = Random(name)
    values = values_of(case)
    sources, _ = in_memory(case.src, fill_side(case.src, values, "src"), random)
    before = fill_side(case.dst, None, "dst")
    destinations, around = in_memory(case.dst, before, random)
    plan = make_plan(case.src, case.dst)
    found = run_in_process(plan, sources, destinations, chunk_bytes=64)
    assert check_side(case.dst, found, values, before) is None
    assert verdict_of(plan, [plan.ranks], sources, found).problems == ()
    assert around.problem() is None
