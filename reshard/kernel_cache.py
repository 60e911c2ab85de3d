"""Compiled kernels on disk: a file per source, architecture and compiler.

A file is believed only if it belongs to this user and nobody else may write it, and if its content
is what was stored under its key; anything else is as good as no file.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reshard.environment import cache_folder

__all__ = ["cache_key", "one_at_a_time", "read_cached", "write_cached"]

_logger = logging.getLogger("reshard")
# Changes with the format of the files.
_HEADER = b"reshard kernels 1\n"
_WAIT_S = 120.0  # for another process that compiles; a stopped one must not hold up all
_POLL_S = 0.05


def cache_key(*parts: str) -> str:
    """Returns what a file is known by: a digest of all that its content depends on."""
    digest = hashlib.sha256(_HEADER)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def read_cached(key: str) -> bytes | None:
    """Returns what was stored under a key; None where there is none that can be believed."""
    path = _path(key)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
    except OSError:
        return None
    head, image = content[: len(_head(key, b""))], content[len(_head(key, b"")) :]
    others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid != os.geteuid() or others_may_write or head != _head(key, image):
        _logger.warning(
            "%s is not what this user stored there; the kernels are compiled anew.", path
        )
        return None
    return image


@contextmanager
def one_at_a_time(key: str) -> Iterator[None]:
    """Keeps other processes of this machine from making the same meanwhile, where that is possible.

    Whoever waited looks again, as another process may have stored it. The wait has a limit, after
    which this process goes on without the others.
    """
    path = _path(key)
    try:
        if path is None:
            raise FileNotFoundError
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError:
        yield  # nothing can be kept, as `write_cached` says
        return
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)  # which gives the lock back, as the end of the process does


def _lock(descriptor: int) -> None:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        except OSError:
            return  # a file system without locks
        else:
            return
    _logger.warning("another process has compiled kernels for %.0f s; not waited for.", _WAIT_S)


def write_cached(key: str, image: bytes) -> None:
    """Stores an image; a reader sees all of it or nothing. Where that fails, the log says so."""
    path = _path(key)
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made for this user alone.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".new")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_head(key, image) + image)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        _logger.warning(
            "compiled kernels cannot be kept, so each process compiles them anew, for 5 to 20 s: "
            "%s. Have RESHARD_CACHE_DIR name a folder that can be written.",
            error,
        )


def _path(key: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"kernels-{key[:32]}.bin"


def _head(key: str, image: bytes) -> bytes:
    return _HEADER + f"{key}\n{hashlib.sha256(image).hexdigest()}\n".encode()
