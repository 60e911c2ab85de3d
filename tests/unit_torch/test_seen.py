"""Tensors that did not change are recognised, and every change that matters is seen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from helpers.torch_ranks import fake_rank  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate as ReplicateDim  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

from reshard import Layout, Mesh, Replicate, UnsupportedError  # noqa: E402
from reshard_torch.seen import SeenTensor  # noqa: E402
from reshard_torch.side import Side  # noqa: E402
from reshard_torch.tensors import TensorReader  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = Side(0, 1, {0: 0})


def test_the_same_tensor_with_other_values() -> None:
    tensor = torch.nn.Parameter(torch.zeros(4, 3))
    seen = SeenTensor("w", tensor)
    with torch.no_grad():
        tensor.add_(1.0)
    assert seen.is_same("w", tensor)


def _replace_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.zeros(4, 3)


def _transpose_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(3, 4)


def _change_dtype_in_place(tensor: torch.Tensor) -> None:
    """As when an allocator hands out the same address again."""
    tensor.data = tensor.data.view(torch.int32)


def _free(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def _shift(tensor: torch.Tensor) -> None:
    tensor.data = torch.zeros(5, 3)[1:]


@pytest.mark.parametrize(
    "change", [_replace_data, _transpose_data, _change_dtype_in_place, _free, _shift]
)
def test_changes_of_one_tensor_object(change: Callable[[torch.Tensor], None]) -> None:
    tensor = torch.zeros(4, 3)
    seen = SeenTensor("w", tensor)
    change(tensor)
    assert not seen.is_same("w", tensor)


def test_strides_alone_tell_a_square_tensor_that_was_transposed_in_place() -> None:
    tensor = torch.zeros(4, 4)
    reader = TensorReader(ALONE)
    seen, before = SeenTensor("w", tensor), reader.read({"w": tensor}).buffers()[0, "w"]
    tensor.t_()
    assert not seen.is_same("w", tensor)
    after = reader.read({"w": tensor}).buffers()[0, "w"]
    assert after.address == before.address
    assert (before.strides, after.strides) == ((16, 4), (4, 16))


def test_other_objects_names_and_declarations() -> None:
    tensor = torch.zeros(4, 3)
    layout = Layout(Mesh(("a",), (1,)), (Replicate(),))
    seen = SeenTensor("w", tensor)
    assert not seen.is_same("v", tensor)
    assert not seen.is_same("w", tensor.view(4, 3))
    assert not seen.is_same("w", (tensor, layout))
    assert not seen.is_same("w", None)
    declared = SeenTensor("w", (tensor, layout))
    assert declared.is_same("w", (tensor, layout))
    assert not declared.is_same("w", tensor)
    assert not declared.is_same("w", (tensor, layout, (4, 3)))


def test_tensors_without_strides_are_refused_by_their_name() -> None:
    tensor = torch.ones(3).to_sparse()
    assert not SeenTensor("w", tensor).is_same("w", tensor)
    with pytest.raises(UnsupportedError, match=r"w: memory format torch\.sparse_coo"):
        TensorReader(ALONE).read({"w": tensor}).buffers()


def test_dtensors_are_told_apart_by_their_placements() -> None:
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        tensor = distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)], src_data_rank=None)
        seen = SeenTensor("w", tensor)
        assert seen.is_same("w", tensor)
        other = distribute_tensor(torch.zeros(4, 4), mesh, [Shard(1)], src_data_rank=None)
        assert not seen.is_same("w", other)


def test_a_dtensor_that_was_placed_otherwise_in_place() -> None:
    """Neither its object nor its memory changes, as on a mesh dim of one rank."""
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
        placements = [ReplicateDim(), Shard(0)], [Shard(1), Shard(0)]
        tensor, other = (
            distribute_tensor(torch.zeros(4, 4), mesh, each, src_data_rank=None)
            for each in placements
        )
        reader = TensorReader(Side.of_group())
        seen, before = SeenTensor("w", tensor), reader.read({"w": tensor}).specs
        tensor._spec = other._spec
        assert not seen.is_same("w", tensor)
        after = reader.read({"w": tensor}).specs
        assert after[0].layout != before[0].layout
        assert after == TensorReader(Side.of_group()).read({"w": other}).specs


def test_nothing_is_kept_alive() -> None:
    reader = TensorReader(ALONE)
    tensors = {"w": torch.zeros(3)}
    reader.read(tensors).buffers()
    watch = weakref.ref(tensors["w"])
    del tensors["w"]
    gc.collect()
    assert watch() is None


def test_a_reader_follows_every_change() -> None:
    reader = TensorReader(ALONE)
    tensor = torch.zeros(4, 3)
    first = reader.read({"w": tensor})
    again = reader.read({"w": tensor})
    assert again.specs is first.specs
    assert again.buffers() is first.buffers()
    _shift(tensor)
    moved = reader.read({"w": tensor})
    assert moved.specs is first.specs
    assert moved.buffers()[0, "w"].address == tensor.data_ptr()
    _change_dtype_in_place(tensor)
    assert str(reader.read({"w": tensor}).specs[0].dtype) == "int32"
    assert [spec.name for spec in reader.read({"w": tensor, "v": tensor.clone()}).specs] == [
        "w",
        "v",
    ]
    assert [spec.name for spec in reader.read({"v": tensor}).specs] == ["v"]


@pytest.mark.parametrize("lazily", [torch.conj, lambda z: torch._neg_view(z)])
def test_a_value_that_is_only_marked_as_conjugated_or_negated_is_another(lazily) -> None:
    """Address, shape and strides are as before, and the memory too."""
    parameter = torch.nn.Parameter(torch.tensor([1 + 2j, 3 - 4j]))
    seen = SeenTensor("w", parameter)
    assert seen.is_same("w", parameter)
    parameter.data = lazily(parameter.data)
    assert not seen.is_same("w", parameter)
