"""Programs of several JAX processes on one machine, for tests with `helpers.ranks.ProcessGroup`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from helpers.jax_devices import use_cpu_devices

__all__ = ["reserved_port", "start_jax"]


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a port of the loopback interface that nobody else is given meanwhile.

    It stays bound here, without listening. The coordinator of JAX can bind it as well, because gRPC
    sets SO_REUSEPORT on what it listens on.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def start_jax(process: int, num_processes: int, port: int, num_devices: int) -> None:
    """Joins this process to a JAX job; process 0 hosts the coordinator at the port."""
    use_cpu_devices(num_devices)
    import jax

    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes, process, initialization_timeout=60
    )
