"""What is installed on this machine and what of it works, found out without loading much."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from reshard.errors import NativeLibraryError
from reshard.network_cards import find_cards
from reshard.plan_text import format_bytes
from reshard.versions import library_version

__all__ = ["Check", "checks"]

_PACKAGES: Final = ("cffi", "msgspec", "pyzmq", "rich", "numpy", "ml_dtypes", "torch", "jax")
_NEEDED: Final = frozenset({"cffi", "msgspec", "pyzmq"})
_LIBRARIES: Final = (
    ("libnccl.so.2", "nvidia/nccl/lib", ("nvidia-nccl-cu12", "nvidia-nccl-cu13")),
    ("libcuda.so.1", "", ()),
)
_SHARED_MEMORY: Final = Path("/dev/shm")
_PROBE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about this machine.

    Attributes:
        section: what it is about.
        name: of the fact; stable.
        value: in words.
        status: `ok`; `missing`, which limits what works; `error`, with which nothing works.
    """

    section: str
    name: str
    value: str
    status: Literal["ok", "missing", "error"] = "ok"


def checks() -> list[Check]:
    """Returns all facts, section by section."""
    native = list(_native())
    is_loaded = all(check.status != "error" for check in native)
    shared = list(_machine())
    has_shared_memory = all(check.status == "ok" for check in shared)
    return [
        *_python(),
        *native,
        *map(_package, _PACKAGES),
        *_libraries(),
        *shared,
        *_usable(is_loaded, has_shared_memory),
    ]


def _python() -> Iterator[Check]:
    build = " ".join(platform.python_build())
    debug = ", debug build" if sysconfig.get_config_var("Py_DEBUG") else ""
    threads = ", free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    version = f"{platform.python_implementation()} {platform.python_version()} ({build})"
    yield Check("python", "python", f"{version}{debug}{threads}")
    yield Check("python", "executable", sys.executable)
    yield Check("python", "platform", platform.platform())


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
    yield Check("reshard", "native library", _loaded_file("libreshard") or "no file of its own")
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


def _loaded_file(stem: str) -> str | None:
    """Returns which file a library of this process is from."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None  # only Linux says
    paths = [line.split(maxsplit=5)[5] for line in lines if line.count("/")]
    return next((path for path in paths if Path(path).name.startswith(stem)), None)


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


def _libraries() -> Iterator[Check]:
    for name, folder, wheels in _LIBRARIES:
        for wheel in wheels:
            try:
                version = importlib.metadata.version(wheel)
            except importlib.metadata.PackageNotFoundError:
                continue
            yield Check("libraries", wheel, version)
        found = _in_wheels(name, folder) or _in_loader_path(name)
        yield Check(
            "libraries", name, found or "found nowhere", "ok" if found is not None else "missing"
        )


def _in_wheels(name: str, folder: str) -> str | None:
    if not folder:
        return None
    for place in sys.path:
        path = Path(place or ".") / folder / name
        if path.is_file():
            return str(path)
    return None


def _in_loader_path(name: str) -> str | None:
    """Returns what the loader would take, by its own search path and its cache."""
    for place in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        path = Path(place) / name
        if path.is_file():
            return str(path)
    short = name.removeprefix("lib").partition(".so")[0]
    found = ctypes.util.find_library(short)
    return f"{found} of the system" if found == name else None


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


def _usable(is_loaded: bool, has_shared_memory: bool) -> Iterator[Check]:
    has_numpy = importlib.util.find_spec("numpy") is not None
    needs = [] if is_loaded else ["the native library"]
    loopback = needs + ([] if has_numpy else ["numpy"])
    shared = needs + ([] if has_shared_memory else ["shared memory"])
    for name, what, missing in (
        ("loopback", "all ranks in one process", loopback),
        ("shm", "processes of one machine", shared),
    ):
        if missing:
            yield Check("transports", name, f"needs {' and '.join(missing)}", "missing")
        else:
            yield Check("transports", name, what)
    yield Check("transports", "nccl", "not built yet", "missing")
