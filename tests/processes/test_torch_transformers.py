"""A transformers engine under tensor parallelism, refitted from canonical weights by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
_NEEDED = "needs: pip install transformers accelerate"
transformers = pytest.importorskip("transformers", minversion="5.19", reason=_NEEDED)
safetensors = pytest.importorskip("safetensors.torch", reason=_NEEDED)
pytest.importorskip("accelerate", reason=_NEEDED)

import torch.distributed as dist  # noqa: E402
from helpers.ranks import listen  # noqa: E402
from helpers.torch_team import TorchTeam, open_destination, open_source  # noqa: E402
from transformers.distributed import DistributedConfig  # noqa: E402

import reshard_torch  # noqa: E402
from reshard_torch import models  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.processes,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),
]

SOURCE = 0
_DENSE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

FAMILIES = {
    "llama": ("LlamaConfig", models.transformers_llama, _DENSE, False),
    "qwen3_tied": ("Qwen3Config", models.transformers_qwen3, _DENSE, True),
    "qwen3_untied": ("Qwen3Config", models.transformers_qwen3, _DENSE, False),
    "qwen3_moe": ("Qwen3MoeConfig", models.transformers_qwen3_moe, _DENSE | _EXPERTS, False),
}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchTeam]:
    """A trainer of one process and an engine of two."""
    with TorchTeam((1, 2), tmp_path_factory.mktemp("team")) as started:
        yield started


def _model(family: str, seed: int) -> torch.nn.Module:
    name, _, sizes, is_tied = FAMILIES[family]
    config = getattr(transformers, name)(**sizes, tie_word_embeddings=is_tied)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _parallel(folder: str, **sizes: int) -> torch.nn.Module:
    """Loads a checkpoint on the ranks of this process's gloo group."""
    rank = str(dist.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(dist.get_world_size()))
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(**sizes)
    ).eval()


def _logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.arange(12).reshape(2, 6)).logits
    return (logits.full_tensor() if hasattr(logits, "full_tensor") else logits).numpy()


def _refits(program: int, family: str, folder: str) -> list[np.ndarray]:
    forms = FAMILIES[family][1]
    if program == SOURCE:
        model = _model(family, seed=1)
        model.save_pretrained(f"{folder}/new")
        canonical = safetensors.load_file(f"{folder}/new/model.safetensors")
        _model(family, seed=2).save_pretrained(f"{folder}/old")
        with open_source(dict(canonical)) as source:
            source.publish(version=1)
        return [_logits(model)]
    address = listen(90.0)  # the source has saved the old weights by then
    engine = _parallel(f"{folder}/old", tp_size=2)
    before = _logits(engine)
    end = reshard_torch.Destination(address, engine, forms=forms(engine.config), timeout_s=60.0)
    with end as destination:
        destination.refit()
    return [before, _logits(engine)]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_new_weights(team: TorchTeam, family: str, tmp_path: Path) -> None:
    (expected,), *found = team.run(_refits, family, str(tmp_path))
    for before, after in found:
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-4)
        assert not np.allclose(before, expected, rtol=1e-2, atol=1e-2)


@pytest.fixture(scope="module")
def trainer_team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchTeam]:
    """A trainer of four processes and an engine of one."""
    with TorchTeam((4, 1), tmp_path_factory.mktemp("trainer_team")) as started:
        yield started


def _publishes(program: int, family: str, folder: str) -> list[str]:
    """Returns the names of tensors that did not arrive as they are in the checkpoint."""
    config = FAMILIES[family]
    if program == SOURCE:
        model = _parallel(folder, fsdp_size=2, tp_size=2)
        with open_source(model, forms=config[1](model.config)) as source:
            source.publish(version=1)
        return []
    canonical = safetensors.load_file(f"{folder}/model.safetensors")
    received = {name: torch.zeros_like(whole) for name, whole in canonical.items()}
    with open_destination(received) as destination:
        destination.refit()
    return [name for name, whole in canonical.items() if not torch.equal(whole, received[name])]


@pytest.mark.parametrize("family", FAMILIES)
def test_trainer_of_fsdp_over_tensor_parallelism(
    trainer_team: TorchTeam, family: str, tmp_path: Path
) -> None:
    _model(family, seed=1).save_pretrained(tmp_path)
    assert trainer_team.run(_publishes, family, str(tmp_path)) == [[]] * 5
