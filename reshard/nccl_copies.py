"""Copies of NCCL on this machine: where they are, and which one this process would take.

A process can have several open: torch brings one, JAX another. All ranks of a communicator must run
one version, so it matters which one is taken, and it is always said.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from reshard.environment import nccl_library

__all__ = ["NcclCopy", "find_nccl", "loaded_files", "nccl_version_text"]

_NAME = "libnccl.so.2"
_WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")

Origin = Literal["named", "loaded", "wheel", "system"]


class NcclCopy(NamedTuple):
    """A file of NCCL that could be opened.

    Attributes:
        path: of the file; the bare name where only the loader knows it.
        origin: named by `RESHARD_NCCL_LIBRARY`; loaded in this process already; of an installed
            wheel; of the system.
    """

    path: str
    origin: Origin


def find_nccl() -> list[NcclCopy]:
    """Returns all copies, the one that would be taken first; each file once.

    What the process has loaded already comes before what is installed: a second copy takes memory
    and threads of its own.
    """
    found: dict[str, NcclCopy] = {}
    for copy in (*_named(), *_loaded(), *_in_wheels(), *_of_system()):
        found.setdefault(os.path.realpath(copy.path), copy)
    return list(found.values())


def nccl_version_text(version: int) -> str:
    """Returns "2.32.3" for 23203, as NCCL counts since 2.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def loaded_files(stem: str) -> list[str]:
    """Returns the files that this process has open whose names begin with a stem, in order."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # only Linux says
    paths = [line.split(maxsplit=5)[5] for line in lines if line.count("/")]
    return list(dict.fromkeys([path for path in paths if Path(path).name.startswith(stem)]))


def _named() -> Iterator[NcclCopy]:
    path = nccl_library()
    if path is not None:
        yield NcclCopy(path, "named")


def _loaded() -> Iterator[NcclCopy]:
    for path in loaded_files("libnccl.so"):
        yield NcclCopy(path, "loaded")


def _in_wheels() -> Iterator[NcclCopy]:
    for wheel in _WHEELS:
        try:
            files = importlib.metadata.files(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files or ():
            if file.name == _NAME and Path(file.locate()).is_file():
                yield NcclCopy(str(file.locate()), "wheel")


def _of_system() -> Iterator[NcclCopy]:
    """What the loader would take, by its own search path and its cache."""
    for place in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        path = Path(place) / _NAME
        if path.is_file():
            yield NcclCopy(str(path), "system")
            return
    if ctypes.util.find_library("nccl") == _NAME:
        yield NcclCopy(_NAME, "system")
