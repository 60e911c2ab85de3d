"""A tensor together with the layout that somebody declared for it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor

from reshard import AnyLayout, Layout, LayoutError
from reshard_torch.compat import local_tensor

__all__ = ["Placed", "resolve"]


class Placed(NamedTuple):
    """A tensor whose layout is declared, because the tensor itself does not know it.

    Attributes:
        tensor: the local tensor of this rank, or a DTensor whose placements are not to be used.
        layout: in ranks of this side. `BoxLayout({rank: Box(...)})` with the own box alone is
            enough: boxes of all processes are joined.
        shape: global shape. None takes it from a DTensor, or multiplies the local shape by the
            number of parts, which is right only if the parts are equal.
    """

    tensor: torch.Tensor
    layout: AnyLayout
    shape: tuple[int, ...] | None = None


def resolve(name: str, placed: Placed, rank: int) -> tuple[int, ...]:
    """Returns the global shape of a declared tensor.

    Raises:
        LayoutError: if the shape cannot be told, or the local tensor is not what the layout says.
    """
    tensor, layout, shape = placed
    local_shape = tuple(local_tensor(tensor).shape)
    if shape is None and isinstance(tensor, DTensor):
        shape = tuple(tensor.shape)
    if shape is None:
        shape = _even_global_shape(name, layout, local_shape, rank)
    shape = tuple(int(length) for length in shape)
    try:
        layout.check(shape)
        expected = layout.local_shape(rank, shape)
    except LayoutError as error:
        raise LayoutError(f"{name}: {error}") from None
    if expected is not None and expected != local_shape:
        raise LayoutError(
            f"{name}: the local tensor of rank {rank} has shape {local_shape}, but the declared "
            f"layout {layout} of global shape {shape} gives {expected}. Declare what the rank "
            "really holds."
        )
    if expected is None and 0 not in local_shape:
        raise LayoutError(
            f"{name}: rank {rank} gives a tensor of shape {local_shape}, but is not in the "
            f"declared layout {layout}, whose ranks are {layout.ranks}. Ranks are those of this "
            "side."
        )
    return shape


def _even_global_shape(
    name: str, layout: AnyLayout, local_shape: tuple[int, ...], rank: int
) -> tuple[int, ...]:
    if not isinstance(layout, Layout) or layout.position(rank) is None:
        raise LayoutError(
            f"{name}: layout {layout} does not tell the global shape from the local shape "
            f"{local_shape} of rank {rank}. Give it: (tensor, layout, global_shape)."
        )
    return tuple(
        length * math.prod(parts for parts, _ in layout.cuts_of_dim(dim))
        for dim, length in enumerate(local_shape)
    )
