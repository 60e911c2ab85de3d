"""Refits between torch programs of several processes, each with a gloo group of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch.distributed as dist  # noqa: E402
from helpers.ranks import ProcessGroup, listen, tell  # noqa: E402
from helpers.torch_moves import compare  # noqa: E402
from helpers.torch_ranks import filled, gloo_group  # noqa: E402
from helpers.torch_team import TorchTeam, open_destination, open_source  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import reshard_torch  # noqa: E402
from reshard import LayoutError, PlanError, RendezvousError, TransportError  # noqa: E402
from reshard_torch.side import Side  # noqa: E402
from reshard_torch.tensors import TensorReader  # noqa: E402

# Importing torch takes seconds of a core, and a busy machine has several of these at once.
pytestmark = [pytest.mark.torch, pytest.mark.processes, pytest.mark.timeout(400)]

START_S = 150.0
LIMIT_S = 300.0
TIMEOUT_S = 30.0
SOURCE = 0

SHAPES = {
    "up.weight": (9, 6),
    "up.bias": (9,),
    "down.weight": (6, 9),
    "norm.weight": (6,),
    "scale": (),
}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchTeam]:
    """A source program of four ranks and a destination program of two."""
    with TorchTeam((4, 2), tmp_path_factory.mktemp("team")) as started:
        yield started


# ---- DTensors and plain tensors, refit again and again


def _trainer_tensors(version: int) -> dict[str, torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    placements = {
        "up.weight": (mesh, [Shard(0), Shard(0)]),
        "up.bias": (mesh, [Shard(0), Replicate()]),
        "down.weight": (mesh, [Shard(0), Shard(1)]),
        "norm.weight": (mesh["fsdp"], [Shard(0)]),
    }
    tensors = {}
    for name, shape in SHAPES.items():
        whole = filled(name, shape, version=version)
        if name in placements:
            whole = distribute_tensor(whole, *placements[name], src_data_rank=None)
        tensors[name] = whole
    return tensors


def _engine_tensors(version: int | None) -> dict[str, torch.Tensor]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dims = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    tensors = {}
    for name, shape in SHAPES.items():
        whole = torch.zeros(shape) if version is None else filled(name, shape, version=version)
        if name in dims:
            whole = distribute_tensor(whole, mesh, [Shard(dims[name])], src_data_rank=None)
        tensors[name] = whole
    return tensors


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return reshard_torch.buffer_of(tensor).owner


def _refits_again_and_again(program: int) -> list[int]:
    versions = [1, 2, 5]
    if program == SOURCE:
        tensors = _trainer_tensors(versions[0])
        with open_source(tensors) as source:
            for version in versions:
                for name, tensor in _trainer_tensors(version).items():
                    _local(tensors[name]).copy_(_local(tensor))
                report = source.publish(version=version)
                assert report.share_resharded == 1.0
            return [report.version]
    tensors = _engine_tensors(None)
    addresses = [_local(tensor).data_ptr() for tensor in tensors.values()]
    seen = []
    with open_destination(tensors) as destination:
        for _ in versions:
            seen.append(destination.refit())
            assert destination.state == "ready"
            assert len(destination.fingerprints()) == len(SHAPES)
            for name, expected in _engine_tensors(seen[-1]).items():
                whole = filled(name, SHAPES[name], version=seen[-1])
                compare(name, _local(tensors[name]), _local(expected), whole)
    assert addresses == [_local(tensor).data_ptr() for tensor in tensors.values()]
    return seen


def test_c10_refits_again_and_again_into_the_same_memory(team: TorchTeam) -> None:
    assert team.run(_refits_again_and_again) == [[5]] * 4 + [[1, 2, 5]] * 2


# ---- a model that trains


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6, bias=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens))
        return self.head(hidden + self.down(torch.relu(self.up(hidden))))


def _trains_and_publishes(program: int) -> list[np.ndarray]:
    tokens = torch.arange(11).reshape(1, 11)
    torch.manual_seed(0)
    model = _Mlp()
    logits = []
    if program == SOURCE:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["fsdp"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with open_source(model) as source:
            for step in range(3):
                model(tokens).logsumexp(-1).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                model.unshard()
                # Only read: a publish that fails would fail the refit of the destinations too.
                with pytest.raises(LayoutError, match=r"module\.reshard\(\)"):
                    TensorReader(Side.of_group()).read(model)
                model.reshard()
                source.publish(version=step)
                with torch.no_grad():
                    logits.append(model(tokens).numpy())
                model.reshard()
        return logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with open_destination(model) as destination:
        for _ in range(3):
            destination.refit()
            with torch.inference_mode():
                logits.append(model(tokens).numpy())
    return logits


def test_d9_logits_of_trainer_and_engine_agree_at_every_step(team: TorchTeam) -> None:
    values = team.run(_trains_and_publishes)
    for step in range(3):
        for logits in values[1:]:
            np.testing.assert_allclose(logits[step], values[0][step], rtol=1e-5, atol=1e-5)
    assert not np.allclose(values[0][0], values[0][1])


# ---- tensors that change between refits


def _placed(version: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    content = filled("w", (8, 6), version=version).to(dtype)
    return distribute_tensor(content, mesh, [Shard(dim)], src_data_rank=None)


def _changes_layout(program: int) -> str:
    if program == SOURCE:
        with open_source({"w": _placed(1, 0)}) as source:
            source.publish(version=1)
            source.publish({"w": _placed(2, 1)}, version=2)  # other cut, same tensor
            with pytest.raises(PlanError, match=r"w: .*float64.*float32.*no cast rule"):
                source.publish({"w": _placed(3, 1, torch.float64)}, version=3)
            source.publish({"w": _placed(3, 0)}, version=3)
        return "published"
    tensor = _placed(0, 1)
    with open_destination({"w": tensor}) as destination:
        for version in (1, 2):
            assert destination.refit() == version
            _check_placed(tensor, version)
        with pytest.raises(PlanError, match="no cast rule"):
            destination.refit()
        _check_placed(tensor, 2)
        assert destination.state == "ready"
        assert destination.refit() == 3
        _check_placed(tensor, 3)
    return "refitted"


def _check_placed(tensor: torch.Tensor, version: int) -> None:
    whole = filled("w", (8, 6), version=version)
    compare("w", _local(tensor), _local(_placed(version, 1)), whole)


def test_changed_placements_are_planned_anew_and_wrong_ones_refused(team: TorchTeam) -> None:
    assert team.run(_changes_layout) == ["published"] * 4 + ["refitted"] * 2


def _one_rank_has_no_tensor(program: int) -> str:
    rank = dist.get_rank()
    if program == SOURCE:
        with open_source({"w": _placed(1, 0)}) as source:
            given = {"w": None} if rank == 2 else {"w": _placed(1, 0)}
            with pytest.raises(LayoutError, match="w: NoneType is not a tensor") as caught:
                source.publish(given, version=1)
            source.publish({"w": _placed(1, 0)}, version=1)
    else:
        tensor = _placed(0, 1)
        with open_destination({"w": tensor}) as destination:
            with pytest.raises(LayoutError, match="w: NoneType is not a tensor") as caught:
                destination.refit()
            assert destination.refit() == 1
            _check_placed(tensor, 1)
    return str(caught.value)


def test_a_rank_that_cannot_read_its_tensors_fails_the_call_of_all(team: TorchTeam) -> None:
    messages = team.run(_one_rank_has_no_tensor)
    others = [message for index, message in enumerate(messages) if index != 2]
    assert all("source 'source' process 2" in message for message in others)


def _gives_memory_back(program: int) -> bool:
    import gc
    import weakref

    tensors = _engine_tensors(1) if program else _trainer_tensors(1)
    if program == SOURCE:
        with open_source(tensors) as end:
            end.publish(version=1)
    else:
        with open_destination(tensors) as end:
            end.refit()
    watch = [weakref.ref(_local(tensor)) for tensor in tensors.values()]
    del tensors, end
    gc.collect()
    return all(reference() is None for reference in watch)


def test_closed_ends_keep_no_tensor_alive(team: TorchTeam) -> None:
    assert team.run(_gives_memory_back) == [True] * 6


# ---- faults


def _until_it_raises(step: Callable[[], object]) -> str:
    try:
        while True:  # the first step after the kill may be over before it is noticed
            step()
    except TransportError as error:
        return str(error)


def _loses_an_engine(process: int, num_processes: int, folder: str) -> str:
    tensors = {"w": filled("w", (64, 64))}
    if process == 0:
        with reshard_torch.Source("tcp://127.0.0.1:0", tensors, timeout_s=START_S) as source:
            tell(source.address)
            source.publish(version=1)
            tell("ready")
            version = iter(range(2, 1 << 30))
            text = _until_it_raises(lambda: source.publish(version=next(version), timeout_s=20.0))
            listen(START_S)  # the store stays for the engine, which may hear of it a little later
            return text
    with gloo_group(process - 1, num_processes - 1, folder, START_S):
        end = reshard_torch.Destination(listen(START_S), tensors, timeout_s=START_S)
        with end as destination:
            destination.refit()
            tell("ready")
            return _until_it_raises(lambda: destination.refit(timeout_s=20.0))


def test_g1_killed_engine_is_reported_on_all_others(tmp_path: Path) -> None:
    with ProcessGroup(_loses_an_engine, 3, LIMIT_S, arguments=(str(tmp_path),)) as group:
        address = group.expect(0, START_S)
        for process in (1, 2):
            group.send(process, address)
        for process in (0, 1, 2):
            assert group.expect(process, START_S) == "ready"
        group.signal(2, signal.SIGKILL)
        for process in (1, 0):
            outcome = group.wait(process, START_S)
            assert outcome.is_success, outcome
            assert "destination" in outcome.value or "rank 2" in outcome.value
            if process == 1:
                group.send(0, "end")


def _claims_rank_zero(process: int, num_processes: int) -> str:
    tensors = {"w": torch.zeros(4)}
    if process == 0:
        with reshard_torch.Source("tcp://127.0.0.1:0", tensors, timeout_s=START_S) as source:
            tell(source.address)
            source.publish(version=1)
            listen(START_S)
        return "published"
    address = listen(START_S)
    if process == 1:
        with reshard_torch.Destination(address, tensors, timeout_s=START_S) as destination:
            destination.refit()
            tell("ready")
            listen(START_S)
        return "refitted"
    with pytest.raises(RendezvousError, match="destination"):
        reshard_torch.Destination(address, tensors, timeout_s=TIMEOUT_S).refit()
    return "refused"


def test_fa3_second_process_that_claims_rank_zero_is_refused() -> None:
    """Processes that forgot their process group all say that they are rank 0 of 1."""
    with ProcessGroup(_claims_rank_zero, 3, LIMIT_S) as group:
        address = group.expect(0, START_S)
        group.send(1, address)
        assert group.expect(1, START_S) == "ready"
        group.send(2, address)
        outcome = group.wait(2, START_S)
        assert outcome.value == "refused", outcome
        for process in (0, 1):
            group.send(process, "end")
        assert [each.value for each in group.finish()] == ["published", "refitted", "refused"]
