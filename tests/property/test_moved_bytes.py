"""Laws of what arrives: random sides, hashed values, odd memory, against gather-then-slice."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from helpers import oracle
from helpers.patterns import as_bits
from helpers.sides import check_side, copied, fill_side, hashed, in_memory, typed
from helpers.strategies import problems, seeded
from helpers.topologies import min_stripe_bytes, placed_problems
from hypothesis import given
from hypothesis import strategies as st

from reshard import DType, make_plan
from reshard.loopback import numpy_dtype, run_in_process

CHUNK_BYTES = st.sampled_from((16, 17, 23, 64, 250, 4096, 1 << 18))


@given(problems(), seeded(), CHUNK_BYTES)
def test_the_result_is_gather_then_slice(problem, random, chunk_bytes):
    values = hashed(problem.shapes, problem.dtype.itemsize)
    sources, _ = in_memory(problem.src, fill_side(problem.src, values, "src"), random)
    before = fill_side(problem.dst, None, "dst")
    destinations, around = in_memory(problem.dst, before, random)
    plan = make_plan(problem.src, problem.dst)
    found = run_in_process(plan, sources, destinations, chunk_bytes=chunk_bytes)
    assert check_side(problem.dst, found, values, before) is None
    assert around.problem() is None
    assert check_side(problem.src, sources, values, fill_side(problem.src, None, "src")) is None


@given(placed_problems(), seeded(), CHUNK_BYTES)
def test_wherever_ranks_are_the_result_is_gather_then_slice(placed, random, chunk_bytes):
    problem = placed.problem
    values = hashed(problem.shapes, problem.dtype.itemsize)
    sources, _ = in_memory(problem.src, fill_side(problem.src, values, "src"), random)
    before = fill_side(problem.dst, None, "dst")
    destinations, around = in_memory(problem.dst, before, random)
    plan = make_plan(problem.src, problem.dst, topology=placed.topology)
    with min_stripe_bytes(placed.stripe_bytes):
        found = run_in_process(plan, sources, destinations, chunk_bytes=chunk_bytes)
    assert check_side(problem.dst, found, values, before) is None
    assert around.problem() is None
    assert check_side(problem.src, sources, values, fill_side(problem.src, None, "src")) is None


@given(problems(num_sides=3), CHUNK_BYTES)
def test_over_a_third_layout_is_the_same_as_at_once(problem, chunk_bytes):
    first, middle, last = problem.sides
    values = hashed(problem.shapes, problem.dtype.itemsize)
    start = typed(first, fill_side(first, values, "first"))
    over = run_in_process(make_plan(first, middle), start, chunk_bytes=chunk_bytes)
    twice = run_in_process(make_plan(middle, last), over)
    once = run_in_process(make_plan(first, last), start)
    assert_equal_sides(twice, once)


@given(problems(num_sides=3))
def test_there_and_back_is_the_identity(problem):
    first, middle, _ = problem.sides
    values = hashed(problem.shapes, problem.dtype.itemsize)
    there = run_in_process(
        make_plan(first, middle), typed(first, fill_side(first, values, "first"))
    )
    before = fill_side(first, None, "back")
    back = run_in_process(make_plan(middle, first), there, typed(first, before))
    assert check_side(first, back, values, before) is None


@given(problems())
def test_twice_is_the_same_as_once(problem):
    values = hashed(problem.shapes, problem.dtype.itemsize)
    plan = make_plan(problem.src, problem.dst)
    sources = typed(problem.src, fill_side(problem.src, values, "src"))
    before = fill_side(problem.dst, None, "dst")
    once = run_in_process(plan, sources, typed(problem.dst, copied(before)))
    kept = copied(once)
    twice = run_in_process(plan, sources, once)
    assert_equal_sides(twice, kept)


@given(problems())
def test_a_newer_version_replaces_every_element(problem):
    plan = make_plan(problem.src, problem.dst)
    before = fill_side(problem.dst, None, "dst")
    arrays = typed(problem.dst, copied(before))
    for version in range(2):
        values = hashed(problem.shapes, problem.dtype.itemsize, version)
        run_in_process(plan, typed(problem.src, fill_side(problem.src, values, "src")), arrays)
        assert check_side(problem.dst, arrays, values, before) is None


WIDE = ("float64", "float32", "float16", "bfloat16")
NARROW = ("float8_e4m3fn", "float8_e5m2")
CASTS = [(a, b) for a in WIDE + NARROW for b in WIDE + NARROW if a != b and {a, b} != set(NARROW)]


def interesting_values(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Random values of all magnitudes, some of them zero, infinite, not a number, or halfway."""
    random = np.random.default_rng(seed)
    count = math.prod(shape)
    values = random.standard_normal(count) * 2.0 ** random.integers(-150, 150, count)
    small = random.standard_normal(count) * 2.0 ** random.integers(-20, 10, count)
    values = np.where(random.random(count) < 0.7, small, values)
    halfway = (1 + (2 * random.integers(0, 128, count) + 1) / 256) * 2.0 ** random.integers(-8, 8)
    values = np.where(random.random(count) < 0.2, halfway, values)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 465.0, 57344.0, 61440.0])
    values = np.where(random.random(count) < 0.1, random.choice(special, count), values)
    with np.errstate(over="ignore"):
        return values.astype(dtype).reshape(shape)


PLACED = placed_problems(dtype=DType.FLOAT32)


@given(PLACED, st.booleans(), st.sampled_from(CASTS), st.integers(0, 10**6))
def test_a_cast_gives_what_numpy_and_torch_give(placed, is_placed, cast, seed):
    """Also where destination ranks pass on what they have cast already."""
    problem = placed.problem
    src_type, dst_type = (DType.of(name) for name in cast)
    src = [dataclasses.replace(spec, dtype=src_type) for spec in problem.src]
    dst = [dataclasses.replace(spec, dtype=dst_type) for spec in problem.dst]
    values = {
        name: interesting_values(shape, numpy_dtype(src_type), seed)
        for name, shape in problem.shapes.items()
    }
    cast_values = {name: converted(array, dst_type) for name, array in values.items()}
    bits = {name: as_bits(array) for name, array in values.items()}
    plan = make_plan(src, dst, casts=[cast], topology=placed.topology if is_placed else None)
    with min_stripe_bytes(placed.stripe_bytes):
        found = run_in_process(plan, typed(src, fill_side(src, bits, "src")))
    for spec in dst:
        for rank in spec.layout.ranks:
            for name, places in oracle.canonical_places(spec, rank).items():
                covered = places != oracle.HOLE
                expected = cast_values[name].reshape(-1)[places[covered]]
                assert_equal_values(found[rank][spec.name][covered], expected)


def converted(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns NumPy's conversion, in two points as torch 2.13 does it.

    A float64 becomes float32 first, so it is rounded twice on the way to a shorter type; and
    float8_e4m3fn, which has no infinity, ends at 448.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32) if values.dtype == np.float64 else values
        found = single.astype(numpy_dtype(dtype))
    if dtype is DType.FLOAT8_E4M3FN:
        overflowed = np.isnan(found.astype(np.float64)) & ~np.isnan(values.astype(np.float64))
        largest = np.copysign(448.0, values.astype(np.float64)).astype(found.dtype)
        found = np.where(overflowed, largest, found)
    return found


def assert_equal_values(found: np.ndarray, expected: np.ndarray) -> None:
    """Compares bits, except that any NaN equals any other."""
    is_nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), is_nan)
    np.testing.assert_array_equal(as_bits(found)[~is_nan], as_bits(expected)[~is_nan])


@given(problems())
def test_an_equal_type_keeps_every_bit(problem):
    """Also those of values that a floating-point unit would not keep: NaN payloads, denormals."""
    floats = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]
    for dtype in floats:
        src = [dataclasses.replace(spec, dtype=dtype) for spec in problem.src]
        dst = [dataclasses.replace(spec, dtype=dtype) for spec in problem.dst]
        values = hashed(problem.shapes, dtype.itemsize)
        before = fill_side(dst, None, "dst")
        found = run_in_process(
            make_plan(src, dst),
            typed(src, fill_side(src, values, "src")),
            typed(dst, copied(before)),
        )
        assert check_side(dst, found, values, before) is None


def assert_equal_sides(found, expected):
    assert found.keys() == expected.keys()
    for rank, arrays in expected.items():
        assert found[rank].keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(as_bits(found[rank][name]), as_bits(array))
