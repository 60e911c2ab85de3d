"""Redistribution in a group of one rank; between ranks see processes/test_torch_redistribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch.distributed as dist  # noqa: E402
from helpers.torch_ranks import filled  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate  # noqa: E402

import reshard_torch  # noqa: E402
from reshard import LayoutError, PlanError, Session, UnsupportedError  # noqa: E402
from reshard_torch.redistribution import Redistribution  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def store() -> Iterator[dist.HashStore]:
    """The store of a process group of this process alone."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def _placed(local: torch.Tensor) -> DTensor:
    return DTensor.from_local(local, DeviceMesh("cpu", [0]), [Replicate()], run_check=False)


INTERLEAVED: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "columns": lambda memory: (memory[:, :3], memory[:, 3:]),
    "every_other_row": lambda memory: (memory[1::2], memory[::2]),
    "transposed": lambda memory: (memory[:, ::2].t(), memory[:, 1::2].t()),
}


@pytest.mark.parametrize("kind", INTERLEAVED)
def test_interleaved_memory_without_a_common_byte_is_moved(
    store: dist.HashStore, kind: str
) -> None:
    src, dst = INTERLEAVED[kind](filled("w", (8, 6)))
    expected = src.clone()
    reshard_torch.redistribute(_placed(src), _placed(dst))
    assert torch.equal(src, expected)
    assert torch.equal(dst, expected)


SHARING: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "the_same": lambda memory: (memory, memory),
    "a_common_column": lambda memory: (memory[:, :4], memory[:, 2:]),
    "a_common_row": lambda memory: (memory[:5], memory[3:]),
    "transposed": lambda memory: (memory[:6], memory[:6].t()),
}


@pytest.mark.parametrize("kind", SHARING)
def test_a_destination_that_shares_memory_with_a_source_is_refused(
    store: dist.HashStore, kind: str
) -> None:
    memory = filled("w", (8, 6))
    before = memory.clone()
    src, dst = SHARING[kind](memory)
    with pytest.raises(
        LayoutError, match=r"^tensor: the destination .* shares memory .* tensor of"
    ):
        reshard_torch.redistribute(_placed(src), _placed(dst))
    assert torch.equal(memory, before)


def test_shared_memory_is_found_among_many_tensors_and_named(store: dist.HashStore) -> None:
    memory = torch.zeros(40, 4)
    src = {name: _placed(memory[2 * i : 2 * i + 2]) for i, name in enumerate("abcdefgh")}
    dst = {name: _placed(memory[20 + 2 * i :][:2]) for i, name in enumerate("abcdefgh")}
    reshard_torch.redistribute(src, dst)
    dst["c"] = _placed(memory[11:13])
    with pytest.raises(
        LayoutError, match=r"c: the destination .* shares memory .* array f of rank 0"
    ):
        reshard_torch.redistribute(src, dst)


def test_memory_that_becomes_shared_is_refused_in_the_next_run(store: dist.HashStore) -> None:
    src, dst = torch.ones(4, 3), torch.zeros(4, 3)
    with Redistribution({"w": src}, {"w": dst}) as plan:
        plan.run()
        dst.data = src.data
        with pytest.raises(LayoutError, match="shares memory"):
            plan.run()


def test_a_square_tensor_transposed_in_place_between_runs(store: dist.HashStore) -> None:
    """Address, shape and dtype stay; only strides tell."""
    src, dst = filled("w", (4, 4)), torch.zeros(4, 4)
    with Redistribution({"w": src}, {"w": dst}) as plan:
        plan.run()
        assert torch.equal(dst, src)
        for tensor in (src, dst):
            tensor.t_()
            plan.run()
            assert torch.equal(dst, src)


def _fails_to_be_read() -> None:
    with pytest.raises(UnsupportedError):
        reshard_torch.redistribute({"w": torch.zeros(4).to_sparse()}, {"w": torch.zeros(4)})


def _fails_to_be_planned() -> None:
    with pytest.raises(PlanError):
        reshard_torch.redistribute(torch.zeros(4), torch.zeros(5))


def _fails_in_the_move() -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("breaks")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="breaks"):
        patch.setattr(Session, "refit", breaks)
        reshard_torch.redistribute(torch.zeros(4), torch.zeros(4))


def _works() -> None:
    reshard_torch.redistribute(torch.zeros(4), torch.zeros(4))


@pytest.mark.parametrize(
    "call", [_fails_to_be_read, _fails_to_be_planned, _fails_in_the_move, _works]
)
def test_twenty_calls_leave_no_more_keys_in_the_store_than_one(
    store: dist.HashStore, call: Callable[[], None]
) -> None:
    call()
    before = store.num_keys()
    for _ in range(20):
        call()
    assert store.num_keys() == before


def test_a_plan_that_runs_among_others_leaves_nothing(store: dist.HashStore) -> None:
    _works()
    before = store.num_keys()
    with Redistribution(torch.zeros(4), torch.zeros(4)) as plan:
        for _ in range(3):
            plan.run()
            _works()
    plan.close()
    assert store.num_keys() == before


def test_buffers_of_modules_move_too(store: dist.HashStore) -> None:
    src, dst = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    src(filled("x", (5, 3)))
    reshard_torch.redistribute(src, dst)
    for name, value in src.state_dict().items():
        assert torch.equal(dst.state_dict()[name], value), name
    assert dst.num_batches_tracked.item() == 1


def test_tensors_that_moved_to_another_memory_need_a_new_one(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = _placed(filled("w", (4, 6)))
    dst = _placed(torch.zeros_like(src.to_local()))
    with Redistribution(src, dst) as plan:
        plan.run()
        monkeypatch.setattr("reshard.job.devices_of", lambda *sides: {0: 1})
        with pytest.raises(LayoutError, match="tensors of rank 0 are in other memory than when"):
            plan.run()


def test_a_transport_that_does_not_exist_is_refused(store: dist.HashStore) -> None:
    src = _placed(filled("w", (4, 6)))
    dst = _placed(torch.zeros_like(src.to_local()))
    with pytest.raises(LayoutError, match="transport='ucx' is none of 'auto', 'shm', 'nccl'"):
        reshard_torch.redistribute(src, dst, transport="ucx")  # type: ignore[arg-type]
