"""The only module that looks at JAX's version, or at names that differ between its versions.

Supported: JAX 0.8 and newer; tested with 0.10. Importing this module initialises no backend.
"""

from __future__ import annotations

from typing import Any, Final, TypeGuard

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

__all__ = [
    "axes_of_mesh_are_concrete",
    "devices_of",
    "is_array",
    "is_prng_key",
    "is_tracer",
    "names_of_spec",
    "narrowed",
    "platform_of",
    "unreduced_axes",
]

_MINIMUM: Final = (0, 8)
_version = tuple(int(part) for part in jax.__version__.split(".")[:2])
if _version < _MINIMUM:
    raise ImportError(
        f"reshard_jax needs JAX 0.8 or newer, found {jax.__version__}. Upgrade with: "
        "pip install -U jax"
    )


def names_of_spec(spec: PartitionSpec) -> tuple[object, ...]:
    """Returns the entries of a spec: per dim None, a name, a tuple of names, or UNCONSTRAINED."""
    # Versions that have `partitions` refuse to iterate over a spec with (un)reduced axes.
    partitions = getattr(spec, "partitions", None)
    return tuple(spec) if partitions is None else tuple(partitions)


def unreduced_axes(spec: PartitionSpec) -> tuple[str, ...]:
    """Returns the mesh axes over which an array with this spec holds partial sums."""
    return tuple(sorted(map(str, getattr(spec, "unreduced", ()))))


def axes_of_mesh_are_concrete(sharding: Sharding) -> bool:
    """False for a sharding over an `AbstractMesh`, which has no devices."""
    return not isinstance(sharding, NamedSharding) or isinstance(sharding.mesh, jax.sharding.Mesh)


def is_prng_key(dtype: Any) -> bool:  # noqa: ANN401 - np.dtype or one of JAX's own types
    """True for the element types of PRNG keys, which are no numbers."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def is_tracer(value: object) -> bool:
    """True for the stand-ins that a function sees while `jit` traces it."""
    return isinstance(value, jax.core.Tracer)


def narrowed(dtype: np.dtype) -> np.dtype:
    """Returns the type that an array of `dtype` gets under the present x64 setting."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def platform_of(device: Any) -> str:  # noqa: ANN401 - jax.Device has no attributes for mypy
    """Returns the platform of a device, such as "cpu"."""
    return str(device.platform)


def devices_of(sharding: Sharding | None) -> frozenset[Any]:
    """Returns the devices of a sharding; none without one, or over an abstract mesh."""
    try:
        return frozenset() if sharding is None else frozenset(sharding.device_set)
    except (ValueError, NotImplementedError):  # what versions raise for an AbstractMesh
        return frozenset()


def is_array(value: object) -> TypeGuard[jax.Array]:
    """True for a concrete array."""
    return isinstance(value, jax.Array) and not is_tracer(value)
