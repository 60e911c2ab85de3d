"""Element types: names of frameworks, sizes, native codes, casts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from reshard import DType, UnsupportedError
from reshard.loopback import numpy_dtype

NATIVE_CODES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
]


def test_codes_are_those_of_the_native_header():
    assert [str(DType(code)) for code in range(len(DType))] == NATIVE_CODES


@pytest.mark.parametrize("dtype", list(DType))
def test_names_sizes_and_values(dtype):
    assert DType.of(str(dtype)) is dtype
    assert DType.of(f"torch.{dtype}") is dtype
    assert DType.of(dtype) is dtype
    assert numpy_dtype(dtype).itemsize == dtype.itemsize
    assert numpy_dtype(dtype).name == str(dtype)
    assert eval(repr(dtype)) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_numpy_names_are_known():
    for name in ("float32", "int8", "bool", "complex128", "uint64"):
        assert str(DType.of(np.dtype(name).name)) == name


@pytest.mark.parametrize("name", ["int4", "uint4", "float4_e2m1fn", "int2", "torch.uint1", "bits8"])
def test_types_of_less_than_a_byte_are_refused_with_a_way_out(name):
    with pytest.raises(UnsupportedError, match="Move the packed storage as uint8"):
        DType.of(name)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedError, match="'float128' is unknown; known are bool, uint8"):
        DType.of("float128")


FLOATS = {"float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"}


@pytest.mark.parametrize("dtype", list(DType))
def test_only_floating_point_types_are_cast(dtype):
    for other in DType:
        both = str(dtype) in FLOATS and str(other) in FLOATS
        assert dtype.can_cast_to(other) == (dtype == other or both)
