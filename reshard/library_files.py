"""Files of shared libraries on this machine: open in this process, in wheels, of the system."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = [
    "LibraryFile",
    "Origin",
    "cuda_version_text",
    "files_in_wheels",
    "files_of_system",
    "loaded_files",
]

Origin = Literal["named", "loaded", "wheel", "system"]
"""How a file was found: named by an environment variable, open in this process already, in an
installed wheel, or where the loader looks."""


class LibraryFile(NamedTuple):
    """A file that could be opened.

    Attributes:
        path: of the file; the bare name where only the loader knows it.
        origin: how it was found.
    """

    path: str
    origin: Origin


def cuda_version_text(version: int) -> str:
    """Returns "12.8" for 12080, as CUDA counts."""
    return f"{version // 1000}.{version % 1000 // 10}"


def loaded_files(stem: str) -> list[str]:
    """Returns the files that this process has open whose names begin with a stem, in order."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # only Linux says
    paths = [line.split(maxsplit=5)[5] for line in lines if line.count("/")]
    return list(dict.fromkeys([path for path in paths if Path(path).name.startswith(stem)]))


def files_in_wheels(wheels: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (path, version) of files of installed distributions that have one of the names."""
    for wheel in wheels:
        try:
            files = importlib.metadata.files(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files or ():
            if file.name in names and Path(file.locate()).is_file():
                yield str(file.locate()), importlib.metadata.version(wheel)


def files_of_system(name: str) -> Iterator[str]:
    """Yields what the loader would take for a name, by its own search path and its cache."""
    for place in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        path = Path(place) / name
        if path.is_file():
            yield str(path)
            return
    if ctypes.util.find_library(name.removeprefix("lib").split(".so")[0]) == name:
        yield name
