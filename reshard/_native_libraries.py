"""Libraries of NVIDIA that the native library opens at run time."""

from __future__ import annotations

from typing import NamedTuple

from reshard._native_border import check, ffi, lib

__all__ = ["CudaDriver", "NcclFile", "open_cuda", "open_nccl"]


class NcclFile(NamedTuple):
    """A copy of NCCL that this process has open.

    Attributes:
        path: of its file.
        version: as NCCL counts it: 23203 is 2.32.3.
    """

    path: str
    version: int


class CudaDriver(NamedTuple):
    """The CUDA driver of this machine.

    Attributes:
        path: of its file.
        version: of the newest CUDA that it supports: 12080 is 12.8.
        num_devices: GPUs that this process may use.
    """

    path: str
    version: int
    num_devices: int


def open_nccl(name: str) -> NcclFile:
    """Opens a copy of NCCL, which then stays open until the process ends.

    Args:
        name: path of its file, or the name of what is open already or what the loader finds.

    Raises:
        UnsupportedError: saying what is missing: the file, a function, a newer version.
    """
    out = ffi.new("reshard_nccl **")
    check(lib.reshard_nccl_open(name.encode(), out))
    try:
        path = ffi.string(lib.reshard_nccl_path(out[0])).decode(errors="surrogateescape")
        return NcclFile(path, int(lib.reshard_nccl_version(out[0])))
    finally:
        lib.reshard_nccl_destroy(out[0])


def open_cuda(name: str = "libcuda.so.1") -> CudaDriver:
    """Opens the CUDA driver and initialises it; makes no context on any device.

    Raises:
        UnsupportedError: saying what is missing, or what the driver says.
    """
    out = ffi.new("reshard_cuda **")
    check(lib.reshard_cuda_open(name.encode(), out))
    try:
        path = ffi.string(lib.reshard_cuda_path(out[0])).decode(errors="surrogateescape")
        version, count = lib.reshard_cuda_version(out[0]), lib.reshard_cuda_num_devices(out[0])
        return CudaDriver(path, int(version), int(count))
    finally:
        lib.reshard_cuda_destroy(out[0])
