"""Arrays whose memory is given back before or after a move, unless somebody else needs it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

import jax

from reshard_jax.compat import pieces_of, platform_of

__all__ = ["delete_unshared"]


def delete_unshared(arrays: Iterable[jax.Array], keep: Sequence[jax.Array] = ()) -> int:
    """Deletes arrays, but none whose memory another live array of this process uses as well.

    `jax.device_put` to an equal sharding makes a second array of the same memory, and to delete
    either takes it from both. The shards of an array are no other arrays, and PRNG keys are not
    looked at.

    Args:
        arrays: to delete; those that are deleted already are passed over.
        keep: arrays to spare even where they are among `arrays`.

    Returns:
        How many were deleted.
    """
    kept = {id(array) for array in keep}
    candidates = {id(a): a for a in arrays if id(a) not in kept and not a.is_deleted()}
    pieces = {id(piece) for array in candidates.values() for piece in pieces_of(array)}
    platforms = {platform_of(next(iter(array.devices()))) for array in candidates.values()}
    used = {
        address
        for platform in platforms
        for array in jax.live_arrays(platform)  # type: ignore[no-untyped-call]
        if id(array) not in candidates and id(array) not in pieces and not array.is_deleted()
        for address in _addresses(array)
    }
    unshared = [array for array in candidates.values() if used.isdisjoint(_addresses(array))]
    for array in unshared:
        array.delete()
    # JAX drops what lies under an array, such as NumPy's memory, when Python next collects garbage.
    gc.collect(0)
    return len(unshared)


def _addresses(array: jax.Array) -> set[int]:
    return {
        shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards if shard.data.size
    }
