"""What is installed here, for bug reports."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from reshard.errors import NativeLibraryError

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
    sys.stdout.write("\n".join(lines) + "\n")
