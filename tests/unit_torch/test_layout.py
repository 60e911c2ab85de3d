"""Layouts read from DTensors against what torch itself puts where; names begin with the case row.

Ranks are made one after the other in a fake process group; each DTensor is a slice, made by torch,
of a tensor whose elements are their own indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from helpers.torch_ranks import fake_rank  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from reshard import AnyLayout, Box, BoxLayout, Layout, LayoutError, UnsupportedError  # noqa: E402
from reshard_torch import layout_of  # noqa: E402
from reshard_torch.compat import local_tensor  # noqa: E402
from reshard_torch.layout import LayoutReader  # noqa: E402

pytestmark = pytest.mark.torch

R = Replicate()


def S(dim: int) -> Shard:  # noqa: N802 (as DTensor prints it)
    return Shard(dim)


def SS(dim: int, factor: int) -> _StridedShard:  # noqa: N802
    return _StridedShard(dim, split_factor=factor)


def _indices(shape: Sequence[int]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count).reshape(tuple(shape))


def _check_rank(layout: AnyLayout, shape: tuple[int, ...], rank: int, local: torch.Tensor) -> None:
    whole = _indices(shape)
    assert layout.local_shape(rank, shape) == tuple(local.shape)
    expected = torch.full(local.shape, -1)
    for box, at in layout.local_boxes(rank, shape):
        here = tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))
        there = tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
        expected[here] = whole[there]
    assert torch.equal(expected, local)


def _read_all(
    num_ranks: int, shape: tuple[int, ...], make: Callable[[int], DTensor]
) -> list[tuple[AnyLayout, torch.Tensor]]:
    """Reads and checks the layout of every rank; returns layouts and local tensors."""
    read = []
    for rank in range(num_ranks):
        with fake_rank(rank, num_ranks):
            tensor = make(rank)
            read_shape, layout = layout_of(tensor, "w")
            local = local_tensor(tensor)
        assert read_shape == shape
        if rank in layout.ranks:
            _check_rank(layout, shape, rank, local)
        else:
            assert local.numel() == 0
        read.append((layout, local))
    return read


def _distributed(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: Sequence[object]
) -> Callable[[int], DTensor]:
    def make(rank: int) -> DTensor:
        mesh = init_device_mesh("cpu", mesh_shape)
        return distribute_tensor(_indices(shape), mesh, placements, src_data_rank=None)

    return make


CASES = {
    "a1": ((5, 10), (4,), (S(0),)),
    "a2": ((6, 16), (4,), (S(0),)),
    "a4": ((7, 5), (2, 2), (S(0), S(0))),
    "a5_five": ((5,), (2, 2), (SS(0, 2), S(0))),
    "a5_six": ((6,), (2, 2), (SS(0, 2), S(0))),
    "a8": ((8,), (2, 2), (SS(0, 2), S(0))),
    "a8_plain": ((8,), (2, 2), (S(0), S(0))),
    "a9_reversed": ((16, 3), (2, 2, 2), (SS(0, 4), SS(0, 2), S(0))),
    "a9_last_two_swapped": ((16, 3), (2, 2, 2), (S(0), SS(0, 2), S(0))),
    "a9_first_last": ((16, 3), (2, 2, 2), (SS(0, 4), S(0), S(0))),
    "a15_tp5": ((32000, 2), (5,), (S(0),)),
    "a15_odd": ((151665, 1), (2,), (S(0),)),
    "b1_experts": ((8, 12, 4), (2, 4), (SS(0, 4), S(0))),
    "b1_two_dims": ((4, 16, 4), (2, 4), (S(1), S(0))),
    "b1_few_experts": ((4, 16, 4), (8,), (S(1),)),
    "b2": ((16, 8, 6), (2, 2, 2), (S(0), S(0), S(1))),
    "b3": ((8, 12, 6), (2, 2), (S(0), S(1))),
    "b4_hsdp": ((6, 4), (2, 2), (R, S(0))),
    "b12": ((64, 8), (8,), (S(0),)),
    "packed_gate_up": ((3, 8, 5), (2,), (SS(1, 2),)),
    "packed_uneven": ((3, 10, 5), (2,), (SS(1, 2),)),
    "packed_and_fsdp": ((4, 8, 5), (2, 2), (S(0), SS(1, 2))),
    "fa6": ((6, 4), (2, 2), (S(0), S(1))),
    "fa7": ((8, 6, 4), (2, 4), (S(0), S(1))),
    "fa8": ((8, 2), (2, 2), (SS(0, 2), S(0))),
    "fa11": ((2, 3), (4,), (S(0),)),
    "fa14_five": ((5, 3), (2,), (S(0),)),
    "fa14_seven": ((7,), (4,), (S(0),)),
    "fa16_conv": ((2, 3, 4, 4), (2,), (S(1),)),
    "fa17": ((4, 6), (2, 2), (R, R)),
    "negative_dim": ((4, 6), (3,), (Shard(-1),)),
    "size_one_axes": ((4, 6), (1, 3, 1), (S(0), S(1), S(0))),
    "zero_dims": ((), (2,), (R,)),
    "no_elements": ((0, 4), (2,), (S(1),)),
    "more_ranks_than_elements": ((3,), (2, 4), (S(0), S(0))),
    "uneven_strided": ((9, 2), (4,), (SS(0, 2),)),
}


@pytest.mark.parametrize("case", CASES)
def test_boxes_are_those_of_torch(case: str) -> None:
    shape, mesh_shape, placements = CASES[case]
    num_ranks = torch.Size(mesh_shape).numel()
    read = _read_all(num_ranks, shape, _distributed(shape, mesh_shape, placements))
    assert all(isinstance(layout, Layout) for layout, _ in read)
    assert len({layout for layout, _ in read}) == 1


def test_a1_a2_row_counts() -> None:
    for shape, expected in (((5, 10), [2, 2, 1, 0]), ((6, 256), [2, 2, 2, 0])):
        read = _read_all(4, shape, _distributed(shape, (4,), (S(0),)))
        assert [len(local) for _, local in read] == expected


def test_a5_values_by_rank() -> None:
    read = _read_all(4, (5,), _distributed((5,), (2, 2), (SS(0, 2), S(0))))
    assert [local.tolist() for _, local in read] == [[0, 1], [3], [2], [4]]


def test_a8_values_by_rank() -> None:
    read = _read_all(4, (8,), _distributed((8,), (2, 2), (SS(0, 2), S(0))))
    assert [local.tolist() for _, local in read] == [[0, 1], [4, 5], [2, 3], [6, 7]]


def test_fa7_rows_by_rank() -> None:
    read = _read_all(8, (8, 6, 4), _distributed((8, 6, 4), (2, 4), (S(0), S(1))))
    assert [local.shape[1] for _, local in read] == [2, 2, 2, 0] * 2


def test_b6_permuted_mesh() -> None:
    def make(rank: int) -> DTensor:
        mesh = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("a", "b"))
        return distribute_tensor(_indices((4, 4)), mesh, [S(0), S(1)], src_data_rank=None)

    read = _read_all(4, (4, 4), make)
    assert isinstance(read[0][0], Layout)
    assert read[0][0].mesh.ranks == (0, 2, 1, 3)
    assert read[0][0].mesh.axis_names == ("a", "b")
    assert read[1][1].tolist() == [[8, 9], [12, 13]]


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("ranks", [[3, 2, 1, 0], [[0, 1], [3, 2]], [[2, 1], [0, 3]]])
def test_b6_ranks_that_do_not_ascend_are_refused(rank: int, ranks: list[object]) -> None:
    """Torch's collectives and its offsets disagree about them; see the refit of four processes."""

    def make(rank: int) -> DTensor:
        mesh = DeviceMesh("cpu", torch.tensor(ranks))
        return distribute_tensor(_indices((8, 3)), mesh, [S(0)] * mesh.ndim, src_data_rank=None)

    with pytest.raises(LayoutError, match=r"w: axis .* which do not ascend"):
        _shape_and_layout(4, rank, make)


def test_descending_ranks_that_replicate_are_certain() -> None:
    def make(rank: int) -> DTensor:
        mesh = DeviceMesh("cpu", torch.tensor([[2, 3], [0, 1]]))
        return distribute_tensor(_indices((4, 3)), mesh, [R, S(0)], src_data_rank=None)

    read = _read_all(4, (4, 3), make)
    assert all(isinstance(layout, Layout) for layout, _ in read)


def test_fa16_ranks_that_are_not_contiguous() -> None:
    def make(rank: int) -> DTensor:
        mesh = DeviceMesh("cpu", torch.tensor([0, 2, 5, 7]))
        return distribute_tensor(_indices((8, 3)), mesh, [S(0)], src_data_rank=None)

    read = _read_all(8, (8, 3), make)
    assert read[1][0].ranks == (0, 2, 5, 7)
    assert [len(local) for _, local in read] == [2, 0, 2, 0, 0, 2, 0, 2]


def test_d7_global_shape_is_that_of_the_object() -> None:
    shape, _ = _shape_and_layout(2, 1, lambda _: _distributed((1519, 2), (2,), (S(0),))(1))
    assert shape == (1519, 2)


def _shape_and_layout(
    num_ranks: int, rank: int, make: Callable[[int], DTensor]
) -> tuple[tuple[int, ...], AnyLayout]:
    with fake_rank(rank, num_ranks):
        return layout_of(make(rank), "w")


def test_partial_is_refused() -> None:
    def make(rank: int) -> DTensor:
        mesh = init_device_mesh("cpu", (2,))
        return DTensor.from_local(torch.zeros(3), mesh, [Partial()])

    with pytest.raises(UnsupportedError, match=r"w: placement P.*partial sums.*Reduce first"):
        _shape_and_layout(2, 0, make)


@pytest.mark.parametrize("rank", range(4))
def test_a3_uneven_widths_are_refused_without_boxes(rank: int) -> None:
    def make(rank: int) -> DTensor:
        mesh = init_device_mesh("cpu", (4,))
        return DTensor.from_local(
            torch.zeros(2, 2 + rank),
            mesh,
            [S(1)],
            run_check=False,
            shape=torch.Size((2, 14)),
            stride=(14, 1),
        )

    if rank == 2:  # its width is the one that torch.chunk gives, but the others tell
        assert _shape_and_layout(4, rank, make)[0] == (2, 14)
        return
    with pytest.raises(LayoutError, match=rf"w: the local tensor of rank {rank} has shape"):
        _shape_and_layout(4, rank, make)


def test_fa35_full_tensor_declared_sharded() -> None:
    def make(rank: int) -> DTensor:
        mesh = init_device_mesh("cpu", (2,))
        return DTensor.from_local(
            torch.zeros(8, 4), mesh, [S(0)], shape=torch.Size((8, 4)), stride=(4, 1)
        )

    with pytest.raises(LayoutError, match=r"\(8, 4\), but .* gives \(4, 4\)"):
        _shape_and_layout(2, 0, make)


class _Column(torch.nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(3, rows, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(_indices((rows, 3)))


def _fsdp_over_tp(rows: int, fsdp: int, tp: int) -> Callable[[int], DTensor]:
    def make(rank: int) -> DTensor:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (fsdp, tp), mesh_dim_names=("fsdp", "tp"))
        module = _Column(rows)
        parallelize_module(module, mesh["tp"], {"up": ColwiseParallel()}, src_data_rank=None)
        fully_shard(module, mesh=mesh["fsdp"])
        return module.up.weight

    return make


@pytest.mark.parametrize(
    ("rows", "fsdp", "tp"),
    [(16, 2, 2), (10, 2, 2), (5, 2, 2), (7, 2, 2), (9, 2, 4), (3, 2, 2), (12, 4, 2)],
)
def test_a5_fsdp2_over_tensor_parallel(rows: int, fsdp: int, tp: int) -> None:
    read = _read_all(fsdp * tp, (rows, 3), _fsdp_over_tp(rows, fsdp, tp))
    assert all(isinstance(layout, Layout) for layout, _ in read)


def test_a5_fsdp2_where_torch_disagrees_with_itself() -> None:
    """Nine rows over tp=2, then fsdp=4: by its placements rank (3, 0) has row 8; (3, 1) has it."""
    read = _read_all(8, (9, 3), _fsdp_over_tp(9, 4, 2))
    assert [len(local) for _, local in read] == [2, 1, 2, 1, 1, 1, 0, 1]
    assert all(isinstance(layout, BoxLayout) for layout, _ in read)
    rows = [
        row
        for rank, (layout, _) in enumerate(read)
        for box, _ in layout.local_boxes(rank, (9, 3))
        for row in range(box.offset[0], box.stop[0])
    ]
    assert sorted(rows) == list(range(9))


def test_a5_rank_that_cannot_tell_is_refused() -> None:
    """38 rows over tp=4, then fsdp=4: rank (3, 2) has one row either way, but not the same one."""
    rank = 3 * 4 + 2
    with fake_rank(rank, 16):
        tensor = _fsdp_over_tp(38, 4, 4)(rank)
        assert local_tensor(tensor).shape == (1, 3)
        with pytest.raises(LayoutError, match=r"can be read in two ways"):
            layout_of(tensor, "w")


@pytest.mark.parametrize("rank", range(4))
def test_sub_mesh_states_own_boxes_only(rank: int) -> None:
    with fake_rank(rank, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        tensor = distribute_tensor(_indices((5, 2)), mesh["fsdp"], [S(0)], src_data_rank=None)
        local = local_tensor(tensor)
        _, layout = LayoutReader(lambda r: r, num_ranks=4).read("w", tensor)
    assert isinstance(layout, BoxLayout)
    assert layout.ranks == (rank,)
    _check_rank(layout, (5, 2), rank, local)


def test_empty_shard_of_a_sub_mesh() -> None:
    with fake_rank(3, 8):
        mesh = DeviceMesh("cpu", torch.arange(4))
        tensor = distribute_tensor(_indices((2, 5)), mesh, [S(0)], src_data_rank=None)
        _, layout = LayoutReader(lambda r: r, num_ranks=8).read("w", tensor)
    assert layout.local_shape(3, (2, 5)) == (0, 5)
    assert layout.local_boxes(3, (2, 5)) == ()


def test_rank_outside_a_sub_mesh() -> None:
    with fake_rank(6, 8):
        mesh = DeviceMesh("cpu", torch.arange(4))
        tensor = distribute_tensor(_indices((2, 5)), mesh, [S(0)], src_data_rank=None)
        _, layout = LayoutReader(lambda r: r, num_ranks=8).read("w", tensor)
    assert layout == BoxLayout(())


def test_mesh_rank_outside_the_side() -> None:
    with fake_rank(0, 4):
        mesh = init_device_mesh("cpu", (4,))
        tensor = distribute_tensor(_indices((4,)), mesh, [S(0)], src_data_rank=None)
        with pytest.raises(LayoutError, match=r"w: .* global rank 2, which is not in the process"):
            LayoutReader({0: 0, 1: 1}.get).read("w", tensor)


def test_ranks_of_the_side() -> None:
    with fake_rank(3, 6):
        mesh = DeviceMesh("cpu", torch.tensor([3, 5]))
        tensor = distribute_tensor(_indices((4,)), mesh, [S(0)], src_data_rank=None)
        _, layout = LayoutReader({3: 0, 4: 1, 5: 2}.get).read("w", tensor)
    assert layout.ranks == (0, 2)
    assert layout.local_boxes(2, (4,))[0].box == Box((2,), (2,))


def test_layouts_of_equal_placements_are_one_object() -> None:
    with fake_rank(0, 4):
        mesh = init_device_mesh("cpu", (4,))
        reader = LayoutReader()
        layouts = [
            reader.read("w", distribute_tensor(_indices(shape), mesh, [S(0)], src_data_rank=None))[
                1
            ]
            for shape in ((8, 3), (12,), (5, 5, 5))
        ]
    assert layouts[0] is layouts[1] is layouts[2]


def test_a10_row_parallel_strides_are_those_of_the_full_shard() -> None:
    with fake_rank(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        whole = _indices((3, 9))
        local = whole[:, 5:]  # a view, strides (9, 1)
        tensor = DTensor.from_local(
            local, mesh, [S(1)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        shape, layout = layout_of(tensor)
        assert local_tensor(tensor).stride() == (9, 1)
    _check_rank(layout, shape, 1, local)
