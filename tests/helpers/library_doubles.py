"""Libraries that stand in for NVIDIA's, compiled where a test needs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["cuda_double", "nccl_double"]

_SOURCES = Path(__file__).resolve().parents[2] / "native/tests/doubles"


def nccl_double(folder: Path, *definitions: str) -> Path:
    """Returns a new `libnccl.so.2` in a folder; definitions are those of its source."""
    return _compile("nccl_double.c", folder / "libnccl.so.2", definitions)


def cuda_double(folder: Path, *definitions: str) -> Path:
    """The same for `libcuda.so.1`; where it is open, nothing finds it by that name."""
    return _compile("cuda_double.c", folder / "libcuda.so.1", definitions, "libcuda_double.so.1")


def _compile(
    source: str, target: Path, definitions: tuple[str, ...], soname: str | None = None
) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("these tests need a C compiler, as building reshard does")
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = [
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{soname or target.name}",
        *[f"-D{d}" for d in definitions],
    ]
    subprocess.run([compiler, *flags, _SOURCES / source, "-o", target], check=True, timeout=60)
    return target
