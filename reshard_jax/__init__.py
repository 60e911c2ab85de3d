"""Refits from and to pytrees of `jax.Array`.

Importing this package imports JAX but initialises no backend, so environment variables and
`jax.config` can still decide about devices and memory.
"""

from __future__ import annotations

from reshard import Forms
from reshard_jax import models
from reshard_jax.destination import Destination
from reshard_jax.redistribution import Redistribution, device_put
from reshard_jax.source import Source
from reshard_jax.tree import Leaves

__all__ = [
    "Destination",
    "Forms",
    "Leaves",
    "Redistribution",
    "Source",
    "device_put",
    "models",
]
