"""Which boxes of a tensor each rank holds, read from a DTensor.

The placements are translated, and the result is compared with what torch's own functions say, part
by part. Nothing is derived from sizes alone: where placements leave two readings open, the local
shape decides, and where that cannot decide either, the tensor is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

import reshard
from reshard import (
    AnyLayout,
    Box,
    BoxLayout,
    Layout,
    LayoutError,
    LocalBox,
    Mesh,
    UnsupportedError,
)
from reshard_torch.compat import blocks_of, local_tensor, split_indices

__all__ = ["LayoutReader", "layout_of", "own_boxes"]

_EXPLICIT = "(tensor.to_local(), BoxLayout({rank: Box(...)}), global_shape)"

Run = tuple[int, int]
Runs = tuple[tuple[Run, ...], ...]
Cuts = tuple[tuple[Placement, int], ...]
"""The placements that cut one dim, in mesh order, and how many ranks each cuts it over."""


def layout_of(tensor: DTensor, name: str = "tensor") -> tuple[tuple[int, ...], AnyLayout]:
    """Returns the global shape of a DTensor and its layout, in global ranks.

    Args:
        tensor: any mesh (permuted, sub-mesh, named or not), with `Replicate`, `Shard` and
            `_StridedShard` placements, uneven and empty shards included.
        name: how messages call it.

    Raises:
        LayoutError: if the local tensor is not what the placements say.
        UnsupportedError: for `Partial` and placements that torch does not ship.

    Collective: no; nothing is communicated.

    Example:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        >>> weight = distribute_tensor(torch.zeros(4, 6), mesh, [Shard(1)])
        >>> shape, layout = layout_of(weight)
        >>> print(shape, layout)
        (4, 6) (tp:S(1))@(tp=1)
        >>> dist.destroy_process_group()
    """
    return LayoutReader().read(name, tensor)


class LayoutReader:
    """Reads the layouts of many DTensors; equal ones become one object, which makes plans faster.

    Args:
        side_rank_of: number of a global rank on this side; None means the global rank itself.
        num_ranks: of the side. A mesh over fewer ranks is what this process knows: others may have
            the same tensor on a mesh of theirs (FSDP beside tensor parallelism, pipeline stages),
            so only the boxes of this rank are stated, and those of all processes are joined later.
            None means that every mesh is the whole side.
    """

    def __init__(
        self,
        side_rank_of: Callable[[int], int | None] | None = None,
        num_ranks: int | None = None,
    ) -> None:
        self._side_rank_of = side_rank_of
        self._num_ranks = num_ranks
        self._meshes: dict[DeviceMesh, Mesh] = {}
        self._readings: dict[object, tuple[Layout, ...]] = {}
        self._layouts: dict[AnyLayout, AnyLayout] = {}

    def read(self, name: str, tensor: DTensor) -> tuple[tuple[int, ...], AnyLayout]:
        """Returns the global shape and the layout of a DTensor; see `layout_of`."""
        shape = tuple(int(length) for length in tensor.shape)
        mesh = self._mesh(name, tensor.device_mesh)
        key = mesh, tensor.placements, shape
        readings = self._readings.get(key)
        if readings is None:
            readings = self._readings[key] = _readings(name, mesh, tensor.placements, shape)
        rank = self._rank(name, dist.get_rank())
        layout: AnyLayout = readings[0]
        is_plain = len(readings) == 1 and self._num_ranks in (None, mesh.size)
        if mesh.position(rank) is None:
            layout = layout if is_plain else BoxLayout(())
        else:
            boxes = _choose(name, readings, rank, shape, tuple(local_tensor(tensor).shape))
            layout = layout if is_plain else BoxLayout(((rank, boxes),))
        return shape, self._layouts.setdefault(layout, layout)

    def _mesh(self, name: str, device_mesh: DeviceMesh) -> Mesh:
        mesh = self._meshes.get(device_mesh)
        if mesh is None:
            sizes = tuple(int(size) for size in device_mesh.shape)
            names = device_mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(len(sizes)))
            ranks = [self._rank(name, rank) for rank in device_mesh.mesh.flatten().tolist()]
            mesh = self._meshes[device_mesh] = Mesh(names, sizes, tuple(ranks))
        return mesh

    def _rank(self, name: str, global_rank: int) -> int:
        if self._side_rank_of is None:
            return global_rank
        rank = self._side_rank_of(global_rank)
        if rank is None:
            raise LayoutError(
                f"{name}: its device mesh has global rank {global_rank}, which is not in the "
                "process group of this side. Give the group that has all ranks of all meshes."
            )
        return rank


def _readings(
    name: str, mesh: Mesh, placements: Sequence[Placement], shape: tuple[int, ...]
) -> tuple[Layout, ...]:
    """Returns what placements can mean: torch's definition first, then how FSDP2 may have cut."""
    translated = tuple(_translate(name, placement, len(shape)) for placement in placements)
    try:
        layout = Layout(mesh, translated)
        layout.check(shape)
    except LayoutError as error:
        raise LayoutError(f"{name}: {error}") from None
    _check_order(name, layout)
    for dim, length in enumerate(shape):
        _compare_with_torch(name, layout, placements, dim, length)
    nested = _right_to_left(layout)
    is_same = all(
        _part_runs(layout, dim, length) == _part_runs(nested, dim, length)
        for dim, length in enumerate(shape)
    )
    return (layout,) if is_same else (layout, nested)


def _translate(name: str, placement: Placement, ndim: int) -> reshard.Placement:
    if isinstance(placement, Replicate):
        return reshard.Replicate()
    blocks = blocks_of(placement)
    if blocks is not None:
        dim = int(getattr(placement, "dim"))  # noqa: B009 (Placement itself has none)
        return reshard.Shard(dim + ndim if dim < 0 else dim, blocks)
    if placement.is_partial():
        raise UnsupportedError(
            f"{name}: placement {placement} holds partial sums, which are not a copy of the "
            "tensor. Reduce first: tensor.redistribute(placements=...) with Replicate() or "
            "Shard(dim)."
        )
    raise UnsupportedError(
        f"{name}: placement {placement!r} is not Replicate, Shard or _StridedShard. Give the local "
        f"tensor with its boxes: {_EXPLICIT}."
    )


def _compare_with_torch(
    name: str, layout: Layout, placements: Sequence[Placement], dim: int, length: int
) -> None:
    cuts = tuple((placements[axis], layout.mesh.shape[axis]) for axis in layout.axes_of_dim(dim))
    expected = _torch_runs(cuts, dim, length)
    found = layout.runs_of_dim(dim, length)
    if cuts and found != expected:
        raise LayoutError(
            f"{name}: torch {torch.__version__} cuts dim {dim} of {length} elements by "
            f"{[str(placement) for placement, _ in cuts]} into {expected}, reshard into {found}. "
            "This is a defect of reshard; please report it with the mesh. Explicit boxes work: "
            f"{_EXPLICIT}."
        )


@lru_cache(maxsize=4096)
def _torch_runs(cuts: Cuts, dim: int, length: int) -> Runs:
    """Returns the runs of each part of a dim as torch's own functions divide it."""
    parts = [torch.arange(length, device="cpu")]  # whatever the default device is
    for placement, size in cuts:
        parts = [piece for part in parts for piece in split_indices(placement, dim, part, size)]
    return tuple(_runs_of_indices(part) for part in parts)


def _runs_of_indices(indices: torch.Tensor) -> tuple[Run, ...]:
    if len(indices) == 0:
        return ()
    breaks = torch.nonzero(indices.diff() != 1).flatten()
    firsts = torch.cat([indices[:1], indices[breaks + 1]]).tolist()
    lasts = torch.cat([indices[breaks], indices[-1:]]).tolist()
    return tuple((first, last + 1) for first, last in zip(firsts, lasts, strict=True))


def _right_to_left(layout: Layout) -> Layout:
    """Returns the layout in which each axis that asks for it cuts after the axes to its right.

    FSDP2 over tensor parallelism cuts the parts that the other axes left, and says so with a
    `_StridedShard` whose split factor is the number of those parts. Where sizes do not divide,
    torch's definition of that placement gives another division than FSDP2 made.
    """
    placements = list(layout.placements)
    minor_to_major: list[int] = []
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        if not isinstance(placement, reshard.Shard):
            minor_to_major.append(axis)
            continue
        right = [
            layout.mesh.shape[other]
            for other in range(axis + 1, len(placements))
            if isinstance(p := placements[other], reshard.Shard) and p.dim == placement.dim
        ]
        if right and placement.blocks == math.prod(right):
            placements[axis] = reshard.Shard(placement.dim)
            minor_to_major.insert(0, axis)
        else:
            minor_to_major.append(axis)
    order = tuple(layout.mesh.axis_names[axis] for axis in reversed(minor_to_major))
    return Layout(layout.mesh, tuple(placements), order, layout.division)


def _part_runs(layout: Layout, dim: int, length: int) -> list[tuple[Run, ...]]:
    """Returns the runs of a dim for each position of the mesh, whatever the order of axes."""
    runs = layout.runs_of_dim(dim, length)
    coordinates = (layout.mesh.coordinate(rank) for rank in layout.mesh.ranks)
    return [runs[layout.part_of_dim(dim, at)] for at in coordinates if at is not None]


def _check_order(name: str, layout: Layout) -> None:
    """Refuses meshes whose ranks do not ascend along an axis that cuts.

    Torch contradicts itself there: collectives, `distribute_tensor` and FSDP among them, number
    the ranks of an axis in ascending order; offsets, local splits and sizes go by the order of the
    mesh.
    """
    mesh = layout.mesh
    for axis, placement in enumerate(layout.placements):
        stride, size = mesh.strides[axis], mesh.shape[axis]
        for first in range(mesh.size):
            group = mesh.ranks[first : first + size * stride : stride]
            is_first = first // stride % size == 0
            if isinstance(placement, reshard.Shard) and is_first and list(group) != sorted(group):
                raise LayoutError(
                    f"{name}: axis {mesh.axis_names[axis]!r} of its mesh lists ranks {group}, "
                    "which do not ascend. Torch's collectives order such ranks in another way than "
                    "its offsets do, so nobody can tell what each rank holds. Use a mesh with "
                    f"ascending ranks, or say it: {_EXPLICIT}."
                )


def _choose(
    name: str,
    readings: Sequence[Layout],
    rank: int,
    shape: tuple[int, ...],
    local_shape: tuple[int, ...],
) -> tuple[LocalBox, ...]:
    """Returns the boxes that the local tensor of this rank holds.

    Raises:
        LayoutError: if no reading gives such a local shape, or several do with different boxes.
    """
    found = dict.fromkeys(
        _held(layout, rank, shape)
        for layout in readings
        if layout.local_shape(rank, shape) == local_shape
    )
    if not found:
        raise LayoutError(
            f"{name}: the local tensor of rank {rank} has shape {local_shape}, but {readings[0]} "
            f"of global shape {shape} gives {readings[0].local_shape(rank, shape)}. If it was made "
            f"by from_local from uneven parts, give its box: {_EXPLICIT}."
        )
    if len(found) > 1:
        listed = " or ".join(", ".join(str(box) for box, _ in boxes) for boxes in found)
        raise LayoutError(
            f"{name}: {readings[0]} of shape {shape} can be read in two ways, because torch and "
            f"FSDP2 cut such tensors differently: rank {rank} may hold {listed}. Give the one that "
            f"is meant: {_EXPLICIT}."
        )
    return next(iter(found))


def own_boxes(layout: AnyLayout, rank: int, shape: tuple[int, ...]) -> BoxLayout:
    """Returns the part of a layout that one rank holds; nothing for a rank outside it."""
    if layout.position(rank) is None:
        return BoxLayout(())
    return BoxLayout(((rank, _held(layout, rank, shape)),))


def _held(layout: AnyLayout, rank: int, shape: tuple[int, ...]) -> tuple[LocalBox, ...]:
    """Returns the boxes of a rank; an empty one, which tells the local shape, if it has none."""
    boxes = layout.local_boxes(rank, shape)
    if boxes:
        return boxes
    local_shape = layout.local_shape(rank, shape) or (0,) * len(shape)
    return (LocalBox(Box((0,) * len(shape), local_shape), (0,) * len(shape)),)
