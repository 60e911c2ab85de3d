"""The only module that looks at JAX's version, or at names that differ between its versions.

Supported: JAX 0.8 and newer; tested with 0.10. Importing this module initialises no backend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeGuard

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from reshard import LayoutError

__all__ = [
    "axes_of_mesh_are_concrete",
    "check_not_tracing",
    "coordination_client",
    "copy_of",
    "devices_of",
    "explicit_axes",
    "exported",
    "is_array",
    "is_host_memory",
    "is_prng_key",
    "is_tracer",
    "manual_axes",
    "names_of_spec",
    "narrowed",
    "ordinal_of",
    "pieces_of",
    "platform_of",
    "platform_of_xla",
    "traced_spec",
    "unreduced_axes",
    "why_no_memory",
    "zeros_at",
]

_MINIMUM: Final = (0, 8)
_HOST_MEMORY_KINDS: Final = ("pinned_host", "unpinned_host")
_CUDA_PLATFORMS: Final = ("gpu", "cuda")
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


def coordination_client() -> Any | None:  # noqa: ANN401 - jaxlib does not export its class
    """Returns the client of the service that joins the processes of a job; None without one.

    JAX has no public name for it (`jax.distributed` starts and stops it); `jax._src.distributed`
    has been its place since 0.4. Keys can be set, read, counted and deleted by all processes.
    """
    from jax._src import distributed

    return distributed.global_state.client


def is_prng_key(dtype: Any) -> bool:  # noqa: ANN401 - np.dtype or one of JAX's own types
    """True for the element types of PRNG keys, which are no numbers."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def check_not_tracing() -> None:
    """Refuses a call while `jit` or another transformation traces, whatever its arguments are.

    Raises:
        LayoutError: arrays cannot be moved then.
    """
    if is_tracer(jnp.zeros(())):
        raise LayoutError(
            "this was called while JAX traces a function, as jit does. Call it outside of the "
            "function; what a compiled program can do itself is publish_in_jit and refit_in_jit."
        )


def is_tracer(value: object) -> bool:
    """True for the stand-ins that a function sees while `jit` traces it."""
    return isinstance(value, jax.core.Tracer)


def manual_axes() -> tuple[str, ...]:
    """Returns the mesh axes over which the code that is traced sees shards, as in `shard_map`."""
    return tuple(map(str, jax.sharding.get_abstract_mesh().manual_axes))


def explicit_axes(mesh: jax.sharding.Mesh) -> frozenset[object]:
    """Returns the axes of a mesh whose part of a sharding is known while `jit` traces."""
    explicit = jax.sharding.AxisType.Explicit
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in pairs if kind == explicit)


def traced_spec(value: Any) -> PartitionSpec | None:  # noqa: ANN401 - a tracer has no public type
    """Returns what is known of the sharding of a traced value: its spec over explicit axes.

    None says that nothing is, as where the value is on no mesh.
    """
    sharding = jax.typeof(value).sharding
    return None if sharding.mesh.empty else sharding.spec


def ordinal_of(device: Any) -> int:  # noqa: ANN401 - jax.Device has no attributes for mypy
    """Returns the number by which XLA tells a foreign function which device calls it.

    On CPU that is the id, which counts over all processes (0, 1, 2048, 2049); on GPUs, the number
    of the device in its process.
    """
    return int(device.id if platform_of(device) == "cpu" else device.local_hardware_id)


def platform_of_xla(device: Any) -> str:  # noqa: ANN401 - jax.Device has no attributes for mypy
    """Returns the name of a platform where foreign functions are registered: `cpu` or `CUDA`."""
    return "CUDA" if platform_of(device) in _CUDA_PLATFORMS else platform_of(device)


def narrowed(dtype: np.dtype) -> np.dtype:
    """Returns the type that an array of `dtype` gets under the present x64 setting."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def platform_of(device: Any) -> str:  # noqa: ANN401 - jax.Device has no attributes for mypy
    """Returns the platform of a device, such as "cpu"."""
    return str(device.platform)


def is_host_memory(sharding: Sharding) -> bool:
    """True if arrays of this sharding are in memory of the host, whatever their devices are."""
    if sharding.memory_kind in _HOST_MEMORY_KINDS:
        return True
    return platform_of(next(iter(sharding.device_set))) == "cpu"  # all are of one platform


def why_no_memory(sharding: Sharding) -> str:
    """Returns the name of the platform whose memory is not moved; empty for CPUs and NVIDIA GPUs.

    The memory of the host is moved whatever the platform.
    """
    if sharding.memory_kind in _HOST_MEMORY_KINDS:
        return ""
    for device in sharding.device_set:
        platform = platform_of(device)
        client = getattr(device, "client", None)
        version = str(getattr(client, "platform_version", ""))
        if platform in _CUDA_PLATFORMS and "rocm" in version.lower():
            return "AMD GPU (ROCm)"
        if platform != "cpu" and platform not in _CUDA_PLATFORMS:
            return platform
    return ""


def exported(data: jax.Array) -> object:
    """Returns a DLPack capsule of a shard, which keeps its memory from being used again.

    DLPack asks the consumer for the stream on which it is going to work. None is passed, which is
    the default: JAX then waits on the host until the shard is computed
    (`BufferToDLPackManagedTensor` of jaxlib), so any stream may be used, and JAX need not know it.
    """
    return data.__dlpack__()


def zeros_at(
    devices: tuple[Any, ...], shape: tuple[int, ...], dtype: np.dtype, memory_kind: str | None
) -> dict[Any, jax.Array]:
    """Returns a new array on each of some devices of this process, in memory of XLA's own pool.

    Of memory that somebody else allocated, XLA's pool would not know; with preallocation, there is
    hardly any left. JAX has no arrays without content, and clearing memory is quick. One program
    for all devices: it is compiled once per shape, and called once per weight.
    """
    whole = _zeros_on(devices, shape, dtype, memory_kind)()
    return {shard.device: shard.data for shard in whole.addressable_shards}


@lru_cache(maxsize=4096)
def _zeros_on(
    devices: tuple[Any, ...], shape: tuple[int, ...], dtype: np.dtype, memory_kind: str | None
) -> Callable[[], jax.Array]:
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    whole = PartitionSpec()  # type: ignore[no-untyped-call]
    place = NamedSharding(mesh, whole, memory_kind=memory_kind)
    made: Callable[[], jax.Array] = jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=place)
    return made


def copy_of(data: jax.Array) -> jax.Array:
    """Returns a new array on the same device with the same values, in memory of its own."""
    return jnp.array(data, copy=True)


def pieces_of(array: jax.Array) -> list[jax.Array]:
    """Returns the arrays that JAX keeps as parts of an array, one memory with it.

    A shard is an array, and once it was exported JAX keeps a second one of the same memory with it;
    with an array that is the same everywhere, once it was looked at (0.10:
    `_fully_replicated_shard`).
    """
    shards = [shard.data for shard in array.addressable_shards]
    whole = [array] if shards and array.is_fully_replicated else []
    inner = [getattr(each, "_fully_replicated_shard", None) for each in (*shards, *whole)]
    return shards + [made() for made in inner if made is not None]


def devices_of(sharding: Sharding | None) -> frozenset[Any]:
    """Returns the devices of a sharding; none without one, or over an abstract mesh."""
    try:
        return frozenset() if sharding is None else frozenset(sharding.device_set)
    except (ValueError, NotImplementedError):  # what versions raise for an AbstractMesh
        return frozenset()


def is_array(value: object) -> TypeGuard[jax.Array]:
    """True for a concrete array."""
    return isinstance(value, jax.Array) and not is_tracer(value)
