"""Copies of NCCL on this machine: where they are, of which version, and what a process offers.

A process can have several open: torch brings one, JAX another. All ranks of a communicator must run
one version, so processes offer theirs to each other and take equal ones (`nccl_choice`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reshard.environment import nccl_library
from reshard.errors import UnsupportedError
from reshard.library_files import Origin, files_in_wheels, files_of_system, loaded_files
from reshard.nccl_choice import NcclOffer, nccl_version_text

if TYPE_CHECKING:
    from reshard._native_libraries import NcclLibrary

__all__ = [
    "MIN_NCCL_VERSION",
    "NcclCopy",
    "find_nccl",
    "is_too_new",
    "loaded_files",
    "nccl_offers",
    "open_offer",
    "several_loaded",
    "warn_once",
    "where_nccl_was_sought",
]

_logger = logging.getLogger("reshard")
_NAME = "libnccl.so.2"
_STEM = "libnccl.so"
_WHEELS = {"nvidia-nccl-cu12": 12, "nvidia-nccl-cu13": 13}  # and the CUDA that they are built with
MIN_NCCL_VERSION = 21800
"""The oldest version that the native library takes (`native/src/transport/nccl/nccl_api.h`)."""
_told: set[str] = set()  # warnings that this process has given
_own: set[str] = set()  # files that are open in this process because of this module


class NcclCopy(NamedTuple):
    """A file of NCCL that could be opened.

    Attributes:
        path: of the file; the bare name where only the loader knows it.
        origin: named by `RESHARD_NCCL_LIBRARY`; loaded in this process already; of an installed
            wheel; of the system.
        version: as NCCL counts it, by what is installed; None if only the file itself can tell.
        cuda_major: of the CUDA that it was built with; None where nothing says so.
    """

    path: str
    origin: Origin
    version: int | None = None
    cuda_major: int | None = None


def find_nccl() -> list[NcclCopy]:
    """Returns all copies, the one that would be taken first; each file once.

    What the process has loaded already comes before what is installed: a second copy takes memory
    and threads of its own.
    """
    found: dict[str, NcclCopy] = {}
    for copy in (*_named(), *_loaded(), *_in_wheels(), *_of_system()):
        found.setdefault(os.path.realpath(copy.path), copy)
    return list(found.values())


def nccl_offers(driver_version: int | None = None) -> tuple[NcclOffer, ...]:
    """Returns what this process offers to the others, the copy that it likes best first.

    The copy that `RESHARD_NCCL_LIBRARY` names is the only one if there is such a name. It is
    opened, and so are copies that are loaded anyway; of others the version is known by what is
    installed, for each would map half a gigabyte. A copy of unknown version is opened only where
    there is no other.

    Args:
        driver_version: newest CUDA that the driver supports (12080 for 12.8): wheels that are built
            with a later major version, and loaded by nobody, do not work there and are left out.
            None: any.

    Raises:
        UnsupportedError: the named copy cannot be used.
    """
    copies = find_nccl()
    loaded = {os.path.realpath(path) for path in loaded_files(_STEM)}
    several = several_loaded()
    if several:
        warn_once(several)
    if copies and copies[0].origin == "named":
        return (_opened(copies[0], loaded),)
    offers = []
    for copy in copies:
        if is_too_new(copy, driver_version):
            continue
        version = copy.version if _is_text(copy.path) else None
        if version is not None and version >= MIN_NCCL_VERSION:
            offers.append(NcclOffer(copy.path, version, copy.origin, False))
        elif copy.origin == "loaded" or (copy.version is None and not offers):
            try:
                offers.append(_opened(copy, loaded))
            except UnsupportedError as error:
                warn_once(f"a copy of NCCL is left out: {error}")
    return tuple(offers)


def is_too_new(copy: NcclCopy, driver_version: int | None) -> bool:
    """True for a copy that was built with a later CUDA than a driver supports (12080 for 12.8)."""
    if copy.cuda_major is None or driver_version is None:
        return False
    return copy.cuda_major > driver_version // 1000


def _opened(copy: NcclCopy, loaded: set[str]) -> NcclOffer:
    opened = _open(copy.path)
    is_loaded = os.path.realpath(copy.path) in loaded
    return NcclOffer(copy.path, opened.version, copy.origin, is_loaded)


def open_offer(offer: NcclOffer) -> NcclLibrary:
    """Opens the copy that this process takes (`nccl_choice.choose_nccl`).

    Raises:
        UnsupportedError: it cannot be opened, or is not of the version that was offered.
    """
    opened = _open(offer.path)
    if opened.version != offer.version:
        raise UnsupportedError(
            f"{opened.path} is NCCL {nccl_version_text(opened.version)}, but what is installed "
            f"says {nccl_version_text(offer.version)}, which was agreed on. Install its package "
            "anew, or name a copy by RESHARD_NCCL_LIBRARY."
        )
    return opened


def _open(path: str) -> NcclLibrary:
    from reshard._native_libraries import NcclLibrary

    if not _is_text(path):
        raise UnsupportedError(f"the path {path!r} is not UTF-8, so it cannot be told to others.")
    before = set(loaded_files(_STEM))
    opened = NcclLibrary(path)
    _own.update(map(os.path.realpath, set(loaded_files(_STEM)) - before))
    return opened


def _is_text(path: str) -> bool:
    """False for a path of bytes that are no UTF-8, which no message can hold."""
    return path.isascii() or path.encode(errors="replace").decode() == path


def several_loaded() -> str:
    """Returns a sentence that names the copies that others loaded here, if there are several."""
    paths = [path for path in loaded_files(_STEM) if os.path.realpath(path) not in _own]
    builds = {os.path.realpath(path): path for path in paths}
    if len(builds) < 2:
        return ""
    return (
        f"{len(builds)} copies of NCCL are loaded in this process: {', '.join(builds.values())}. "
        "Each takes memory and threads of its own. Install frameworks that agree on one version "
        "of the package of NCCL, so that they share its file."
    )


def warn_once(text: str) -> None:
    """Logs once per process; a process looks for copies at every new plan."""
    if text not in _told:
        _told.add(text)
        _logger.warning("%s", text)


def where_nccl_was_sought() -> str:
    """Returns the places in which `find_nccl` looks, for messages that it found nothing."""
    named = nccl_library()
    variable = "unset" if named is None else f"names {named}"
    wheels = ", ".join(_WHEELS)
    return f"tried: $RESHARD_NCCL_LIBRARY {variable}; loaded libraries; packages {wheels}; loader"


def _named() -> Iterator[NcclCopy]:
    path = nccl_library()
    if path is not None:
        yield NcclCopy(path, "named")


def _loaded() -> Iterator[NcclCopy]:
    # What a framework loaded comes before what an earlier plan opened.
    for path in sorted(loaded_files(_STEM), key=lambda path: os.path.realpath(path) in _own):
        yield NcclCopy(path, "loaded")


def _in_wheels() -> Iterator[NcclCopy]:
    for wheel, cuda_major in _WHEELS.items():
        for path, version in files_in_wheels([wheel], [_NAME]):
            yield NcclCopy(path, "wheel", _version_in(version), cuda_major)


def _of_system() -> Iterator[NcclCopy]:
    for path in files_of_system(_NAME):
        # Packages of systems install libnccl.so.2.27.5 and a link to it.
        file = Path(path).resolve().name
        yield NcclCopy(path, "system", _version_in(file.removeprefix("libnccl.so.")))


def _version_in(text: str) -> int | None:
    """Returns 22705 for "2.27.5" and "2.27.5.post1"; None for what has no three numbers."""
    numbers = re.match(r"(\d+)\.(\d{1,2})\.(\d{1,2})(?!\d)", text)
    if numbers is None:
        return None
    major, minor, patch = map(int, numbers.groups())
    return major * 10000 + minor * 100 + patch
