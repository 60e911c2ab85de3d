"""What is installed here, for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
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
    from reshard._native_libraries import NcclLibrary
    from reshard.device_kernels import find_nvrtc
    from reshard.nccl_choice import nccl_version_text
    from reshard.nccl_copies import find_nccl, loaded_files, several_loaded

    open_files = {os.path.realpath(path) for path in loaded_files("libnccl.so")}
    copies, compilers, drivers = find_nccl(), find_nvrtc(), loaded_files("libcuda.so")
    lines = [] if copies else ["nccl: found nowhere"]
    for number, copy in enumerate(copies):
        if os.path.realpath(copy.path) in open_files:
            try:
                version = nccl_version_text(NcclLibrary(copy.path).version)  # it is open already
            except UnsupportedError as error:
                version = f"unusable ({error})"
            lines.append(f"nccl {version}: {copy.path}, loaded")
        elif number == 0:  # the others would not be taken
            version = "" if copy.version is None else f" {nccl_version_text(copy.version)}"
            lines.append(f"nccl{version}: {copy.path}, not loaded")
    lines += filter(None, [several_loaded()])
    lines += [f"nvrtc: {copy.path}" for copy in compilers[:1]] or ["nvrtc: found nowhere"]
    return lines + ([f"cuda: {path}, loaded" for path in drivers] or ["cuda: no driver is loaded"])
