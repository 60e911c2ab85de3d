"""Libraries of NVIDIA that the native library opens at run time."""

from __future__ import annotations

from typing import Any, NamedTuple

from reshard._native_border import check, ffi, lib
from reshard.environment import cuda_library
from reshard.errors import UnsupportedError

_DRIVER = "libcuda.so.1"

__all__ = [
    "CompiledKernels",
    "CudaLibrary",
    "NcclLibrary",
    "compile_kernels",
    "count_gpu_leftovers",
    "kernel_source",
    "nvrtc_version",
]


class CompiledKernels(NamedTuple):
    """The device kernels for one architecture.

    Attributes:
        image: machine code, as the CUDA driver loads it.
        log: registers, spills and shared memory of each kernel, in the compiler's words.
    """

    image: bytes
    log: str


class NcclLibrary:
    """An open copy of NCCL; stays open until the process ends.

    Attributes:
        path: of its file.
        version: as NCCL counts it: 23203 is 2.32.3.
        handle: for other native modules.

    Args:
        name: path of its file, or the name of what is open already or what the loader finds.

    Raises:
        UnsupportedError: saying what is missing: the file, a function, a newer version.
    """

    def __init__(self, name: str) -> None:
        out = ffi.new("reshard_nccl **")
        check(lib.reshard_nccl_open(name.encode(), out))
        self.handle: Any = ffi.gc(out[0], lib.reshard_nccl_destroy)
        self.path = ffi.string(lib.reshard_nccl_path(out[0])).decode(errors="surrogateescape")
        self.version = int(lib.reshard_nccl_version(out[0]))

    def make_id(self) -> bytes:
        """Returns what names a new communicator, for one process to give to all.

        Raises:
            TransportError: NCCL finds no network to meet on.
        """
        made = ffi.new("char[]", int(lib.RESHARD_NCCL_ID_BYTES))
        check(lib.reshard_nccl_make_id(self.handle, made))
        return bytes(ffi.buffer(made))


class CudaLibrary:
    """The open CUDA driver, initialised, with no context made on any device.

    Args:
        name: path or name; None means what `RESHARD_CUDA_LIBRARY` names, else `libcuda.so.1`.

    Attributes:
        path: of its file.
        version: of the newest CUDA that it supports: 12080 is 12.8.
        num_devices: GPUs that this process may use.
        handle: for other native modules.

    Raises:
        UnsupportedError: saying what is missing, or what the driver says.
    """

    def __init__(self, name: str | None = None) -> None:
        out = ffi.new("reshard_cuda **")
        named = cuda_library() if name is None else None
        try:
            check(lib.reshard_cuda_open((name or named or _DRIVER).encode(), out))
        except UnsupportedError as error:
            if named is None:
                raise
            raise UnsupportedError(
                f"RESHARD_CUDA_LIBRARY: {error} Unset it, or have it name the driver's {_DRIVER}."
            ) from error
        self.handle: Any = ffi.gc(out[0], lib.reshard_cuda_destroy)
        self.path = ffi.string(lib.reshard_cuda_path(out[0])).decode(errors="surrogateescape")
        self.version = int(lib.reshard_cuda_version(out[0]))
        self.num_devices = int(lib.reshard_cuda_num_devices(out[0]))

    def architecture(self, device: int) -> str:
        """Returns "sm_90" or alike for a GPU.

        Raises:
            PlanError: there is no such GPU in this process.
        """
        name = ffi.new("char[16]")
        check(lib.reshard_cuda_architecture(self.handle, device, name))
        return str(ffi.string(name).decode())


def count_gpu_leftovers() -> int:
    """Frees what failed runs left to GPUs and is idle by now; returns how many are not."""
    count = ffi.new("int64_t *")
    check(lib.reshard_gpu_count_leftovers(count))
    return int(count[0])


def kernel_source() -> str:
    """Returns the text of the device kernels, all that NVRTC compiles."""
    return str(ffi.string(lib.reshard_kernels_source()).decode())


def nvrtc_version(name: str) -> int:
    """Opens NVRTC, which then stays open, and returns its version: 12090 is 12.9.

    Raises:
        UnsupportedError: saying what is missing.
    """
    version = ffi.new("int32_t *")
    check(lib.reshard_nvrtc_version(name.encode(), version))
    return int(version[0])


def compile_kernels(nvrtc: str, arch: str) -> CompiledKernels:
    """Compiles the device kernels; takes seconds.

    Args:
        nvrtc: path or name of the copy of NVRTC.
        arch: of the device, such as "sm_90".

    Raises:
        UnsupportedError: saying what is missing, or that this NVRTC does not know the architecture.
        ReshardError: the kernels do not compile; has the compiler's words.
    """
    out = ffi.new("reshard_kernels **")
    check(lib.reshard_kernels_compile(nvrtc.encode(), arch.encode(), out))
    try:
        size = int(lib.reshard_kernels_image_size(out[0]))
        image = bytes(ffi.buffer(lib.reshard_kernels_image(out[0]), size))
        log = ffi.string(lib.reshard_kernels_log(out[0])).decode(errors="replace")
        return CompiledKernels(image, log)
    finally:
        lib.reshard_kernels_destroy(out[0])
