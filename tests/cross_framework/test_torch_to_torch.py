"""Torch to torch in one process over random layouts: what torch slices is what arrives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from helpers.torch_moves import RankTensors, compare, describe_ranks, refit_in_process  # noqa: E402
from helpers.torch_ranks import filled  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from reshard import DType  # noqa: E402
from reshard_torch import torch_dtype_of  # noqa: E402

pytestmark = pytest.mark.torch

MAX_RANKS = 6
DTYPES = ["bool", "uint8", "bfloat16", "float8_e5m2", "float32", "int64", "complex128"]

Side = tuple[list[int], tuple[int, ...], tuple[object, ...]]
"""Ranks in mesh order, mesh shape, placements."""


@st.composite
def sides(draw: st.DrawFn, ndim: int) -> Side:
    """Draws a mesh over some ranks, ascending along each axis, and one placement per axis.

    A strided placement has no other one on its dim to the right: there torch and FSDP2 differ,
    which the tests of layouts cover.
    """
    mesh_shape = draw(
        st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(
            lambda sizes: torch.Size(sizes).numel() <= MAX_RANKS
        )
    )
    size = torch.Size(mesh_shape).numel()
    chosen = sorted(draw(st.permutations(range(MAX_RANKS)))[:size])
    axes = draw(st.permutations(range(len(mesh_shape))))
    back = [axes.index(axis) for axis in range(len(axes))]
    grid = torch.tensor(chosen).reshape([mesh_shape[axis] for axis in axes]).permute(back)
    ranks = grid.flatten().tolist()
    placements: list[object] = []
    strided: set[int] = set()
    for _ in mesh_shape:
        dim = draw(st.integers(-1, ndim - 1))
        if dim < 0 or dim in strided:
            placements.append(Replicate())
        elif draw(st.integers(0, 3)) == 0:
            strided.add(dim)
            placements.append(_StridedShard(dim, split_factor=draw(st.integers(2, 3))))
        else:
            placements.append(Shard(dim))
    return ranks, tuple(mesh_shape), tuple(placements)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], str, Side, Side, bool]:
    """Draws shape, dtype, both sides, and which side keeps its dims in reverse memory order."""
    shape = tuple(draw(st.lists(st.integers(0, 13), max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    is_reversed = draw(st.booleans())
    return shape, dtype, draw(sides(len(shape))), draw(sides(len(shape))), is_reversed


def _ranks(whole: torch.Tensor, side: Side, is_reversed: bool = False) -> list[RankTensors]:
    ranks, mesh_shape, placements = side
    dtype = whole.dtype
    bits = whole.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(dtype.itemsize, dtype))

    def make(rank: int) -> dict[str, object]:
        mesh = DeviceMesh("cpu", torch.tensor(ranks).reshape(mesh_shape))
        placed = distribute_tensor(bits, mesh, placements, src_data_rank=None)
        if rank not in ranks:
            return {}
        local = placed.to_local().view(dtype)
        if is_reversed and local.ndim > 1:
            local = _in_reverse_order(local)
        return {"w": _with_local(placed, local)}

    return describe_ranks(MAX_RANKS, make)


def _in_reverse_order(local: torch.Tensor) -> torch.Tensor:
    """Returns the same values with the first dim innermost in memory."""
    dims = tuple(reversed(range(local.ndim)))
    return local.permute(dims).contiguous().permute(dims)


def _with_local(placed: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    return DTensor.from_local(
        local,
        placed.device_mesh,
        placed.placements,
        run_check=False,
        shape=placed.shape,
        stride=placed.stride(),
    )


@given(case=cases())
@settings(max_examples=40)
def test_random_layouts(case: tuple[tuple[int, ...], str, Side, Side, bool]) -> None:
    shape, dtype, src, dst, is_reversed = case
    whole = filled("w", shape, dtype)
    empty = torch.zeros(shape, dtype=torch_dtype_of(DType.of(dtype)))
    destinations = _ranks(empty, dst, not is_reversed)
    refit_in_process(_ranks(whole, src, is_reversed), destinations)
    for rank, (found, expected) in enumerate(zip(destinations, _ranks(whole, dst), strict=True)):
        assert found.local.keys() == expected.local.keys()
        for name, local in found.local.items():
            compare(f"{name} on rank {rank}", local, expected.local[name], whole)
