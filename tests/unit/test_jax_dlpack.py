"""Capsules are read as dlpack.h says; made by hand for what JAX on CPU does not give."""

from __future__ import annotations

import ctypes

import pytest
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

from reshard import UnsupportedError  # noqa: E402
from reshard_jax.dlpack import _DLTensor, memory_of_capsule  # noqa: E402

pytestmark = pytest.mark.jax

CPU, CUDA, CUDA_HOST = 1, 2, 3


class Capsule:
    """A capsule over a struct that lives as long as this."""

    def __init__(self, device_type, shape, strides, offset=0):
        self.tensor = _DLTensor()
        self.tensor.data = 4096
        self.tensor.device_type = device_type
        self.tensor.ndim = len(shape)
        self.tensor.shape = (ctypes.c_int64 * len(shape))(*shape)
        if strides is not None:
            self.tensor.strides = (ctypes.c_int64 * len(strides))(*strides)
        self.tensor.byte_offset = offset
        make = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        )(("PyCapsule_New", ctypes.pythonapi))
        self.name = ctypes.create_string_buffer(b"dltensor")
        self.object = make(
            ctypes.addressof(self.tensor), ctypes.cast(self.name, ctypes.c_char_p), None
        )


@pytest.mark.parametrize("device_type", [CPU, CUDA_HOST])
def test_host_memory_is_read(device_type):
    capsule = Capsule(device_type, (2, 3), (1, 2), offset=64)
    assert memory_of_capsule(capsule.object, 4) == (4160, (4, 8))


def test_strides_may_be_left_out():
    capsule = Capsule(CPU, (2, 3, 5), None)
    assert memory_of_capsule(capsule.object, 2) == (4096, (30, 10, 2))
    scalar = Capsule(CPU, (), None)
    assert memory_of_capsule(scalar.object, 2) == (4096, ())


def test_device_memory_is_refused():
    capsule = Capsule(CUDA, (2,), (1,))
    with pytest.raises(UnsupportedError, match=r"device type 2 is not host memory.*pinned_host"):
        memory_of_capsule(capsule.object, 4)
