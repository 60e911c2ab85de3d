"""What is installed on this machine and what of it works, found out without loading much."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from reshard.device_kernels import find_nvrtc
from reshard.environment import cuda_library, unknown_variables, without_effect
from reshard.errors import NativeLibraryError, UnsupportedError
from reshard.library_files import Origin, cuda_version_text
from reshard.nccl_choice import nccl_version_text
from reshard.nccl_copies import NcclCopy, find_nccl, is_too_new, loaded_files, several_loaded
from reshard.network_cards import find_cards
from reshard.plan_text import counted, format_bytes
from reshard.versions import library_version

__all__ = ["Check", "checks"]

_PACKAGES: Final = ("cffi", "msgspec", "pyzmq", "rich", "numpy", "ml_dtypes", "torch", "jax")
_NEEDED: Final = frozenset({"cffi", "msgspec", "pyzmq"})
_ORIGINS: Final = {
    "loaded": "loaded in this process",
    "wheel": "of an installed wheel",
    "system": "of the system",
}
_NCCL_VARIABLE: Final = "RESHARD_NCCL_LIBRARY"
_NVRTC_VARIABLE: Final = "RESHARD_NVRTC_LIBRARY"
_SHARED_MEMORY: Final = Path("/dev/shm")
_PROBE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about this machine.

    Attributes:
        section: what it is about.
        name: of the fact; stable.
        value: in words.
        status: `ok`; `missing`, which limits what works; `error`, where something does not work
            that has to, or that was asked for.
    """

    section: str
    name: str
    value: str
    status: Literal["ok", "missing", "error"] = "ok"


_NO_DRIVER: Final = Check("libraries", "libcuda.so.1", "not looked for", "missing")


def checks() -> list[Check]:
    """Returns all facts, section by section."""
    native = list(_native())
    is_loaded = all(check.status != "error" for check in native)
    libraries = list(_libraries(is_loaded))
    shared = list(_machine())
    has_shared_memory = all(check.status == "ok" for check in shared)
    return [
        *_python(),
        *_environment(),
        *native,
        *map(_package, _PACKAGES),
        *libraries,
        *shared,
        *_usable(is_loaded, has_shared_memory, libraries),
    ]


def _python() -> Iterator[Check]:
    build = " ".join(platform.python_build())
    debug = ", debug build" if sysconfig.get_config_var("Py_DEBUG") else ""
    threads = ", free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    version = f"{platform.python_implementation()} {platform.python_version()} ({build})"
    yield Check("python", "python", f"{version}{debug}{threads}")
    yield Check("python", "executable", sys.executable)
    yield Check("python", "platform", platform.platform())


def _environment() -> Iterator[Check]:
    for name in unknown_variables():
        yield Check("environment", name, without_effect(name), "missing")


def _native() -> Iterator[Check]:
    version = library_version()
    yield Check("reshard", "reshard", f"{version} in {Path(__file__).resolve().parents[1]}")
    try:
        from reshard import _native
    except NativeLibraryError as error:
        yield Check("reshard", "native library", str(error), "error")
        return
    found = _native.show_versions()
    native_version = found["native version"]
    file = next(iter(loaded_files("libreshard")), "no file of its own")
    yield Check("reshard", "native library", file)
    if native_version == version or version == "not installed":
        yield Check("reshard", "native version", native_version)
    else:
        other = f"{native_version}, but the Python side is {version}: install reshard anew"
        yield Check("reshard", "native version", other, "error")
    if _native.has_equal_structs():
        yield Check("reshard", "native structs", "binding and library agree")
    else:
        other = "binding and library are of different builds: install reshard anew"
        yield Check("reshard", "native structs", other, "error")
    yield Check("reshard", "cpu features", found["cpu features"])


def _package(name: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        status: Literal["missing", "error"] = "error" if name in _NEEDED else "missing"
        return Check("packages", name, "not installed", status)
    module = {"pyzmq": "zmq"}.get(name, name)
    is_there = importlib.util.find_spec(module) is not None
    if is_there:
        return Check("packages", name, version)
    return Check("packages", name, f"{version}, but {module} cannot be found", "missing")


def _libraries(is_loaded: bool) -> Iterator[Check]:
    several, copies = several_loaded(), find_nccl()
    driver_version, cuda = _cuda() if is_loaded else (None, _NO_DRIVER)
    if several:
        yield Check("libraries", "copies of NCCL", several)
    if not copies:
        yield Check("libraries", "libnccl.so.2", "found nowhere", "missing")
    for number, copy in enumerate(copies):
        name = "libnccl.so.2" if number == 0 else f"libnccl.so.2 ({number + 1})"
        if is_loaded:
            yield _nccl(name, copy, driver_version)
        else:
            value = f"{copy.path}, {_origin(copy.origin, _NCCL_VARIABLE)}"
            yield Check("libraries", name, value, "missing")
    yield _nvrtc(is_loaded)
    yield cuda


def _origin(origin: Origin, variable: str) -> str:
    return f"named by {variable}" if origin == "named" else _ORIGINS[origin]


def _unusable(name: str, error: UnsupportedError, origin: Origin, variable: str) -> Check:
    """Returns what is said of a file that does not do; one that was asked for is an error."""
    if origin != "named":
        return Check("libraries", name, f"{error} It is {_ORIGINS[origin]}.", "missing")
    value = (
        f"{str(error).rstrip('.')}. It is named by {variable}: unset that, or name another file."
    )
    return Check("libraries", name, value, "error")


def _nccl(name: str, copy: NcclCopy, driver_version: int | None) -> Check:
    from reshard._native_libraries import NcclLibrary

    if is_too_new(copy, driver_version):
        value = f"{copy.path}, {_ORIGINS[copy.origin]}, is for CUDA {copy.cuda_major}, which this "
        return Check("libraries", name, f"{value}driver does not support", "missing")
    try:
        opened = NcclLibrary(copy.path)
    except UnsupportedError as error:
        return _unusable(name, error, copy.origin, _NCCL_VARIABLE)
    origin = _origin(copy.origin, _NCCL_VARIABLE)
    value = f"{nccl_version_text(opened.version)} in {opened.path}, {origin}"
    return Check("libraries", name, value)


def _nvrtc(is_loaded: bool) -> Check:
    copies = find_nvrtc()
    if not copies:
        what = "found nowhere; GPUs then copy more slowly, and cannot cast or verify"
        return Check("libraries", "libnvrtc", what, "missing")
    first = copies[0]
    value = f"{first.path}, {_origin(first.origin, _NVRTC_VARIABLE)}"
    if is_loaded and first.origin == "named":  # others are of packages, which know their files
        from reshard._native_libraries import nvrtc_version

        try:
            value = f"{cuda_version_text(nvrtc_version(first.path))} in {value}"
        except UnsupportedError as error:
            return _unusable("libnvrtc", error, first.origin, _NVRTC_VARIABLE)
    return Check("libraries", "libnvrtc", value)


def _cuda() -> tuple[int | None, Check]:
    """Returns the CUDA version of the driver, None without one, and what is said of it."""
    from reshard._native_libraries import CudaLibrary

    try:
        driver = CudaLibrary()
    except UnsupportedError as error:
        status: Literal["ok", "missing", "error"] = "error" if cuda_library() else "missing"
        return None, Check("libraries", "libcuda.so.1", str(error), status)
    gpus = counted(driver.num_devices, "GPU")
    value = f"CUDA {cuda_version_text(driver.version)}, {gpus}, in {driver.path}"
    status = "ok" if driver.num_devices else "missing"
    return driver.version, Check("libraries", "libcuda.so.1", value, status)


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("machine", "cores", str(cores))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Check("machine", "memory", format_bytes(pages))
    number, rate = find_cards()
    cards = f"{number} of {format_bytes(int(rate))}/s" if number else "none that says its speed"
    yield Check("machine", "network cards", cards)
    try:
        found = os.statvfs(_SHARED_MEMORY)
        free = f"{format_bytes(found.f_bavail * found.f_frsize)} free of "
        free += format_bytes(found.f_blocks * found.f_frsize)
        with tempfile.TemporaryFile(dir=_SHARED_MEMORY) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        yield Check("machine", str(_SHARED_MEMORY), f"unusable, {error}", "missing")
        return
    yield Check("machine", str(_SHARED_MEMORY), free)


def _usable(
    is_loaded: bool, has_shared_memory: bool, libraries: Sequence[Check]
) -> Iterator[Check]:
    has_numpy = importlib.util.find_spec("numpy") is not None
    needs = [] if is_loaded else ["the native library"]
    loopback = needs + ([] if has_numpy else ["numpy"])
    shared = needs + ([] if has_shared_memory else ["shared memory"])
    are_there = {check.name.split()[0] for check in libraries if check.status == "ok"}
    gpus = needs + [
        what
        for name, what in (("libnccl.so.2", "NCCL"), ("libcuda.so.1", "a GPU with its driver"))
        if name not in are_there
    ]
    for name, what, missing in (
        ("loopback", "all ranks in one process", loopback),
        ("shm", "processes of one machine", shared),
        ("nccl", "GPUs of one machine or of several", gpus),
    ):
        if missing:
            yield Check("transports", name, f"needs {' and '.join(missing)}", "missing")
        else:
            yield Check("transports", name, what)
