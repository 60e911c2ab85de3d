"""Every dtype of torch that moves has one element type and back; the others are refused by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from reshard import DType, UnsupportedError  # noqa: E402
from reshard_torch import dtype_of, torch_dtype_of  # noqa: E402

pytestmark = pytest.mark.torch

_MOVED = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


@pytest.mark.parametrize("name", _MOVED)
def test_round_trip(name: str) -> None:
    torch_dtype = getattr(torch, name)
    dtype = dtype_of(torch_dtype)
    assert str(dtype) == name
    assert dtype.itemsize == torch_dtype.itemsize
    assert torch_dtype_of(dtype) is torch_dtype


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4", "int4", "bits4x2"])
def test_less_than_a_byte_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="less than one byte"):
        dtype_of(getattr(torch, name))


@pytest.mark.parametrize("name", ["complex32", "qint8", "quint8", "qint32"])
def test_other_dtypes_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        dtype_of(getattr(torch, name))


def test_dtype_that_torch_has_not() -> None:
    with pytest.raises(UnsupportedError, match="float8_e4m3b11fnuz"):
        torch_dtype_of(DType.FLOAT8_E4M3B11FNUZ)


def test_no_dtype_of_torch_is_forgotten() -> None:
    every = {str(v).rpartition(".")[2] for v in vars(torch).values() if isinstance(v, torch.dtype)}
    refused = []
    for name in sorted(every):
        try:
            dtype_of(getattr(torch, name))
        except UnsupportedError:
            refused.append(name)
    assert every - set(refused) == set(_MOVED)
