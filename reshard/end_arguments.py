"""What callers give to the ends of a refit, read and checked."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from types import MappingProxyType

from reshard.errors import LayoutError

__all__ = ["MAX_STAGING_BYTES", "NO_STREAMS", "read_flag", "read_streams"]

MAX_STAGING_BYTES = 1 << 62
"""The largest budget that a process may give."""
NO_STREAMS: Mapping[int, int] = MappingProxyType({})
"""What callers without CUDA streams give."""
_MAX_STREAM = (1 << 64) - 1  # a handle is an address


def read_flag(name: str, given: object) -> bool:
    """Returns a flag as a plain one; NumPy's are taken too.

    Raises:
        LayoutError: it is neither True nor False.
    """
    if given is True or given is False or str(getattr(given, "dtype", "")) == "bool":
        return bool(given)
    raise LayoutError(f"{name}={given!r} is neither True nor False.")


def read_streams(given: Mapping[int, int], ranks: Collection[int]) -> dict[int, int]:
    """Returns the handle of the CUDA stream of each rank that has one.

    Args:
        given: by rank.
        ranks: those of this process.

    Raises:
        LayoutError: a rank of another process, or what is no handle.
    """
    streams = {}
    for rank, handle in given.items():
        if rank not in ranks:
            raise LayoutError(
                f"streams name rank {rank}, which is not one of this process: {sorted(ranks)}."
            )
        try:
            number = operator.index(handle)
        except TypeError:
            number = -1
        if not 0 <= number <= _MAX_STREAM or isinstance(handle, bool):
            raise LayoutError(
                f"streams: {handle!r} of rank {rank} is no handle of a CUDA stream. Give it as a "
                "whole number, such as torch.cuda.current_stream().cuda_stream."
            )
        streams[rank] = number
    return streams
