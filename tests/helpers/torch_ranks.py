"""Torch tensors that hold the pattern of a test, and process groups for torch."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.distributed as dist

from helpers import patterns
from reshard import DType, LocalBox
from reshard_torch import torch_dtype_of

__all__ = ["bits_of", "check_local", "fake_rank", "filled", "gloo_group"]


@contextlib.contextmanager
def fake_rank(rank: int, num_ranks: int) -> Iterator[None]:
    """Makes this process one rank of a group whose collectives do nothing.

    With it the DTensors of all ranks can be made in one process, one rank after the other.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def gloo_group(
    process: int, num_processes: int, folder: str, timeout_s: float = 60.0
) -> Iterator[None]:
    """Makes this process one rank of a real gloo group, which meets in a file of `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=process,
        world_size=num_processes,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def filled(
    name: str, shape: tuple[int, ...], dtype: DType | str = "float32", version: int = 0
) -> torch.Tensor:
    """Returns a whole tensor with its pattern."""
    dtype = DType.of(dtype)
    tensor = torch.empty(shape, dtype=torch_dtype_of(dtype))
    if tensor.numel():
        content = np.ascontiguousarray(_whole(name, shape, dtype, version)).reshape(-1)
        flat = torch.from_numpy(content.view(np.uint8))
        tensor.view(-1).view(torch.uint8).copy_(flat)
    return tensor


def check_local(
    name: str,
    shape: tuple[int, ...],
    boxes: Iterable[LocalBox],
    local: torch.Tensor,
    version: int = 0,
) -> None:
    """Checks that a local tensor holds, bit for bit, its boxes of the pattern of the whole one.

    Raises:
        AssertionError: with the first wrong element and where its value belongs.
    """
    whole = _whole(name, shape, DType.of(str(local.dtype)), version)
    found = bits_of(local)
    for box, at in boxes:
        here = tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))
        there = tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
        problem = patterns.explain_mismatch(f"{name} {box}", found[here], whole[there], whole)
        if problem is not None:
            raise AssertionError(problem)


def bits_of(tensor: torch.Tensor) -> patterns.Array:
    """Returns the bits of a tensor of any strides, in the form of `patterns`."""
    bits = np.empty(tuple(tensor.shape), patterns.bit_dtype(tensor.element_size()))
    if tensor.numel():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        bits[...] = flat.view(bits.dtype).reshape(bits.shape)
    return bits


def _whole(name: str, shape: tuple[int, ...], dtype: DType, version: int) -> patterns.Array:
    bits = patterns.whole(name, shape, dtype.itemsize, version)
    return bits & 1 if dtype is DType.BOOL else bits
