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
from reshard_jax.description import Description, Leaf
from reshard_jax.dlpack import memory_of_capsule

__all__ = ["ReceiveBuffers", "source_buffers"]

ALIGNMENT = 64
"""Bytes; JAX on CPU takes over memory that is aligned so, and copies any other."""

_REMEDY = "Publish the parameters that the training step returned."


def source_buffers(
    description: Description, arrays: Sequence[jax.Array]
) -> dict[BufferKey, Buffer]:
    """Returns the memory of every shard that this process has, once it is computed.

    Args:
        description: of these weights.
        arrays: one per weight, in its order.

    Returns:
        Buffers by (rank, name), none for shards without elements. Their memory keeps its content
        while they live, whatever happens to the arrays: an array that is donated meanwhile is gone
        as usual, but its memory is not used again.

    Raises:
        LayoutError: if an array was deleted or donated before.
        UnsupportedError: if it is not in host memory.
    """
    _check_alive(description, arrays, None)
    try:
        jax.block_until_ready(list(arrays))  # type: ignore[no-untyped-call]
        return _buffers(description, arrays)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        # Another thread may donate an array while its shards are being taken hold of. JAX then
        # raises what comes of it, such as "'NoneType' object is not iterable" of its list of
        # shards; an error of any other origin goes on as it is.
        _check_alive(description, arrays, error)
        # JAX may say so of a buffer or a shard before it does of the array.
        if "deleted" in str(error) or "donated" in str(error):
            raise LayoutError(
                f"an array was deleted or donated meanwhile: {error}. {_REMEDY}"
            ) from error
        raise


def _check_alive(
    description: Description, arrays: Sequence[jax.Array], error: Exception | None
) -> None:
    for spec, array in zip(description.specs, arrays, strict=True):
        if array.is_deleted():
            raise LayoutError(
                f"{spec.name}: the array was deleted or donated. {_REMEDY}"
            ) from error


def _buffers(description: Description, arrays: Sequence[jax.Array]) -> dict[BufferKey, Buffer]:
    rank_of = description.ranks.of
    buffers: dict[BufferKey, Buffer] = {}
    for spec, array in zip(description.specs, arrays, strict=True):
        for shard in array.addressable_shards:
            if shard.data.size:
                key = rank_of(shard.device), spec.name
                buffers[key] = _buffer_of_shard(spec.name, shard.data, spec.dtype)
    return buffers


def _buffer_of_shard(name: str, data: jax.Array, dtype: DType) -> Buffer:
    capsule = data.__dlpack__()
    try:
        address, strides = memory_of_capsule(capsule, dtype.itemsize)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from error
    return Buffer(address, data.shape, strides, dtype, False, capsule)


class ReceiveBuffers:
    """Fresh row-major memory for one refit, and the arrays that it becomes.

    Args:
        description: of the weights to receive.
        initial: by name, arrays of the same sharding whose values the memory gets first: for
            weights that may stay without a source.

    Attributes:
        buffers: by (rank, name).
    """

    def __init__(self, description: Description, initial: Mapping[str, jax.Array | None]) -> None:
        self._description = description
        self._memory: dict[BufferKey, np.ndarray] = {}
        self.buffers: dict[BufferKey, Buffer] = {}
        local = set(description.ranks.local)
        for leaf, spec in zip(description.leaves, description.specs, strict=True):
            for rank, box in description.boxes(leaf).items():
                if rank not in local:
                    continue
                memory = _aligned(box.shape, leaf.dtype)
                self._memory[rank, leaf.name] = memory
                self.buffers[rank, leaf.name] = Buffer(
                    _address(memory), box.shape, memory.strides, spec.dtype, True, memory
                )
        for name, array in initial.items():
            self._fill(name, array)

    def _fill(self, name: str, array: jax.Array | None) -> None:
        values: dict[int, np.ndarray | int] = {}
        if array is not None:
            rank_of = self._description.ranks.of
            values = {rank_of(s.device): np.asarray(s.data) for s in array.addressable_shards}
        for (rank, filled), memory in self._memory.items():
            if filled == name:
                memory[...] = values.get(rank, 0)

    def to_arrays(self) -> list[jax.Array]:
        """Returns one array per weight, with exactly its sharding, over the memory itself.

        The memory belongs to the arrays from now on, so this can be called once.
        """
        memory, self._memory = self._memory, {}
        self.buffers.clear()
        leaves, devices = self._description.leaves, self._description.ranks.devices
        kinds = {leaf.name: leaf.sharding.memory_kind for leaf in leaves}
        places = [
            SingleDeviceSharding(devices[rank], memory_kind=kinds[name]) for rank, name in memory
        ]
        pieces: dict[str, list[jax.Array]] = {leaf.name: [] for leaf in leaves}
        put = jax.device_put(list(memory.values()), places)
        for (_, name), piece in zip(memory, put, strict=True):
            pieces[name].append(piece)
        return [_assembled(leaf, pieces[leaf.name]) for leaf in leaves]


def _assembled(leaf: Leaf, pieces: list[jax.Array]) -> jax.Array:
    for piece in pieces:
        if piece.dtype != leaf.dtype:
            raise LayoutError(
                f"{leaf.name}: JAX narrowed {leaf.dtype} to {piece.dtype}. Keep x64 on while "
                "refits run: jax.config.update('jax_enable_x64', True)."
            )
    return jax.make_array_from_single_device_arrays(
        leaf.shape, leaf.sharding, pieces, dtype=leaf.dtype
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
