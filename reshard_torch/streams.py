"""The CUDA stream on which a caller works with its tensors, as torch knows it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from reshard import Buffer, BufferKey, UnsupportedError, devices_of

__all__ = ["streams_of"]


def streams_of(*sides: Mapping[BufferKey, Buffer]) -> dict[int, int]:
    """Returns the handle of torch's current stream on the device of each rank that has one.

    A refit waits for what is queued there, and what is queued there later waits for the refit. Work
    that the caller queued on other streams is the caller's to join, as with any operation of torch.

    Args:
        sides: local arrays of one or both sides, in one numbering of ranks.

    Raises:
        UnsupportedError: a CUDA graph is being captured; a refit also waits for other processes.
    """
    streams = {}
    for rank, device in devices_of(*sides).items():
        if device is None:
            continue
        if torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                "a refit cannot be captured in a CUDA graph: it waits for other processes. Call it "
                "before or between replays; graphs see new weights, whose addresses stay."
            )
        streams[rank] = int(torch.cuda.current_stream(device).cuda_stream)
    return streams
