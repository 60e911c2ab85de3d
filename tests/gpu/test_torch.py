"""Torch on GPUs: Source, Destination and redistribute, with plain tensors and DTensors.

The same functions run with tensors in host memory, where no GPU is needed to see that they work.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch.distributed as dist  # noqa: E402
from helpers.gpu_places import SHARED, placed  # noqa: E402
from helpers.torch_moves import compare  # noqa: E402
from helpers.torch_ranks import filled  # noqa: E402
from helpers.torch_team import TorchTeam, open_destination, open_source  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

import reshard_torch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.processes, pytest.mark.timeout(400)]

TIMEOUT_S = 60.0
SOURCE = 0
SHAPE = (96, 40)
VERSIONS = (1, 2, 5)
_SLOW_CYCLES = 200_000_000  # about a tenth of a second of a GPU


@pytest.fixture(scope="module")
def kind(machine) -> Iterator[str]:
    """The memory of this module's tensors, `cpu` or `cuda`, with what its processes need."""
    if not machine.is_real:
        yield "cpu"
        return
    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} sees no GPU; install one with CUDA")
    own, count = placed(machine)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHARED.items() if count == 1 else ():
            patch.setenv(name, value)
        if own.nccl is not None:
            patch.setenv("RESHARD_NCCL_LIBRARY", own.nccl)
        yield "cuda"


@pytest.fixture(scope="module")
def programs(kind, tmp_path_factory) -> Iterator[TorchTeam]:
    """A source and a destination program of one process each."""
    with TorchTeam((1, 1), tmp_path_factory.mktemp("programs")) as started:
        yield started


@pytest.fixture(scope="module")
def group(kind, tmp_path_factory) -> Iterator[TorchTeam]:
    """One program of two ranks."""
    with TorchTeam((2,), tmp_path_factory.mktemp("group")) as started:
        yield started


def take_device(kind: str, number: int) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", number % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def refits(program: int, kind: str) -> list[int]:
    device = take_device(kind, program)
    transport = "nccl" if kind == "cuda" else "shm"
    wholes = {version: filled("w", SHAPE, version=version) for version in VERSIONS}
    if program == SOURCE:
        tensor = torch.zeros(SHAPE, device=device)
        with open_source({"w": tensor}, transport=transport) as source:
            for version, whole in wholes.items():
                ready = whole.to(device)
                if kind == "cuda":
                    torch.cuda._sleep(_SLOW_CYCLES)  # what comes after it is late
                tensor.copy_(ready)
                source.publish(version=version)
        return []
    # Every other column of every other row, transposed.
    memory = torch.full((2 * SHAPE[1], 2 * SHAPE[0]), -1.0, device=device)
    tensor = memory[::2, ::2].T
    seen = []
    with open_destination({"w": tensor}, transport=transport) as destination:
        for whole in wholes.values():
            seen.append(destination.refit())
            doubled = tensor * 2  # the caller's later work comes after what was received
            compare("w", doubled.cpu(), whole * 2, whole)
    gaps = memory[1::2].cpu()
    assert torch.equal(gaps, torch.full_like(gaps, -1.0))
    return seen


def test_tensors_are_refitted_in_the_order_of_the_stream(kind, programs):
    assert programs.run(refits, kind) == [[], list(VERSIONS)]


PLACEMENTS = {
    "rows to columns": ([0, 1], Shard(0), [0, 1], Shard(1)),
    "one rank to both": ([0], Replicate(), [0, 1], Shard(0)),
    "both ranks to one": ([0, 1], Shard(1), [1], Replicate()),
    "both ranks to each": ([0, 1], Shard(0), [0, 1], Replicate()),
}


def redistributes(program: int, kind: str, case: str) -> None:
    take_device(kind, dist.get_rank())
    src_ranks, src_placement, dst_ranks, dst_placement = PLACEMENTS[case]
    meshes = [DeviceMesh(kind, torch.tensor(ranks)) for ranks in (src_ranks, dst_ranks)]

    def shard(whole, mesh, placement):
        if mesh.get_coordinate() is None:
            return None
        return distribute_tensor(whole.clone(), mesh, [placement], src_data_rank=None)

    whole = filled("w", SHAPE)
    src = shard(whole.to(kind), meshes[0], src_placement)
    dst = shard(torch.zeros(SHAPE, device=kind), meshes[1], dst_placement)
    expected = shard(whole.to(kind), meshes[1], dst_placement)
    assert reshard_torch.redistribute(src, dst, timeout_s=TIMEOUT_S) is dst
    if dst is not None:
        compare("w", dst.to_local().cpu(), expected.to_local().cpu(), whole)


@pytest.mark.parametrize("case", PLACEMENTS)
def test_dtensors_are_redistributed(kind, group, case):
    group.run(redistributes, kind, case)
