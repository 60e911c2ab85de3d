"""Doubles of libcuda and libnccl that move bytes, built where tests need them.

Nothing finds them by accident: they are in a folder of the build, and are opened by their paths
only. See native/tests/doubles/README.md.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Controls", "FullDoubles", "full_doubles"]

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = _ROOT / "native/tests/doubles"
_KERNELS = _ROOT / "native/kernels"  # the double of CUDA runs them, compiled for the host
# Of native/src.
_KERNELS_INCLUDE = ("affine.h", "cast_scalar.h", "dtype.h", "fingerprint_element.h")
_FLAGS = (
    *("-std=c++17", "-O2", "-g1", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden"),
    "-fno-gnu-unique",
)


class FullDoubles(NamedTuple):
    """The paths of one pair; the one of NCCL works with this one of CUDA."""

    cuda: Path
    nccl: Path


class Controls:
    """What a process says to the doubles that it has opened, and asks of them."""

    def __init__(self, doubles: FullDoubles):
        self._cuda = ctypes.CDLL(str(doubles.cuda))
        self._nccl = ctypes.CDLL(str(doubles.nccl))
        self._cuda.cudaDoubleGet.restype = ctypes.c_longlong
        self._nccl.ncclDoubleGet.restype = ctypes.c_longlong
        for function in (self._cuda.cudaDoubleViolations, self._nccl.ncclDoubleViolations):
            function.restype = ctypes.c_size_t
            function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._nccl.ncclDoubleGroups.restype = ctypes.c_size_t
        self._nccl.ncclDoubleInject.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self._cuda.cudaDoubleRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._cuda.cudaDoubleUnregister.argtypes = [ctypes.c_void_p]
        self._cuda.cudaDoubleSetDelay.argtypes = [ctypes.c_ulonglong, ctypes.c_int]

    def cuda(self, name: str, device: int = -1) -> int:
        """Returns a number of cuda_double.h; device -1 means all of them."""
        value = int(self._cuda.cudaDoubleGet(name.encode(), device))
        if value == -1:
            raise KeyError(name)
        return value

    def nccl(self, name: str) -> int:
        """Returns a number of nccl_double.h."""
        value = int(self._nccl.ncclDoubleGet(name.encode()))
        if value == -1:
            raise KeyError(name)
        return value

    def groups(self) -> list[int]:
        """Returns the number of operations of each group since the reset."""
        sizes = (ctypes.c_long * self._nccl.ncclDoubleGroups(None, 0))()
        self._nccl.ncclDoubleGroups(sizes, len(sizes))
        return list(sizes)

    def violations(self) -> str:
        """Returns what was done against the rules of either library, one a line."""
        text = ""
        for function in (self._cuda.cudaDoubleViolations, self._nccl.ncclDoubleViolations):
            buffer = ctypes.create_string_buffer(function(None, 0))
            function(buffer, len(buffer))
            text += buffer.value.decode()
        return text

    def inject(self, name: str, value: int) -> None:
        """Makes something happen; names are those of nccl_double.h."""
        if self._nccl.ncclDoubleInject(name.encode(), value) != 0:
            raise KeyError(name)

    def register(self, address: int, nbytes: int, device: int) -> None:
        """Makes memory of the test be memory of a device; -1 means pinned host memory."""
        if self._cuda.cudaDoubleRegister(address, nbytes, device) != 0:
            raise ValueError(f"{nbytes} bytes at {address:#x} are registered already, in part")

    def unregister(self, address: int) -> None:
        """Takes it back."""
        if self._cuda.cudaDoubleUnregister(address) != 0:
            raise ValueError(f"nothing is registered at {address:#x}")

    def set_delay(self, seed: int, max_delay_us: int) -> None:
        """Sets the delays of streams that are made from now on."""
        self._cuda.cudaDoubleSetDelay(seed, max_delay_us)

    def drain(self, timeout_ms: int = 20000) -> None:
        """Waits until no stream has work."""
        if self._cuda.cudaDoubleDrain(timeout_ms) != 0:
            raise TimeoutError(f"streams still have work after {timeout_ms} ms")

    def reset(self) -> None:
        """Forgets violations, counts, peaks, injections and errors that stick to devices."""
        self._cuda.cudaDoubleReset()
        self._nccl.ncclDoubleReset()


@cache
def full_doubles() -> FullDoubles:
    """Returns the pair, which is built by the first process that asks after a change of it."""
    sources = _source_files()
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for path in sources:
        digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
    store = _ROOT / "build/doubles"
    folder = store / digest.hexdigest()[:16]
    found = FullDoubles(folder / "libcuda.so.1", folder / "libnccl.so.2")
    store.mkdir(parents=True, exist_ok=True)
    # One process builds while the others wait; a folder appears when all of it is there.
    with (store / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=store) as building:
                _build(Path(building) / "pair")
                (Path(building) / "pair").rename(folder)
    return found


def _source_files() -> list[Path]:
    folders = [_SOURCES / "cuda", _SOURCES / "nccl", _SOURCES / "shared", _KERNELS]
    found = [p for folder in folders for p in folder.iterdir() if p.suffix in {".cc", ".h"}]
    found += [_ROOT / "native/src" / name for name in _KERNELS_INCLUDE]
    return [*sorted(found), _SOURCES / "exports.map"]


def _build(folder: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError("these tests need a C++ compiler, as building reshard does")
    folder.mkdir()
    # What looks for libcuda.so.1 by its name does not find this one even where it is open.
    _compile(compiler, "cuda", folder / "libcuda.so.1", "libcuda_double.so.1")
    (folder / "libcuda_double.so.1").symlink_to("libcuda.so.1")
    _compile(compiler, "nccl", folder / "libnccl.so.2", "libnccl.so.2", f"{folder}/libcuda.so.1")


def _compile(compiler: str, name: str, target: Path, soname: str, *libraries: str) -> None:
    native = _ROOT / "native"
    command = [
        *(compiler, *_FLAGS, f"-I{_SOURCES}", f"-I{native}", f"-I{native / 'src'}"),
        *("-o", str(target)),
        *(f"-Wl,-soname,{soname}", f"-Wl,--version-script={_SOURCES / 'exports.map'}"),
        *("-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags", "-pthread"),
        *map(str, sorted((_SOURCES / name).glob("*.cc"))),
        *(*libraries, "-ldl"),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if built.returncode != 0:
        raise RuntimeError(f"building the double {target.name} failed:\n{built.stderr}")
