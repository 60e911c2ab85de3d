"""The kernels that pack and unpack on a GPU: compiled once per machine, for its architecture.

NVRTC, CUDA's run-time compiler, makes them. Where there is none, boxes are copied by plain copies
of the driver, which are slower for many small runs; the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

from reshard.environment import nvrtc_library
from reshard.errors import ReshardError, UnsupportedError
from reshard.kernel_cache import cache_key, read_cached, write_cached
from reshard.library_files import LibraryFile, files_in_wheels, files_of_system, loaded_files

__all__ = ["find_nvrtc", "kernel_image"]

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


def _image(arch: str, driver_version: int | None) -> bytes | None:
    reasons = []
    for copy in find_nvrtc():
        try:
            image = _image_of(copy, arch, driver_version)
        except UnsupportedError as error:
            if copy.origin == "named":
                raise UnsupportedError(f"RESHARD_NVRTC_LIBRARY: {error}") from error
            reasons.append(str(error))
        except ReshardError as error:  # a compiler that takes the kernels for wrong
            reasons.append(str(error))
        else:
            return image
    _logger.warning(
        "no compiled kernels for %s: %s. GPU memory is packed by plain copies, which are slower, "
        "and dtypes cannot be cast there. Install nvidia-cuda-nvrtc-cu12, or name a copy by "
        "RESHARD_NVRTC_LIBRARY.",
        arch,
        "; ".join(reasons) or "NVRTC, CUDA's run-time compiler, was not found",
    )
    return None


def _image_of(copy: LibraryFile, arch: str, driver_version: int | None) -> bytes:
    from reshard._native_libraries import compile_kernels, kernel_source, nvrtc_version

    version = nvrtc_version(copy.path)
    if driver_version is not None and version // 1000 > driver_version // 1000:
        raise UnsupportedError(
            f"NVRTC {version // 1000}.{version % 1000 // 10} at {copy.path} is of a later major "
            f"version than the driver, which supports CUDA "
            f"{driver_version // 1000}.{driver_version % 1000 // 10}"
        )
    key = cache_key(kernel_source(), arch, str(version))
    image = read_cached(key)
    if image is None:
        image = compile_kernels(copy.path, arch).image
        write_cached(key, image)
        _logger.info("compiled the kernels for %s with %s", arch, copy.path)
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
