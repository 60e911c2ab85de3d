"""Memory of JAX arrays: what is sent from it, and fresh memory that becomes arrays.

Nothing here writes into an array. What is sent is held by a DLPack capsule per shard, which keeps
JAX from giving the memory to somebody else (donation) while it is read; an address alone would not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from reshard import Buffer, BufferKey, DType, LayoutError, UnsupportedError
from reshard_jax.compat import copy_of, exported, is_array, is_host_memory, narrowed, zeros_at
from reshard_jax.description import Description, Leaf
from reshard_jax.dlpack import Memory, memory_of_capsule
from reshard_jax.tree import Weight

__all__ = ["ReceiveBuffers", "source_buffers"]

ALIGNMENT = 64
"""Bytes; JAX on CPU takes over memory that is aligned so, and copies any other."""

_Shapes = Mapping[int, tuple[int, ...]]
"""By rank."""

_REMEDY = "Publish the parameters that the training step returned."


def source_buffers(description: Description, weights: Sequence[Weight]) -> dict[BufferKey, Buffer]:
    """Returns the memory of every shard that this process has, once it is computed.

    Args:
        description: of these weights.
        weights: one array per weight, in its order; a `jax.ShapeDtypeStruct` where this process has
            no device of it.

    Returns:
        Buffers by (rank, name), none for shards without elements. Their memory keeps its content
        while they live, whatever happens to the arrays: an array that is donated meanwhile is gone
        as usual, but its memory is not used again.

    Raises:
        LayoutError: if an array was deleted or donated before, or is only described though this
            process has devices of it.
        UnsupportedError: if it is neither in host memory nor on an NVIDIA GPU.
    """
    arrays = _arrays(description, weights)
    _check_alive(arrays, None)
    try:
        jax.block_until_ready(list(arrays.values()))  # type: ignore[no-untyped-call]
        return _buffers(description, arrays)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        # Another thread may donate an array while its shards are being taken hold of. JAX then
        # raises what comes of it, such as "'NoneType' object is not iterable" of its list of
        # shards; an error of any other origin goes on as it is.
        _check_alive(arrays, error)
        # JAX may say so of a buffer or a shard before it does of the array.
        if "deleted" in str(error) or "donated" in str(error):
            raise LayoutError(
                f"an array was deleted or donated meanwhile: {error}. {_REMEDY}"
            ) from error
        raise


def _arrays(description: Description, weights: Sequence[Weight]) -> dict[str, jax.Array]:
    arrays: dict[str, jax.Array] = {}
    for leaf, weight in zip(description.leaves, weights, strict=True):
        if is_array(weight):
            arrays[leaf.name] = weight
        elif description.has_shard(leaf):
            raise LayoutError(
                f"{leaf.name}: only described, not there, though this process has devices of it. "
                "Give the array."
            )
    return arrays


def _check_alive(arrays: Mapping[str, jax.Array], error: Exception | None) -> None:
    for name, array in arrays.items():
        if array.is_deleted():
            raise LayoutError(f"{name}: the array was deleted or donated. {_REMEDY}") from error


def _buffers(description: Description, arrays: Mapping[str, jax.Array]) -> dict[BufferKey, Buffer]:
    rank_of = description.ranks.of
    dtypes = {spec.name: spec.dtype for spec in description.specs}
    buffers: dict[BufferKey, Buffer] = {}
    for name, array in arrays.items():
        for shard in array.addressable_shards:
            if shard.data.size:
                buffers[rank_of(shard.device), name] = _buffer_of_shard(
                    name, shard.data, dtypes[name]
                )
    return buffers


def _buffer_of_shard(
    name: str, data: jax.Array, dtype: DType, *, is_writable: bool = False
) -> Buffer:
    if not data.size:
        return Buffer(0, data.shape, (0,) * data.ndim, dtype, is_writable)
    capsule = exported(data)
    address, strides, device = _memory_of(name, data, capsule, dtype)
    return Buffer(address, data.shape, strides, dtype, is_writable, capsule, device=device)


def _memory_of(name: str, data: jax.Array, capsule: object, dtype: DType) -> Memory:
    try:
        memory = memory_of_capsule(capsule, dtype.itemsize)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from error
    # Versions of JAX call pinned host memory of a GPU's process memory of the GPU.
    return memory._replace(device=None) if is_host_memory(data.sharding) else memory


class ReceiveBuffers:
    """Fresh memory for one refit, and the arrays that it becomes: row-major, and nobody else's.

    In host memory it is NumPy's, which JAX takes over as it is. On a GPU it is an array of JAX, so
    it comes out of XLA's pool; it is written in place before anybody has seen the array.

    Args:
        description: of the weights to receive.
        initial: by name, arrays of the same sharding whose values the memory gets first: for
            weights that may stay without a source.

    Attributes:
        buffers: by (rank, name). Their memory is ready: no stream works on it.

    Raises:
        LayoutError: JAX would hold other types than asked for.
    """

    def __init__(self, description: Description, initial: Mapping[str, jax.Array | None]) -> None:
        self._description = description
        self._memory: dict[BufferKey, np.ndarray | jax.Array] = {}
        self.buffers: dict[BufferKey, Buffer] = {}
        local = set(description.ranks.local)
        for leaf in description.leaves:
            boxes = description.boxes(leaf).items()
            shapes = {rank: box.shape for rank, box in boxes if rank in local}
            values = self._values(initial.get(leaf.name))
            if is_host_memory(leaf.sharding):
                self._take_numpy(leaf, shapes, values, is_filled=leaf.name in initial)
            else:
                self._take_xla(leaf, shapes, values)
        self._describe_memory()

    def _values(self, array: jax.Array | None) -> dict[int, jax.Array]:
        if array is None:
            return {}
        rank_of = self._description.ranks.of
        return {rank_of(shard.device): shard.data for shard in array.addressable_shards}

    def _take_numpy(
        self, leaf: Leaf, shapes: _Shapes, values: Mapping[int, jax.Array], *, is_filled: bool
    ) -> None:
        for rank, shape in shapes.items():
            memory = self._memory[rank, leaf.name] = _aligned(shape, leaf.dtype)
            if is_filled:
                memory[...] = np.asarray(values[rank]) if rank in values else 0

    def _take_xla(self, leaf: Leaf, shapes: _Shapes, values: Mapping[int, jax.Array]) -> None:
        _check_dtype(leaf, narrowed(leaf.dtype))
        devices = self._description.ranks.devices
        alike: dict[tuple[int, ...], list[int]] = {}  # JAX's own shardings have one shape
        for rank, shape in shapes.items():
            if rank in values:
                self._memory[rank, leaf.name] = copy_of(values[rank])
            else:
                alike.setdefault(shape, []).append(rank)
        for shape, ranks in alike.items():
            places = tuple(devices[rank] for rank in ranks)
            fresh = zeros_at(places, shape, leaf.dtype, leaf.sharding.memory_kind)
            for rank, place in zip(ranks, places, strict=True):
                self._memory[rank, leaf.name] = fresh[place]

    def _place(self, leaf: Leaf, rank: int) -> SingleDeviceSharding:
        device = self._description.ranks.devices[rank]
        return SingleDeviceSharding(device, memory_kind=leaf.sharding.memory_kind)

    def _describe_memory(self) -> None:
        """Waits until the memory is there, and makes the buffers."""
        jax.block_until_ready(  # type: ignore[no-untyped-call]
            [memory for memory in self._memory.values() if isinstance(memory, jax.Array)]
        )
        dtypes = {spec.name: spec.dtype for spec in self._description.specs}
        for key, memory in self._memory.items():
            dtype = dtypes[key[1]]
            if isinstance(memory, np.ndarray):
                place, strides, owner = _address(memory), memory.strides, memory
                self.buffers[key] = Buffer(place, memory.shape, strides, dtype, True, owner)
            else:
                self.buffers[key] = _buffer_of_shard(key[1], memory, dtype, is_writable=True)

    def to_arrays(self) -> list[jax.Array]:
        """Returns one array per weight, with exactly its sharding, over the memory itself.

        Everything must have been written: what wrote it is done. The memory belongs to the arrays
        from now on, so this can be called once.
        """
        memory, self._memory = self._memory, {}
        self.buffers.clear()
        leaves = {leaf.name: leaf for leaf in self._description.leaves}
        on_host = {key: each for key, each in memory.items() if isinstance(each, np.ndarray)}
        places = [self._place(leaves[name], rank) for rank, name in on_host]
        put = dict(zip(on_host, jax.device_put(list(on_host.values()), places), strict=True))
        pieces: dict[str, list[jax.Array]] = {name: [] for name in leaves}
        for key, each in memory.items():
            pieces[key[1]].append(put[key] if isinstance(each, np.ndarray) else each)
        return [_assembled(leaf, pieces[name]) for name, leaf in leaves.items()]


def _assembled(leaf: Leaf, pieces: list[jax.Array]) -> jax.Array:
    for piece in pieces:
        _check_dtype(leaf, piece.dtype)
    return jax.make_array_from_single_device_arrays(
        leaf.shape, leaf.sharding, pieces, dtype=leaf.dtype
    )


def _check_dtype(leaf: Leaf, dtype: np.dtype) -> None:
    if dtype != leaf.dtype:
        raise LayoutError(
            f"{leaf.name}: JAX narrowed {leaf.dtype} to {dtype}. Keep x64 on while refits "
            "run: jax.config.update('jax_enable_x64', True)."
        )


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -_address(memory) % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _address(array: np.ndarray) -> int:
    """Returns what `array.ctypes.data` does, in a fifth of the time."""
    address: int = array.__array_interface__["data"][0]
    return address
