"""Ports for programs that have to be told one before they start."""

from __future__ import annotations

import os
import random
import socket
import time

__all__ = ["free_port"]


def free_port() -> int:
    """Returns a port that is free, and that the kernel gives to nobody who asks for any port."""
    candidates = random.Random(os.getpid() ^ time.monotonic_ns()).sample(range(20000, 30000), 50)
    for port in candidates:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    message = "no port is free"
    raise RuntimeError(message)
