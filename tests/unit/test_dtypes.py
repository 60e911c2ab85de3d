"""Element types: names of frameworks, sizes, native codes, casts."""

from __future__ import annotations

import pickle

import ml_dtypes
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


def test_types_of_numpy_are_known():
    for name in ("float32", "int8", "bool", "complex128", "uint64"):
        dtype = np.dtype(name)
        assert str(DType.of(dtype.name)) == name
        assert DType.of(dtype) is DType.of(dtype.type) is DType.of(name)


def test_types_of_ml_dtypes_are_known():
    assert DType.of(ml_dtypes.bfloat16) is DType.BFLOAT16
    assert DType.of(np.dtype(ml_dtypes.float8_e4m3fn)) is DType.FLOAT8_E4M3FN


def test_bytes_in_the_order_of_another_machine_are_refused():
    other = np.dtype("float32").newbyteorder()
    with pytest.raises(UnsupportedError, match=r"Convert first, with array.astype\('float32'\)"):
        DType.of(other)


@pytest.mark.torch
def test_types_of_torch_are_known():
    torch = pytest.importorskip("torch")
    for name in ("bfloat16", "float32", "bool", "int64", "float8_e5m2"):
        assert DType.of(getattr(torch, name)) is DType.of(name)
    assert DType.of(torch.half) is DType.FLOAT16


@pytest.mark.jax
def test_types_of_jax_are_known():
    jnp = pytest.importorskip("jax.numpy")
    assert DType.of(jnp.bfloat16) is DType.of(jnp.ones(2, jnp.bfloat16).dtype) is DType.BFLOAT16


@pytest.mark.parametrize(
    "name", ["int4", "uint4", "float4_e2m1fn", "int2", "torch.uint1", "bits1x8"]
)
def test_types_of_less_than_a_byte_are_refused_with_a_way_out(name):
    with pytest.raises(UnsupportedError, match="Move the packed storage as uint8"):
        DType.of(name)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"'quaternion' is unknown\. Known are bool, uint8"):
        DType.of("quaternion")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bf16", "'bfloat16'"),
        ("float", "'float32' or 'float64'"),
        ("flaot32", "'float32'"),
        (float, "'float32' or 'float64'"),
        ("fp8", "'float8_e4m3fn' or 'float8_e5m2'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_names_that_may_be_meant(name, meant):
    with pytest.raises(UnsupportedError, match=rf"is unknown\. Did you mean {meant}"):
        DType.of(name)


@pytest.mark.parametrize("given", [11, None, object(), [1.5], np.float32(1)])
def test_what_is_no_type_is_refused(given):
    with pytest.raises(UnsupportedError, match="is unknown"):
        DType.of(given)


WIDE = {"float16", "bfloat16", "float32", "float64"}
FLOATS = {*WIDE, "float8_e4m3fn", "float8_e5m2"}


@pytest.mark.parametrize("dtype", list(DType))
def test_only_floating_point_types_are_cast_and_one_of_them_is_wide(dtype):
    for other in DType:
        names = {str(dtype), str(other)}
        assert dtype.can_cast_to(other) == (
            dtype == other or (names <= FLOATS and names & WIDE != set())
        )


@pytest.mark.parametrize(
    ("name", "is_below_a_byte"),
    [
        *(("int3", True), ("float6_e2m3fn", True), ("bits1x8", True), ("quint4x2", True)),
        *(("bits8", False), ("bits16", False), ("complex32", False), ("int80", False)),
    ],
)
def test_only_types_below_one_byte_are_said_to_be_so(name, is_below_a_byte):
    with pytest.raises(UnsupportedError) as caught:
        DType.of(name)
    assert ("less than one byte" in str(caught.value)) == is_below_a_byte
