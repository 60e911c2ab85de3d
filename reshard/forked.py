"""Forked children let go of the control plane's sockets, which are their parent's.

A child that keeps a copy of a connection hides the death of its parent from everybody else, and one
that keeps a listening socket keeps the port; data loaders fork such children. libzmq does not tell
which descriptors are its own, so the child finds them by their addresses.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import Counter
from pathlib import Path

__all__ = ["bound_here", "connected_to"]

_bound: Counter[tuple[str, int]] = Counter()
_connected: Counter[tuple[str, int]] = Counter()


def bound_here(host: str, port: int, change: int) -> None:
    """Notes that a store of this process was bound to an address (1), or is closed (-1).

    Args:
        host: as a number; 0.0.0.0 and :: are all addresses of this machine.
        port: of the store.
        change: 1 or -1.
    """
    _bound[host, port] += change


def connected_to(host: str, port: int, change: int) -> None:
    """Notes that a client of this process was connected to a store (1), or is closed (-1).

    Args:
        host: as a number.
        port: of the store.
        change: 1 or -1.
    """
    _connected[host, port] += change


def _close_inherited() -> None:
    if not (_bound.total() or _connected.total()):
        return
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        if _is_of_control_plane(descriptor):
            os.close(descriptor)
    _bound.clear()
    _connected.clear()


def _is_of_control_plane(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        found = socket.socket(fileno=descriptor)
    except OSError:  # the descriptor with which the folder was read is gone by now
        return False
    try:
        is_tcp = found.type == socket.SOCK_STREAM
        if not is_tcp or found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port = found.getsockname()[:2]
        is_of_store = any(_bound[each, port] > 0 for each in (host, "0.0.0.0", "::"))
        return is_of_store or _connected[found.getpeername()[:2]] > 0
    except OSError:  # not connected to anybody
        return False
    finally:
        found.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
