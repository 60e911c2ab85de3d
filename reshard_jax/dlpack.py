"""What a DLPack capsule says about memory: address, strides and device.

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

_HOST = (1, 3)
"""kDLCPU, kDLCUDAHost."""
_CUDA = (2, 13)
"""kDLCUDA, kDLCUDAManaged."""


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
    """Memory of an array.

    Attributes:
        address: of its first element.
        strides: in bytes.
        device: ordinal of the CUDA device; None for host memory.
    """

    address: int
    strides: tuple[int, ...]
    device: int | None


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def memory_of_capsule(capsule: object, itemsize: int) -> Memory:
    """Returns what an unused `dltensor` capsule says; it has to be kept as long as the memory.

    Args:
        capsule: from `array.__dlpack__()`.
        itemsize: bytes of one element.

    Raises:
        UnsupportedError: if the memory is neither of the host nor of a CUDA device.
    """
    tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    if tensor.device_type not in _HOST + _CUDA:
        raise UnsupportedError(
            f"memory of DLPack device type {tensor.device_type} is neither that of the host nor of "
            "an NVIDIA GPU. Put the array into host memory first: "
            "jax.device_put(x, x.sharding.with_memory_kind('pinned_host'))."
        )
    device = tensor.device_id if tensor.device_type in _CUDA else None
    if tensor.strides:
        elements = tuple(tensor.strides[: tensor.ndim])
    else:  # row-major and compact
        elements = tuple(
            math.prod(tensor.shape[dim + 1 : tensor.ndim]) for dim in range(tensor.ndim)
        )
    strides = tuple(stride * itemsize for stride in elements)
    return Memory((tensor.data or 0) + tensor.byte_offset, strides, device)
