"""DLPack capsules made by hand, for memory of devices that are not here."""

from __future__ import annotations

import ctypes

__all__ = ["Capsule"]


class Capsule:
    """A capsule over a struct that lives as long as this.

    Attributes:
        object: what `__dlpack__` returns.
    """

    def __init__(self, device_type, shape, strides, offset=0, device=0):
        from reshard_jax.dlpack import _DLTensor  # needs no JAX, but its package does

        self.tensor = _DLTensor()
        self.tensor.data = 4096
        self.tensor.device_type = device_type
        self.tensor.device_id = device
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
