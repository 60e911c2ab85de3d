"""The kernels that pack and unpack on a GPU: compiled once per machine, for its architecture.

NVRTC, CUDA's run-time compiler, makes them. Where there is none, boxes are copied by plain copies
of the driver, which are slower for many small runs; the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from reshard.environment import nvrtc_library
from reshard.errors import ReshardError, UnsupportedError
from reshard.kernel_cache import cache_key, one_at_a_time, read_cached, write_cached
from reshard.library_files import (
    LibraryFile,
    cuda_version_text,
    files_in_wheels,
    files_of_system,
    loaded_files,
)

if TYPE_CHECKING:
    from reshard._native_libraries import CudaLibrary

__all__ = ["find_nvrtc", "kernel_image", "kernel_images", "prepare_kernels"]

_logger = logging.getLogger("reshard")
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")

# Guards _images: one thread compiles, the others wait for what it made.
_lock = threading.Lock()
_images: dict[tuple[str, int | None], bytes | None] = {}


def find_nvrtc() -> list[LibraryFile]:
    """Returns all copies of NVRTC, the one that would be taken first; each file once."""
    found: dict[str, LibraryFile] = {}
    for copy in _candidates():
        found.setdefault(os.path.realpath(copy.path), copy)
    return list(found.values())


def kernel_image(arch: str, *, driver_version: int | None = None) -> bytes | None:
    """Returns the kernels as machine code; None where plain copies must do, as the log then says.

    Compiles for some seconds when this machine has not done so before. Any thread.

    Args:
        arch: architecture of the device: "sm_90".
        driver_version: newest CUDA that the driver supports (12080 for 12.8): code of a compiler of
            a later major version might not load there, so such a copy is not used. None: any.

    Raises:
        UnsupportedError: `RESHARD_NVRTC_LIBRARY` names a file that cannot be used.

    Stream: no; nothing touches a device.
    """
    with _lock:
        key = (arch, driver_version)
        if key not in _images:
            _images[key] = _image(arch, driver_version)
        return _images[key]


def kernel_images(cuda: CudaLibrary, devices: Iterable[int]) -> dict[int, bytes | None]:
    """Returns `kernel_image` for each of some GPUs of this process."""
    return {
        device: kernel_image(cuda.architecture(device), driver_version=cuda.version)
        for device in sorted(set(devices))
    }


def prepare_kernels(devices: Iterable[int | None]) -> None:
    """Has the kernels for some GPUs of this process ready; None stands for host memory."""
    gpus = {device for device in devices if device is not None}
    if gpus:
        from reshard._native_libraries import CudaLibrary

        try:
            cuda = CudaLibrary()
        except UnsupportedError:
            return  # what is missing is said where processes choose what moves their memory
        kernel_images(cuda, gpus)


def _image(arch: str, driver_version: int | None) -> bytes | None:
    reasons = []
    for copy in find_nvrtc():
        try:
            image = _image_of(copy, arch, driver_version)
        except UnsupportedError as error:
            if copy.origin == "named":
                raise UnsupportedError(
                    f"RESHARD_NVRTC_LIBRARY: {str(error).rstrip('.')}. Unset it, or have it name a "
                    "libnvrtc.so.12 or .13."
                ) from error
            reasons.append(str(error))
        except ReshardError as error:  # a compiler that takes the kernels for wrong
            reasons.append(str(error))
        else:
            return image
    _logger.warning(
        "no compiled kernels for %s: %s. GPU memory is packed by plain copies, which are slower, "
        "and dtypes cannot be cast there. Install nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc with "
        "CUDA 13), or name a copy by RESHARD_NVRTC_LIBRARY.",
        arch,
        "; ".join(reasons) or "NVRTC, CUDA's run-time compiler, was not found",
    )
    return None


def _image_of(copy: LibraryFile, arch: str, driver_version: int | None) -> bytes:
    from reshard._native_libraries import compile_kernels, kernel_source, nvrtc_version

    version = nvrtc_version(copy.path)
    if driver_version is not None and version // 1000 > driver_version // 1000:
        raise UnsupportedError(
            f"NVRTC {cuda_version_text(version)} at {copy.path} is of a later major version than "
            f"the driver, which supports CUDA {cuda_version_text(driver_version)}"
        )
    key = cache_key(kernel_source(), arch, str(version))
    image = read_cached(key)
    if image is not None:
        return image
    with one_at_a_time(key):
        image = read_cached(key)
        if image is None:
            _logger.info("compiling the kernels for %s with %s, once per machine", arch, copy.path)
            image = compile_kernels(copy.path, arch).image
            write_cached(key, image)
    return image


def _candidates() -> Iterator[LibraryFile]:
    named = nvrtc_library()
    if named is not None:
        yield LibraryFile(named, "named")
    for path in loaded_files("libnvrtc.so"):
        yield LibraryFile(path, "loaded")
    for path, _ in files_in_wheels(_WHEELS, _NAMES):
        yield LibraryFile(path, "wheel")
    for name in _NAMES:
        for path in files_of_system(name):
            yield LibraryFile(path, "system")
