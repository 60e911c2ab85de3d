"""What a DLPack capsule says about memory: address and strides.

`Array.format` would name the memory layout too, but of the first shard only: an array assembled
from shards with different layouts reports one for all of them (JAX 0.10). A capsule is made from
the very buffer.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

from reshard import UnsupportedError

__all__ = ["Memory", "memory_of_capsule"]

_HOST_DEVICES = (1, 3)
"""kDLCPU, kDLCUDAHost."""


class _DLTensor(ctypes.Structure):
    """Source: `DLTensor` of dlpack.h, the same in all of its versions."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Memory(NamedTuple):
    """Host memory of an array: address of its first element, strides in bytes."""

    address: int
    strides: tuple[int, ...]


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def memory_of_capsule(capsule: object, itemsize: int) -> Memory:
    """Returns what an unused `dltensor` capsule says; it has to be kept as long as the memory.

    Args:
        capsule: from `array.__dlpack__()`.
        itemsize: bytes of one element.

    Raises:
        UnsupportedError: if the memory is not of the host.
    """
    tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    if tensor.device_type not in _HOST_DEVICES:
        raise UnsupportedError(
            f"memory of DLPack device type {tensor.device_type} is not host memory. Put the array "
            "there first: jax.device_put(x, x.sharding.with_memory_kind('pinned_host'))."
        )
    if tensor.strides:
        elements = tuple(tensor.strides[: tensor.ndim])
    else:  # row-major and compact
        elements = tuple(
            math.prod(tensor.shape[dim + 1 : tensor.ndim]) for dim in range(tensor.ndim)
        )
    strides = tuple(stride * itemsize for stride in elements)
    return Memory((tensor.data or 0) + tensor.byte_offset, strides)
