"""Memory, streams and copies of one GPU through the CUDA driver; works on the tests' double too.

No framework: what is measured and tested here is memory that nobody else caches or pools.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DRIVER", "Bytes", "Gpu", "num_gpus"]

Bytes = npt.NDArray[np.uint8]

DRIVER = "libcuda.so.1"
_BOUNCE_BYTES = 32 << 20
_POLL_S = 20e-6
_LIMIT_S = 60.0
_NOT_READY = 600
_NON_BLOCKING = 1
_NO_TIMING = 2

_Address = ctypes.c_uint64
_Handle = ctypes.c_void_p


def num_gpus(driver: str = DRIVER) -> int:
    """Returns how many GPUs this process sees; 0 without a driver."""
    try:
        library = ctypes.CDLL(driver)
    except OSError:
        return 0
    count = ctypes.c_int()
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


class Gpu:
    """One GPU, in its primary context, which frameworks use too.

    Args:
        driver: path or name of the driver.
        ordinal: which GPU, as this process counts them.
    """

    def __init__(self, driver: str = DRIVER, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._driver = ctypes.CDLL(driver)
        self._call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self._context, self._event, self._bounce = _Handle(), _Handle(), _Handle()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        with self._current():
            self._call("cuEventCreate", ctypes.byref(self._event), ctypes.c_uint(_NO_TIMING))
            size = ctypes.c_size_t(_BOUNCE_BYTES)
            self._call("cuMemAllocHost_v2", ctypes.byref(self._bounce), size)
        self._memory: dict[int, int] = {}
        self._streams: list[int] = []

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        result = getattr(self._driver, name)(*arguments)
        if result != 0:
            message = f"GPU {self.ordinal}: {name} returned {result}"
            raise RuntimeError(message)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(_Handle()))

    def allocate(self, nbytes: int) -> int:
        """Returns the address of new device memory; `close` frees what is left."""
        address = _Address()
        with self._current():
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self._memory[address.value] = nbytes
        return address.value

    def free(self, address: int) -> None:
        """Frees device memory."""
        del self._memory[address]
        with self._current():
            self._call("cuMemFree_v2", _Address(address))

    def stream(self) -> int:
        """Returns a new stream that waits for no other."""
        made = _Handle()
        with self._current():
            self._call("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(_NON_BLOCKING))
        stream = int(made.value or 0)
        self._streams.append(stream)
        return stream

    def copy(self, to: int, origin: int, nbytes: int, stream: int = 0) -> None:
        """Queues a copy inside of the device."""
        with self._current():
            self._call(
                "cuMemcpyDtoDAsync_v2",
                *(_Address(to), _Address(origin), ctypes.c_size_t(nbytes), _Handle(stream)),
            )

    def upload(self, address: int, values: Bytes, stream: int = 0) -> None:
        """Copies bytes to the device, and waits for it."""
        for at in range(0, values.nbytes, _BOUNCE_BYTES):
            part = np.ascontiguousarray(values[at : at + _BOUNCE_BYTES])
            ctypes.memmove(self._bounce, part.ctypes.data, part.nbytes)
            self._move("cuMemcpyHtoDAsync_v2", _Address(address + at), self._bounce, part, stream)

    def download(self, address: int, nbytes: int, stream: int = 0) -> Bytes:
        """Returns bytes of the device."""
        values = np.empty(nbytes, np.uint8)
        for at in range(0, nbytes, _BOUNCE_BYTES):
            part = values[at : at + _BOUNCE_BYTES]
            self._move("cuMemcpyDtoHAsync_v2", self._bounce, _Address(address + at), part, stream)
            ctypes.memmove(part.ctypes.data, self._bounce, part.nbytes)
        return values

    def _move(self, name: str, to: object, origin: object, part: Bytes, stream: int) -> None:
        with self._current():
            self._call(name, to, origin, ctypes.c_size_t(part.nbytes), _Handle(stream))
        self.wait(stream)

    def wait(self, stream: int = 0) -> None:
        """Waits for all that a stream has by now; asks again and again, as copies may be short."""
        deadline = time.monotonic() + _LIMIT_S
        with self._current():
            self._call("cuEventRecord", self._event, _Handle(stream))
            while (result := self._driver.cuEventQuery(self._event)) == _NOT_READY:
                if time.monotonic() > deadline:
                    message = f"GPU {self.ordinal}: a stream still has work after {_LIMIT_S} s"
                    raise TimeoutError(message)
                time.sleep(_POLL_S)
        if result != 0:
            message = f"GPU {self.ordinal}: a stream failed with {result}"
            raise RuntimeError(message)

    @property
    def name(self) -> str:
        """What the driver calls the GPU."""
        if hasattr(self._driver, "cudaDoubleGet"):
            return "a double"
        text = ctypes.create_string_buffer(100)
        self._call("cuDeviceGetName", text, ctypes.c_int(len(text)), self._device)
        return text.value.decode(errors="replace")

    def used_bytes(self) -> int:
        """Returns the memory of the device that is taken, by whomever."""
        if hasattr(self._driver, "cudaDoubleGet"):
            return int(self._driver.cudaDoubleGet(b"allocated_bytes", self.ordinal))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._current():
            self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def close(self) -> None:
        """Gives everything back."""
        for address in list(self._memory):
            self.free(address)
        with self._current():
            for stream in self._streams:
                self._call("cuStreamDestroy_v2", _Handle(stream))
            self._call("cuEventDestroy_v2", self._event)
            self._call("cuMemFreeHost", self._bounce)
        self._streams.clear()
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
