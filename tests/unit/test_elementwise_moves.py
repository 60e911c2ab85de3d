"""Values that change on the way, as users of real models meet them; in one process.

The formulas are those of the models, in NumPy's arithmetic of the dtype that the report names.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from reshard import (
    Elementwise,
    Form,
    Layout,
    Mesh,
    Part,
    Shard,
    TensorSpec,
    UnsupportedError,
    make_plan,
    run_in_process,
)
from reshard.loopback import local_array

F32, BF16 = np.float32, np.dtype(ml_dtypes.bfloat16)
ROWS = Layout(Mesh.of(x=2), (Shard(0),))
ALONE = Layout.replicated(Mesh.of(y=1)).shifted(2)


def moved(stored, dtype, src_rule, dst_rule=None, form=None):
    """Returns what one destination rank stores of an array that two source ranks hold."""
    dtype = np.dtype(dtype)
    src = TensorSpec("w", stored.shape, stored.dtype, ROWS, Part("w", form, elementwise=src_rule))
    shape = stored.shape if form is None else form.resolve(stored.shape).canonical_shape
    dst = TensorSpec("w", shape, dtype, ALONE, Part("w", elementwise=dst_rule))
    plan = make_plan([src], [dst], casts=[(stored.dtype, dtype)])
    sources = {rank: {"w": local_array(src, rank, stored)} for rank in (0, 1)}
    return run_in_process(plan, sources)[2]["w"]


def test_case_c24_a_norm_offset_is_applied_once_in_float32_before_the_cast():
    stored = np.array([1.1, 0.8], F32)
    expected = (stored - F32(1)).astype(BF16)
    found = moved(stored, BF16, Elementwise(offset=-1))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, np.array([0.1, -0.2], F32).astype(BF16))
    # Cast first, the other way, or twice: these are other numbers.
    assert not np.array_equal(expected, (stored.astype(BF16) - BF16.type(1)).astype(BF16))
    assert not np.array_equal(expected, stored.astype(BF16))
    assert not np.array_equal(expected, (stored - F32(2)).astype(BF16))


@pytest.mark.parametrize("dtype", [F32, BF16, np.float16])
def test_case_c24_a_norm_that_both_sides_store_with_its_offset_stays_as_it_is(dtype):
    stored = np.array([1.1, 0.8], dtype)
    rule = Elementwise(offset=-1)
    np.testing.assert_array_equal(moved(stored, dtype, rule, rule), stored)


def test_case_c24_a_destination_that_adds_the_offset_gets_it_back():
    stored = np.array([0.1, -0.2], F32)
    found = moved(stored, F32, None, Elementwise(offset=-1))
    np.testing.assert_array_equal(found, stored + F32(1))


EMBEDDING = np.random.default_rng(3).standard_normal((64, 20)).astype(F32)


def test_case_c25_the_constant_has_the_dtype_that_the_rule_gives_it():
    """Hidden size 2560: sqrt is 50.596..., in bfloat16 50.5."""
    stored = EMBEDDING.astype(BF16)
    normaliser = np.sqrt(2560)
    in_bf16, in_f32 = BF16.type(normaliser), F32(normaliser)
    rounded = moved(stored, BF16, Elementwise(divisor=in_bf16))
    np.testing.assert_array_equal(rounded, stored / in_bf16)
    exact = moved(stored, BF16, Elementwise(divisor=in_f32))
    np.testing.assert_array_equal(exact, (stored.astype(F32) / in_f32).astype(BF16))
    assert not np.array_equal(rounded, exact)


@pytest.mark.parametrize("constant", [BF16.type(np.sqrt(2560)), F32(np.sqrt(2560))], ids=str)
def test_case_c25_a_float32_embedding_is_normalised_in_float32(constant):
    found = moved(EMBEDDING, BF16, Elementwise(divisor=constant))
    np.testing.assert_array_equal(found, (EMBEDDING / F32(constant)).astype(BF16))


def test_a_query_is_scaled_and_transposed():
    """MaxText's Llama: heads of 128, divided by sqrt(128) when they were loaded."""
    stored = np.random.default_rng(4).standard_normal((6, 4, 128)).astype(F32)
    scale = F32(np.sqrt(F32(128)))
    form = Form("embed heads dim -> (heads dim) embed")
    found = moved(stored, BF16, Elementwise(scale=scale), form=form)
    expected = (stored * scale).reshape(6, 512).T.astype(BF16)
    np.testing.assert_array_equal(found, expected)


def test_integers_are_refused_before_there_is_a_plan():
    with pytest.raises(UnsupportedError, match="int32 has none that can be changed"):
        moved(np.arange(4, dtype=np.int32), np.int32, Elementwise(scale=2))
