"""Several CPU devices for JAX in this process; import it before anything asks JAX for devices."""

from __future__ import annotations

import os

import pytest

__all__ = ["NUM_DEVICES", "use_cpu_devices"]

NUM_DEVICES = 8
"""What all tests of one pytest process share: a backend has one number of devices for good."""


def use_cpu_devices(count: int = NUM_DEVICES) -> None:
    """Makes JAX run on `count` CPU devices, or skips the calling module if there is no JAX.

    To be called while modules are imported, before the backend starts. A child process may call it
    again with its own number.
    """
    if "jax" not in os.environ.get("RESHARD_REQUIRE", "").split(","):
        pytest.importorskip("jax", reason="needs JAX: pip install 'reshard[jax]'")
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
