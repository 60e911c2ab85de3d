"""Registers what compiled programs call with XLA; nothing else."""

from __future__ import annotations

import threading

import jax

from reshard import UnsupportedError, xla_handler

__all__ = ["TARGET", "register"]

TARGET = "reshard_refit_v1"
"""The name in compiled programs. It changes with what a call says, so that programs that were kept
on disk never meet a function that reads them otherwise."""

_lock = threading.Lock()  # guards the set; JAX is called under it
_registered: set[str] = set()


def register(platform: str) -> None:
    """Registers the function of one platform, once per process.

    To be called when the backend of the platform runs: before that JAX only notes the function, and
    if it cannot be registered then, the backend does not start.

    Args:
        platform: `cpu` or `CUDA`, as XLA names them.

    Raises:
        UnsupportedError: another function has the name, as where two copies of reshard are loaded;
            or the CUDA driver cannot be opened.
    """
    with _lock:
        if platform in _registered:
            return
        capsule = jax.ffi.pycapsule(xla_handler(platform))  # type: ignore[no-untyped-call]
        try:
            jax.ffi.register_ffi_target(TARGET, capsule, platform=platform)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"XLA has another function of the name {TARGET!r} for {platform}: {error}. Two "
                "copies of reshard are loaded in this process; start it with one of them."
            ) from error
        _registered.add(platform)
