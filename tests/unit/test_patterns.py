"""The pattern that fills tensors, and negative controls of its checker."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.patterns import as_bits, as_dtype, explain_mismatch, whole

from reshard import DType

SHAPE = (6, 4, 5)


@pytest.fixture(params=[1, 2, 4, 8, 16])
def expected(request):
    return whole("w", SHAPE, request.param)


def problem(found, expected):
    return explain_mismatch("w", found, expected, expected)


def test_an_equal_copy_has_no_problem(expected):
    assert problem(expected.copy(), expected) is None


@pytest.mark.parametrize("axis", range(3))
def test_a_rotated_dim_is_found(expected, axis):
    assert problem(np.roll(expected, 1, axis), expected) is not None


def test_swapped_boxes_are_found(expected):
    found = expected.copy()
    found[:2], found[2:4] = expected[2:4], expected[:2]
    assert problem(found, expected) is not None


def test_a_transposed_square_is_found():
    expected = whole("w", (8, 8), 1)
    assert problem(expected.T, expected) is not None


def test_every_single_changed_byte_is_found(expected):
    clean = np.ascontiguousarray(expected)
    for at in range(clean.nbytes):
        found = clean.copy()
        found.view(np.uint8).reshape(-1)[at] ^= 1
        assert problem(found, expected) is not None


def test_a_stale_shard_is_found(expected):
    found = expected.copy()
    found[3:] = whole("w", SHAPE, expected.itemsize, version=1)[3:]
    assert problem(found, expected) is not None


def test_another_tensor_is_found(expected):
    assert problem(whole("v", SHAPE, expected.itemsize), expected) is not None


def test_another_shape_is_found(expected):
    assert problem(expected[:5], expected) == "w: shape (5, 4, 5), expected (6, 4, 5)"


def test_the_message_says_where_the_wrong_value_belongs():
    expected = whole("w", SHAPE, 8)
    found = expected.copy()
    found[0, 1, 2] = expected[5, 3, 4]
    message = problem(found, expected)
    assert "1 of 120 elements are wrong; at [0, 1, 2]" in message
    assert message.endswith("which belongs at [5, 3, 4]")


def test_a_value_of_no_place_is_said_to_belong_nowhere():
    expected = whole("w", SHAPE, 8)
    found = expected.copy()
    found[0, 0, 0] += np.uint64(1)
    assert problem(found, expected).endswith("belongs nowhere in this tensor")


def test_elements_are_spread_over_all_values():
    values, counts = np.unique(whole("w", (256, 256), 1), return_counts=True)
    assert len(values) == 256
    assert counts.max() < 2 * counts.min()


@pytest.mark.parametrize("dtype", list(DType))
def test_bits_and_typed_views_are_the_same_memory(dtype):
    bits = whole("w", SHAPE, dtype.itemsize)[::2, :, ::-1]
    typed = as_dtype(bits, dtype)
    assert typed.strides == bits.strides
    assert problem(as_bits(typed), bits) is None
