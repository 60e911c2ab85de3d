"""The memory behind a tensor, as the address and byte strides that native code works with."""

from __future__ import annotations

import torch

from reshard import Buffer, LayoutError, UnsupportedError
from reshard_torch.compat import is_rocm, is_wrapper, local_tensor
from reshard_torch.dtypes import dtype_of

__all__ = ["buffer_of", "has_memory"]


def buffer_of(tensor: torch.Tensor, name: str = "tensor") -> Buffer:
    """Returns the buffer of this rank's part of a tensor; writing into it writes into the tensor.

    Strides are kept as they are: a transposed view or a slice is read and written by index, never
    as flat bytes. The buffer keeps the memory alive. Gradients play no part. On a CUDA device the
    address is that of the tensor itself; nothing waits, so work that is queued may still write it.

    Args:
        tensor: a tensor in host memory or on a CUDA device; of a DTensor, the local tensor.
        name: how messages call it.

    Raises:
        LayoutError: if the tensor has no memory (meta device, freed storage) or is a lazy view.
        UnsupportedError: for devices, memory formats and dtypes that are not moved.

    Example:
        >>> import torch
        >>> columns = torch.zeros(4, 6, dtype=torch.bfloat16)[:, ::2]
        >>> buffer = buffer_of(columns)
        >>> buffer.shape, buffer.strides
        ((4, 3), (12, 4))
    """
    local = local_tensor(tensor)
    _check_kind(local, name)
    dtype = dtype_of(local.dtype)
    shape = tuple(int(length) for length in local.shape)
    strides = tuple(int(stride) * dtype.itemsize for stride in local.stride())
    if local.numel() == 0:
        return Buffer(0, shape, strides, dtype, owner=local)
    if local.untyped_storage().nbytes() == 0:
        raise LayoutError(
            f"{name}: its storage was freed (resized to 0), as sleep modes and FSDP do. Bring the "
            "weights back before a refit."
        )
    device = local.get_device() if local.is_cuda else None
    return Buffer(local.data_ptr(), shape, strides, dtype, owner=local, device=device)


def has_memory(local: torch.Tensor) -> bool:
    """True if a local tensor has elements at an address."""
    return (
        local.layout is torch.strided
        and not is_wrapper(local)
        and not _is_meta(local)
        and local.numel() > 0
    )


def _is_meta(local: torch.Tensor) -> bool:
    """True for meta tensors and for the fake ones that torch traces with."""
    return local.untyped_storage().device.type == "meta"


def _check_kind(local: torch.Tensor, name: str) -> None:
    if local.layout is not torch.strided:
        raise UnsupportedError(
            f"{name}: memory format {local.layout} is not moved. Move its parts (values, indices) "
            "as tensors of their own."
        )
    if is_wrapper(local):
        raise UnsupportedError(
            f"{name}: {type(local).__name__} is a wrapper without memory of its own. Move the "
            "tensors inside it, each under its own name."
        )
    if _is_meta(local):
        raise LayoutError(
            f"{name}: is on the meta device and holds no data. Materialise it first, with "
            "module.to_empty(device=...)."
        )
    if local.is_conj() or local.is_neg():
        raise LayoutError(
            f"{name}: is a lazily conjugated or negated view, whose memory holds other values. "
            "Give tensor.resolve_conj().resolve_neg()."
        )
    _check_device(local, name)


def _check_device(local: torch.Tensor, name: str) -> None:
    kind = local.device.type
    if kind == "cuda" and is_rocm():
        raise UnsupportedError(
            f"{name}: is on {local.device} of a torch for AMD GPUs (ROCm); of GPUs, NVIDIA's are "
            "supported. Give tensor.cpu()."
        )
    if kind not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"{name}: is on device {local.device}; memory of the host (cpu) and of NVIDIA GPUs "
            f"(cuda) is moved, that of {kind!r} is not. Give tensor.cpu()."
        )
