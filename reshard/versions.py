"""What is installed here, for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from reshard.errors import NativeLibraryError, UnsupportedError
from reshard.library_files import cuda_version_text

__all__ = ["explain_unbuilt", "library_version", "show_versions"]

_PACKAGES = ("reshard", "cffi", "msgspec", "pyzmq", "numpy", "ml_dtypes", "torch", "jax", "jaxlib")


def library_version() -> str:
    """Returns the installed version of this library, or "not installed"."""
    try:
        return importlib.metadata.version("reshard")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def explain_unbuilt(package: Path, error: ImportError) -> str:
    """Returns what to say where the native library of a package that was imported is not there.

    Args:
        package: folder of the package.
        error: what the import said.
    """
    text = f"cannot load the native library of reshard, imported from {package}: {error}."
    build = "build it with 'pip install -e .' in its checkout (needs a C++17 compiler)"
    installed = _installed_elsewhere(package)
    if installed is not None:
        return (
            f"{text} Another copy is installed in {installed}: start Python in another folder, so "
            f"that this one does not come first, or {build}."
        )
    return f"{text} Install a wheel of reshard, or {build}."


def _installed_elsewhere(package: Path) -> Path | None:
    try:
        found = importlib.metadata.distribution("reshard").locate_file("reshard")
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = Path(str(found)).resolve()
    is_other = installed != package and (installed / "__init__.py").is_file()
    return installed if is_other else None


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
    """Says which libraries of NVIDIA this process has open, or would open.

    Opens those alone that variables of the environment name.
    """
    from reshard._native_libraries import NcclLibrary, nvrtc_version
    from reshard.device_kernels import find_nvrtc
    from reshard.nccl_choice import nccl_version_text
    from reshard.nccl_copies import find_nccl, loaded_files, several_loaded

    open_files = {os.path.realpath(path) for path in loaded_files("libnccl.so")}
    copies, compilers, drivers = find_nccl(), find_nvrtc(), loaded_files("libcuda.so")
    lines = [] if copies else ["nccl: found nowhere"]
    for number, copy in enumerate(copies):
        is_open = os.path.realpath(copy.path) in open_files
        if is_open or copy.origin == "named":
            try:
                version = nccl_version_text(NcclLibrary(copy.path).version)
            except UnsupportedError as error:
                version = f"unusable ({error})"
            state = "loaded" if is_open else "named by RESHARD_NCCL_LIBRARY"
            lines.append(f"nccl {version}: {copy.path}, {state}")
        elif number == 0:  # the others would not be taken
            version = "" if copy.version is None else f" {nccl_version_text(copy.version)}"
            lines.append(f"nccl{version}: {copy.path}, not loaded")
    lines += filter(None, [several_loaded()])
    for compiler in compilers[:1]:
        state = ""
        if compiler.origin == "named":
            try:
                state = f" {cuda_version_text(nvrtc_version(compiler.path))}"
            except UnsupportedError as error:
                state = f" unusable ({error})"
        lines.append(f"nvrtc{state}: {compiler.path}")
    lines += [] if compilers else ["nvrtc: found nowhere"]
    return lines + ([f"cuda: {path}, loaded" for path in drivers] or ["cuda: no driver is loaded"])
