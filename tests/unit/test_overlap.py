"""Strided arrays that lie in one memory: do they share a byte? Against marking every byte."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import Buffer, DType
from reshard.loopback import buffer_of_array
from reshard.overlap import overlaps_itself, share_bytes


def really_share(memory, a, b):
    memory[...] = 0
    a[...] = -1
    before = b.copy()
    b[...] = 0
    return bool((before != 0).any())


@st.composite
def views(draw, memory):
    view = memory
    for axis in draw(st.permutations(range(view.ndim))):
        size = view.shape[axis]
        low = draw(st.integers(0, size))
        high = draw(st.integers(low, size))
        step = draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
        window = view[(slice(None),) * axis + (slice(low, high),)]
        view = window[(slice(None),) * axis + (slice(None, None, step),)]
    return view.transpose(draw(st.permutations(range(view.ndim))))


@given(st.data(), st.sampled_from(((12,), (6, 8), (3, 4, 5))), st.sampled_from(("i1", "i4")))
def test_slices_of_one_array(data, shape, dtype):
    memory = np.zeros(shape, dtype)
    a, b = data.draw(views(memory)), data.draw(views(memory))
    expected = really_share(memory, a, b) if a.size and b.size else False
    assert share_bytes(buffer_of_array(a), buffer_of_array(b)) == expected
    assert share_bytes(buffer_of_array(b), buffer_of_array(a)) == expected


MEMORY = np.zeros((1000, 1000), np.float32)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (MEMORY[:, :500], MEMORY[:, 500:], False),
        (MEMORY[:, :501], MEMORY[:, 500:], True),
        (MEMORY[::2], MEMORY[1::2], False),
        (MEMORY[::2, ::2], MEMORY.T[1::2, ::2], False),
        (MEMORY[:, ::2], MEMORY[:, 1::2][::-1], False),
        (MEMORY[10:20, 10:20], MEMORY[19:25, 19:25], True),
        (MEMORY[10:20, 10:20], MEMORY[10:20, 20:25], False),
        (MEMORY, MEMORY[999:, 999:], True),
        (MEMORY, MEMORY[0:0], False),
    ],
)
def test_large_arrays(a, b, expected):
    assert share_bytes(buffer_of_array(a), buffer_of_array(b)) == expected


def test_types_of_different_size_in_one_memory():
    memory = np.zeros(16, np.uint8)
    words = memory[:8].view(np.uint32)
    assert share_bytes(buffer_of_array(words), buffer_of_array(memory[7:8]))
    assert not share_bytes(buffer_of_array(words), buffer_of_array(memory[8:9]))


@pytest.mark.parametrize("offset", range(-5, 6))
def test_arrays_that_have_a_part_of_an_element_in_common(offset):
    a, b = (Buffer(start, (), (), DType.FLOAT32) for start in (1000, 1000 + offset))
    assert share_bytes(a, b) == (abs(offset) < 4)


@st.composite
def buffers(draw):
    ndim = draw(st.integers(0, 2))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    steps = st.integers(-9, 9) | st.sampled_from((-16, 16, 20, 40, 64))
    dtype = draw(st.sampled_from((DType.INT8, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)))
    return Buffer(draw(st.integers(1000, 1030)), shape, tuple(draw(steps) for _ in shape), dtype)


def bytes_of(buffer):
    firsts = [
        buffer.address + sum(map(operator.mul, index, buffer.strides))
        for index in np.ndindex(*buffer.shape)
    ]
    return {byte for first in firsts for byte in range(first, first + buffer.dtype.itemsize)}


@given(buffers(), buffers())
def test_arrays_of_any_strides_types_and_addresses(a, b):
    """Against marking the bytes of every element."""
    assert share_bytes(a, b) == bool(bytes_of(a) & bytes_of(b))


def test_strides_so_odd_that_there_is_much_to_try_count_as_shared():
    memory = np.zeros(1 << 16, np.uint8)
    odd = np.lib.stride_tricks.as_strided(memory, (200, 200), (97, 101))
    other = np.lib.stride_tricks.as_strided(memory[1:], (200, 200), (103, 89))
    assert share_bytes(buffer_of_array(odd), buffer_of_array(other))


@given(st.data())
def test_elements_of_one_array(data):
    """Against marking the bytes of every element, for any strides."""
    ndim = data.draw(st.integers(0, 3))
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(ndim))
    steps = st.integers(-9, 9) | st.sampled_from((-16, 16, 20, 40, 64))
    strides = tuple(data.draw(steps) for _ in shape)
    buffer = Buffer(1000, shape, strides, DType.FLOAT32)
    firsts = [sum(map(operator.mul, index, strides)) for index in np.ndindex(*shape)]
    marks = [byte for first in firsts for byte in range(first, first + 4)]
    assert overlaps_itself(buffer) == (len(set(marks)) < len(marks))


def test_no_element_overlaps_nothing():
    assert not overlaps_itself(Buffer(0, (3, 0), (0, 0), DType.FLOAT32))
