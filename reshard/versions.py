"""What is installed here, for bug reports."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from reshard.errors import NativeLibraryError, UnsupportedError

__all__ = ["library_version", "show_versions"]

_PACKAGES = ("reshard", "cffi", "msgspec", "pyzmq", "numpy", "ml_dtypes", "torch", "jax", "jaxlib")


def library_version() -> str:
    """Returns the installed version of this library, or "not installed"."""
    try:
        return importlib.metadata.version("reshard")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def show_versions() -> None:
    """Writes versions of Python, the system, the native library and related packages to stdout.

    Imports none of the packages.
    """
    lines = [f"python {platform.python_version()} on {platform.platform()}"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{package} not installed")
    try:
        from reshard import _native
    except NativeLibraryError as error:
        lines.append(str(error))
    else:
        lines += [f"{name}: {value}" for name, value in _native.show_versions().items()]
        lines += _nvidia()
    sys.stdout.write("\n".join(lines) + "\n")


def _nvidia() -> list[str]:
    """Says which libraries of NVIDIA this process has open, or would open; opens none."""
    from reshard._native_libraries import open_nccl
    from reshard.nccl_copies import find_nccl, loaded_files, nccl_version_text

    lines = []
    copies = find_nccl()
    loaded = [copy for copy in copies if copy.origin == "loaded"]
    for copy in loaded:
        try:
            version = nccl_version_text(open_nccl(copy.path).version)  # it is open already
        except UnsupportedError as error:
            version = f"unusable ({error})"
        lines.append(f"nccl {version}: {copy.path}, loaded")
    if len(loaded) > 1:
        lines.append(f"{len(loaded)} copies of NCCL are loaded in this process")
    if copies and copies[0] not in loaded:
        lines.append(f"nccl: {copies[0].path}, not loaded")
    lines += [f"cuda: {path}, loaded" for path in loaded_files("libcuda.so")]
    return lines
