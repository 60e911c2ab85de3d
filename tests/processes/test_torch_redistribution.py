"""DTensors from mesh to mesh in one process group of four ranks; names begin with the case row."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch.distributed as dist  # noqa: E402
from helpers.torch_moves import compare  # noqa: E402
from helpers.torch_ranks import filled  # noqa: E402
from helpers.torch_team import TorchTeam  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

import reshard_torch  # noqa: E402
from reshard import LayoutError, PlanError, TransferTimeout, UnsupportedError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.processes, pytest.mark.timeout(400)]

NUM_RANKS = 4
TIMEOUT_S = 30.0
R = Replicate()


def S(dim: int) -> Shard:  # noqa: N802 (as DTensor prints it)
    return Shard(dim)


def SS(dim: int, factor: int) -> _StridedShard:  # noqa: N802
    return _StridedShard(dim, split_factor=factor)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchTeam]:
    """One program of four ranks."""
    with TorchTeam((NUM_RANKS,), tmp_path_factory.mktemp("team")) as started:
        yield started


_meshes: dict[object, DeviceMesh] = {}


def _mesh(ranks: object) -> DeviceMesh:
    """Returns a mesh over some of the ranks; all ranks make it, members or not."""
    key = repr(ranks)
    if key not in _meshes:
        _meshes[key] = DeviceMesh("cpu", torch.tensor(ranks))
    return _meshes[key]


def _tensor(whole: torch.Tensor, ranks: object, placements: Sequence[object]) -> DTensor | None:
    """Returns this rank's tensor, or None on a rank outside the mesh."""
    mesh = _mesh(ranks)
    if mesh.get_coordinate() is None:
        return None
    return distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None)


def _check(name: str, found: DTensor | None, expected: DTensor | None, whole: torch.Tensor) -> None:
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        compare(name, found.to_local(), expected.to_local(), whole)


CASES = {
    "disjoint_ranks": ((7, 5), ([0, 1], [S(0)]), ([2, 3], [S(1)])),
    "overlapping_ranks": ((7, 5), ([0, 1, 2], [S(0)]), ([1, 2, 3], [S(0)])),
    "other_placements": ((7, 5), ([0, 1, 2, 3], [S(0)]), ([0, 1, 2, 3], [S(1)])),
    "a1": ((5, 10), ([0, 1, 2, 3], [S(0)]), ([0], [R])),
    "a4": ((7, 5), ([[0, 1], [2, 3]], [S(0), S(0)]), ([2], [R])),
    "a5": ((5,), ([[0, 1], [2, 3]], [SS(0, 2), S(0)]), ([0, 1, 2, 3], [S(0)])),
    "a8": ((8, 2), ([[0, 1], [2, 3]], [SS(0, 2), S(0)]), ([1, 3], [S(0)])),
    "b6": ((4, 4), ([[0, 2], [1, 3]], [S(0), S(1)]), ([[0, 1], [2, 3]], [S(0), S(1)])),
    "fa11": ((2, 3), ([0, 1, 2, 3], [S(0)]), ([0, 1, 2], [S(1)])),
    "fa17": ((4, 6), ([1, 2], [S(0)]), ([[0, 1], [2, 3]], [R, R])),
    "packed": ((2, 12), ([0, 3], [SS(1, 2)]), ([1, 2, 3], [SS(1, 2)])),
    "same_everything": ((6, 4), ([0, 1], [S(0)]), ([0, 1], [S(0)])),
}


def _redistributes(program: int, case: str) -> str:
    shape, src, dst = CASES[case]
    whole = filled("w", shape)
    destination = _tensor(torch.zeros(shape), *dst)
    source = _tensor(whole, *src)
    result = reshard_torch.redistribute(source, destination, timeout_s=TIMEOUT_S)
    assert result is destination
    _check("w", result, _tensor(whole, *dst), whole)
    return "moved"


@pytest.mark.parametrize("case", CASES)
def test_redistributes_exactly(team: TorchTeam, case: str) -> None:
    assert team.run(_redistributes, case) == ["moved"] * NUM_RANKS


def _is_refused_by_torch(program: int) -> str:
    tensor = _tensor(torch.zeros(4), [0, 1, 2, 3], [S(0)])
    other = _mesh([3, 2, 1, 0])
    with pytest.raises(NotImplementedError, match="device mesh"):
        tensor.redistribute(other, [R])
    return "refused"


def test_torch_itself_keeps_the_mesh(team: TorchTeam) -> None:
    """What `redistribute` is for; if torch learns it, this test says so."""
    assert team.run(_is_refused_by_torch) == ["refused"] * NUM_RANKS


def _moves_a_model_again_and_again(program: int) -> int:
    shapes = {"a": (6, 5), "b": (7,), "c": (3, 4, 2), "norm": (5,)}
    layouts = {"a": [S(0)], "b": [S(0)], "c": [S(2)]}

    def side(ranks: list[int], version: int | None) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for name, shape in shapes.items():
            whole = torch.zeros(shape) if version is None else filled(name, shape, version=version)
            placed = _tensor(whole, ranks, layouts[name]) if name in layouts else whole
            if dist.get_rank() in ranks and placed is not None:
                tensors[name] = placed
        return tensors

    source, destination = side([0, 1, 2], 0), side([1, 3], None)
    with reshard_torch.Redistribution(source, destination, timeout_s=TIMEOUT_S) as plan:
        for version in range(3):
            for name, tensor in side([0, 1, 2], version).items():
                _local(source[name]).copy_(_local(tensor))
            report = plan.run()
            for name, expected in side([1, 3], version).items():
                whole = filled(name, shapes[name], version=version)
                compare(name, _local(destination[name]), _local(expected), whole)
    with pytest.raises(LayoutError, match="closed"):
        plan.run()
    return report.num_parameters


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def test_many_tensors_planned_once_and_moved_again_and_again(team: TorchTeam) -> None:
    assert team.run(_moves_a_model_again_and_again) == [4] * NUM_RANKS


def _inside_a_group_of_two(program: int) -> str:
    group = dist.new_group([1, 3])
    whole = filled("w", (5, 4))
    source = _tensor(whole, [3], [R])
    destination = _tensor(torch.zeros(5, 4), [1, 3], [S(0)])
    if dist.get_rank() in (1, 3):
        reshard_torch.redistribute(source, destination, group, timeout_s=TIMEOUT_S)
    _check("w", destination, _tensor(whole, [1, 3], [S(0)]), whole)
    return "moved"


def test_group_of_some_ranks(team: TorchTeam) -> None:
    assert team.run(_inside_a_group_of_two) == ["moved"] * NUM_RANKS


# ---- refusals and faults: all ranks raise, and the next call works


def _works(value: str) -> str:
    whole = filled("w", (7, 5))
    destination = _tensor(torch.zeros(7, 5), [2, 3], [S(1)])
    source = _tensor(whole, [0, 1], [S(0)])
    reshard_torch.redistribute(source, destination, timeout_s=TIMEOUT_S)
    _check("w", destination, _tensor(whole, [2, 3], [S(1)]), whole)
    return value


def _refuses(program: int, kind: str) -> str:
    rank = dist.get_rank()
    whole = filled("w", (8, 6))
    source = _tensor(whole, [0, 1, 2, 3], [S(0)])
    destination = _tensor(torch.zeros(8, 6), [0, 1, 2, 3], [S(1)])
    assert source is not None
    expected: tuple[type[Exception], str] = (LayoutError, "tensor: ")
    if kind == "shape":
        destination = _tensor(torch.zeros(8, 5), [0, 1, 2, 3], [S(1)])
        expected = (PlanError, r"tensor: .*\(8, 6\).*\(8, 5\)")
    elif kind == "no_source":
        source = None
        expected = (PlanError, "no source holds")
    elif kind == "partial_on_one_rank" and rank == 2:
        source = DTensor.from_local(torch.zeros(8, 6), _mesh([0, 1, 2, 3]), [Partial()])
    elif kind == "shared_memory_on_one_rank" and rank == 1:
        destination = DTensor.from_local(
            source.to_local().view(-1)[:8].view(8, 1),
            _mesh([0, 1, 2, 3]),
            [S(1)],
            shape=torch.Size((8, 6)),
            stride=(6, 1),
        )
    if kind == "partial_on_one_rank":
        expected = (UnsupportedError, r"partial sums")
    if kind == "shared_memory_on_one_rank":
        expected = (LayoutError, "shares memory|has shape")
    with pytest.raises(expected[0], match=expected[1]):
        reshard_torch.redistribute(source, destination, timeout_s=TIMEOUT_S)
    if destination is not None and not (kind == "shared_memory_on_one_rank" and rank == 1):
        assert not destination.to_local().any()
    return _works(kind)


@pytest.mark.parametrize(
    "kind", ["shape", "no_source", "partial_on_one_rank", "shared_memory_on_one_rank"]
)
def test_wrong_calls_raise_on_all_ranks_and_write_nothing(team: TorchTeam, kind: str) -> None:
    assert team.run(_refuses, kind) == [kind] * NUM_RANKS


def _scatters_over_descending_ranks(program: int) -> str:
    whole = filled("w", (8, 4))
    source = distribute_tensor(whole, _mesh([3, 2, 1, 0]), [S(0)])
    rank = dist.get_rank()
    compare("w", source.to_local(), whole[2 * rank : 2 * rank + 2], whole)
    destination = _tensor(torch.zeros(8, 4), [0, 1], [S(1)])
    with pytest.raises(LayoutError, match=r"\(3, 2, 1, 0\), which do not ascend"):
        reshard_torch.redistribute(source, destination, timeout_s=TIMEOUT_S)
    return _works("refused")


def test_b6_descending_ranks_are_refused(team: TorchTeam) -> None:
    """Torch scatters the first rows to rank 0, although its mesh says that rank 3 has them."""
    assert team.run(_scatters_over_descending_ranks) == ["refused"] * NUM_RANKS


def _comes_late(program: int) -> str:
    whole = filled("w", (8, 6))
    source = _tensor(whole, [0, 1, 2, 3], [S(0)])
    destination = _tensor(torch.zeros(8, 6), [0, 1, 2, 3], [S(1)])
    if dist.get_rank() == 3:
        dist.barrier()
    with pytest.raises(TransferTimeout, match=r"Silent: rank 3"):
        reshard_torch.redistribute(source, destination, timeout_s=1.0)
    if dist.get_rank() != 3:
        dist.barrier()
    return _works("late")


def test_g1_silent_rank_is_named_and_the_next_call_works(team: TorchTeam) -> None:
    assert team.run(_comes_late) == ["late"] * NUM_RANKS


def _handles() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def _leaves_nothing(program: int) -> bool:
    _works("warm-up")
    before = _handles()
    for _ in range(30):
        _works("again")
        with pytest.raises(PlanError):
            reshard_torch.redistribute(None, None, timeout_s=TIMEOUT_S)
    return _handles() == before


def test_repeated_calls_leave_no_handles_and_no_threads(team: TorchTeam) -> None:
    assert team.run(_leaves_nothing) == [True] * NUM_RANKS
