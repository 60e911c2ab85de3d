"""The only file that looks at torch's version or at names that torch does not promise.

Written for torch 2.6 and later, tested with 2.13. Each function says which private name it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeGuard, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from reshard import UnsupportedError

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})

__all__ = [
    "blocks_of",
    "group_or_default",
    "group_store",
    "is_rocm",
    "is_wrapper",
    "local_tensor",
    "non_persistent_buffers",
    "raw_local",
    "spec_of",
    "split_indices",
    "unsharded_parameters",
]


def blocks_of(placement: Placement) -> int | None:
    """Returns 1 for `Shard`, the split factor for `_StridedShard`, None for any other placement.

    Private: `_StridedShard`; a subclass of `Shard` in older versions, so it is asked for first.
    """
    if isinstance(placement, _StridedShard):
        return int(placement.split_factor)
    return 1 if isinstance(placement, Shard) else None


def split_indices(
    placement: Placement, dim: int, indices: torch.Tensor, num_parts: int
) -> list[torch.Tensor]:
    """Returns the parts that torch itself makes of a vector of indices along `dim`.

    Private: `_split_tensor` of both shard placements, which `distribute_tensor` uses.

    Raises:
        UnsupportedError: if this version of torch cannot divide the length over the parts.
    """
    along_dim = indices.view((1,) * dim + (-1,))
    splitter = cast(Shard, placement)
    try:
        parts, _ = splitter._split_tensor(
            along_dim, num_parts, with_padding=False, contiguous=False
        )
    except AssertionError as error:
        raise UnsupportedError(
            f"torch {torch.__version__} cannot divide {len(indices)} elements by {placement} over "
            f"{num_parts} ranks ({error}). Use a newer torch, or an even size."
        ) from error
    return [part.reshape(-1) for part in parts]


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of this rank behind a tensor, without its autograd history.

    Private: `AsyncCollectiveTensor`, the unfinished result of a collective, which is waited for.
    """
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            local: torch.Tensor = tensor.to_local()
    else:
        local = tensor.detach()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    return local


def raw_local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor object that a DTensor holds, or the tensor itself; costs nothing.

    Private: `_local_tensor`.
    """
    return tensor._local_tensor if _is_dtensor(tensor) else tensor


def spec_of(tensor: torch.Tensor) -> object:
    """Returns the object that says how a DTensor is placed; None for other tensors.

    Private: `_spec`.
    """
    return tensor._spec if _is_dtensor(tensor) else None


def _is_dtensor(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """The same as `isinstance`, which torch makes slow, for classes that are common."""
    kind = type(tensor)
    return kind is DTensor or (kind not in _PLAIN and isinstance(tensor, DTensor))


def group_store(group: dist.ProcessGroup | None) -> Store:
    """Returns the store through which the ranks of a group found each other.

    Private: `_get_process_group_store`.
    """
    return distributed_c10d._get_process_group_store(group_or_default(group))


def group_or_default(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns the group, or the default one for None.

    Private: `_get_default_group`, which says what to do if there is none.
    """
    return distributed_c10d._get_default_group() if group is None else group


def is_rocm() -> bool:
    """True for a torch that calls AMD GPUs "cuda"."""
    return torch.version.hip is not None


def is_wrapper(tensor: torch.Tensor) -> bool:
    """True for a tensor subclass without memory of its own, such as the quantised ones of torchao.

    Private: `is_traceable_wrapper_subclass`.
    """
    return bool(is_traceable_wrapper_subclass(tensor))


def non_persistent_buffers(module: torch.nn.Module) -> frozenset[str]:
    """Returns the names of the buffers of one module, without its children, that are not saved.

    Private: `_non_persistent_buffers_set`. `state_dict` would tell too, but runs hooks.
    """
    return frozenset(module._non_persistent_buffers_set)


def unsharded_parameters(module: torch.nn.Module) -> Iterator[str]:
    """Yields the FSDP2 modules in `module` whose parameters are gathered at the moment.

    Private: the state of an FSDPModule and its parameter groups (in older versions, one group).
    """
    for name, child in module.named_modules():
        if not isinstance(child, FSDPModule):
            continue
        state = child._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [state._fsdp_param_group]
        if any(group is not None and not group.is_sharded for group in groups):
            yield name or type(child).__name__
