"""Laws of values that change on the way: random sides, rules on either or both, against NumPy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from helpers import oracle
from helpers.patterns import as_bits, seed_of
from helpers.reports import verdict_of
from helpers.sides import copied, fill_side, in_memory, typed
from helpers.strategies import problems, seeded
from helpers.topologies import min_stripe_bytes, placed_problems
from hypothesis import given
from hypothesis import strategies as st

from reshard import DType, Elementwise, Part, make_plan
from reshard.loopback import numpy_dtype, run_in_process

WIDE = ("float64", "float32", "float16", "bfloat16")
NARROW = ("float8_e4m3fn", "float8_e5m2")
TYPES = [(a, b) for a in WIDE + NARROW for b in WIDE + NARROW if a == b or {a, b} != set(NARROW)]
CHUNK_BYTES = st.sampled_from((16, 17, 64, 250, 1 << 18))

NUMBERS = st.one_of(
    st.sampled_from((1.0, 1.0, 2.0, -0.125, 128**0.5, float(np.float32(50.59644256)))),
    st.floats(-(2.0**20), 2.0**20, allow_subnormal=False).filter(lambda x: abs(x) > 2.0**-20),
)
OFFSETS = st.one_of(st.sampled_from((0.0, 0.0, -1.0, 1.0)), st.floats(-100.0, 100.0))
RULES = st.none() | st.builds(Elementwise, NUMBERS, NUMBERS, OFFSETS)


def with_rules(specs, dtype, draw):
    """Returns the specs with another dtype and a rule for each part."""

    def ruled(part):
        return Part(part.name, part.form, part.aliases, draw(RULES))

    return [
        dataclasses.replace(spec, dtype=dtype, parts=tuple(map(ruled, spec.parts)))
        for spec in specs
    ]


def values_of(shape, dtype, seed):
    """Finite values of all magnitudes; the payload of a NaN is unspecified where it is cast."""
    random = np.random.default_rng(seed)
    count = math.prod(shape)
    values = random.standard_normal(count) * 2.0 ** random.integers(-40, 40, count)
    values = np.where(random.random(count) < 0.1, random.choice([0.0, -0.0, 1.0], count), values)
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    return np.where(np.isfinite(found.astype(np.float64)), found, dtype.type(0)).reshape(shape)


def expected_of(values, src_rule, dst_rule, dtype):
    """Returns what NumPy makes of stored values; written without the library's own steps."""
    if src_rule == dst_rule:
        changed = values
    else:
        changed = values.astype(np.float64)
        if src_rule is not None:
            changed = changed * src_rule.scale / src_rule.divisor
            changed = changed + src_rule.offset if src_rule.offset else changed
        if dst_rule is not None:
            changed = changed - dst_rule.offset
            changed = changed * dst_rule.divisor / dst_rule.scale
        is_wide = np.dtype(np.float64) in (values.dtype, numpy_dtype(dtype))
        changed = changed if is_wide else changed.astype(np.float32)
    if changed.dtype == numpy_dtype(dtype):
        return changed
    if changed.dtype == np.float64:  # as torch casts
        changed = changed.astype(np.float32)
    if dtype is DType.FLOAT8_E4M3FN:
        # It has no infinity and ends at 448, as in torch.
        changed = np.clip(changed.astype(np.float32), -448, 448)
    return changed.astype(numpy_dtype(dtype))


def rules_by_name(specs):
    return {name: part.elementwise for spec in specs for part in spec.parts for name in part.names}


@given(placed_problems(dtype=DType.FLOAT32), seeded(), st.data(), st.sampled_from(TYPES))
def test_what_arrives_is_what_numpy_makes_of_it(placed, random, data, types):
    """Also in stripes, over hops, in odd memory, and as the fingerprints of both sides say."""
    problem = placed.problem
    src_type, dst_type = map(DType.of, types)
    src = with_rules(problem.src, src_type, data.draw)
    dst = with_rules(problem.dst, dst_type, data.draw)
    values = {
        name: values_of(shape, numpy_dtype(src_type), seed_of(name.removesuffix(".tied")))
        for name, shape in problem.shapes.items()
    }
    bits = {name: as_bits(array) for name, array in values.items()}
    topology = placed.topology if data.draw(st.booleans()) else None
    plan = make_plan(src, dst, casts=[types] if src_type != dst_type else [], topology=topology)
    sources, _ = in_memory(src, fill_side(src, bits, "src"), random)
    before = fill_side(dst, None, "dst")
    destinations, around = in_memory(dst, before, random)
    with min_stripe_bytes(placed.stripe_bytes), np.errstate(over="ignore", invalid="ignore"):
        found = run_in_process(plan, sources, destinations, chunk_bytes=data.draw(CHUNK_BYTES))
        src_rules, dst_rules = rules_by_name(src), rules_by_name(dst)
        for spec in dst:
            for rank in spec.layout.ranks:
                for name, places in oracle.canonical_places(spec, rank).items():
                    covered = places != oracle.HOLE
                    array = expected_of(values[name], src_rules[name], dst_rules[name], dst_type)
                    np.testing.assert_array_equal(
                        as_bits(found[rank][spec.name])[covered],
                        as_bits(array).reshape(-1)[places[covered]],
                    )
        assert verdict_of(plan, [plan.ranks], sources, found).problems == ()
    assert around.problem() is None


@given(problems(dtype=DType.BFLOAT16), st.data())
def test_equal_rules_copy_bytes(problem, data):
    """Also those of NaNs, which no arithmetic would keep."""
    src = with_rules(problem.src, DType.BFLOAT16, data.draw)
    rules = rules_by_name(src)
    dst = [
        dataclasses.replace(
            spec,
            parts=tuple(
                Part(part.name, part.form, part.aliases, rules[part.name]) for part in spec.parts
            ),
        )
        for spec in problem.dst
    ]
    bits = fill_side(src, None, "src")
    sources = typed(src, bits)
    before = fill_side(dst, None, "dst")
    with_equal = run_in_process(make_plan(src, dst), sources, typed(dst, copied(before)))
    plan = make_plan(problem.src, problem.dst)
    without = run_in_process(plan, sources, typed(dst, copied(before)))
    for rank, arrays in without.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(as_bits(with_equal[rank][name]), as_bits(array))
