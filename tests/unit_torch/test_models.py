"""Forms of transformers' models: canonical names and shapes, and packed experts moved exactly."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from helpers.torch_moves import compare, describe_ranks, refit_in_process  # noqa: E402
from helpers.torch_ranks import filled  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from reshard import LayoutError, Part  # noqa: E402
from reshard_torch import models  # noqa: E402

pytestmark = pytest.mark.torch

TIED = SimpleNamespace(tie_word_embeddings=True)
UNTIED = SimpleNamespace(tie_word_embeddings=False)
_EXPERTS = "model.layers.3.mlp.experts"


@pytest.mark.parametrize("family", [models.transformers_llama, models.transformers_qwen3])
def test_dense_names_are_canonical(family) -> None:
    embed = "model.embed_tokens.weight"
    assert family(UNTIED)(embed, (10, 4)) is None
    assert family(TIED)(embed, (10, 4)) == (Part(embed, None, ("lm_head.weight",)),)
    assert family(TIED)("model.layers.0.self_attn.q_proj.weight", (4, 4)) is None


def test_experts_are_canonical_one_by_one() -> None:
    forms = models.transformers_qwen3_moe(UNTIED)
    parts = forms(f"{_EXPERTS}.gate_up_proj", (4, 6, 2))
    assert parts is not None
    assert [part.name for part in parts[:3]] == [
        f"{_EXPERTS}.0.gate_proj.weight",
        f"{_EXPERTS}.0.up_proj.weight",
        f"{_EXPERTS}.1.gate_proj.weight",
    ]
    assert {part.resolve((4, 6, 2)).canonical_shape for part in parts} == {(3, 2)}
    down = forms(f"{_EXPERTS}.down_proj", (4, 2, 3))
    assert down is not None
    assert [part.name for part in down] == [f"{_EXPERTS}.{e}.down_proj.weight" for e in range(4)]
    assert forms("model.layers.3.mlp.gate.weight", (4, 2)) is None
    with pytest.raises(LayoutError, match="gate_up_proj: shape"):
        forms(f"{_EXPERTS}.gate_up_proj", (4, 5, 2))


@pytest.mark.parametrize("is_expert_parallel", [True, False], ids=["ep", "tp"])
def test_d2_stacked_experts_against_single_ones(is_expert_parallel: bool) -> None:
    num_experts, ffn, embed = 4, 6, 5
    forms = models.transformers_qwen3_moe(UNTIED)
    single = {
        f"{_EXPERTS}.{e}.{kind}_proj.weight": filled(
            f"{e}.{kind}", (embed, ffn) if kind == "down" else (ffn, embed)
        )
        for e in range(num_experts)
        for kind in ("gate", "up", "down")
    }
    gate_up = torch.stack(
        [
            torch.cat([single[f"{_EXPERTS}.{e}.{kind}_proj.weight"] for kind in ("gate", "up")])
            for e in range(num_experts)
        ]
    )
    down = torch.stack([single[f"{_EXPERTS}.{e}.down_proj.weight"] for e in range(num_experts)])

    def packed(gate_up: torch.Tensor, down: torch.Tensor) -> dict[str, torch.Tensor]:
        mesh = init_device_mesh("cpu", (2,))
        first = Shard(0) if is_expert_parallel else _StridedShard(1, split_factor=2)
        second = Shard(0) if is_expert_parallel else Shard(2)
        return {
            f"{_EXPERTS}.gate_up_proj": distribute_tensor(
                gate_up, mesh, [first], src_data_rank=None
            ),
            f"{_EXPERTS}.down_proj": distribute_tensor(down, mesh, [second], src_data_rank=None),
        }

    def rows(_: int) -> dict[str, torch.Tensor]:
        mesh = init_device_mesh("cpu", (3,))
        return {
            name: distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
            for name, whole in single.items()
        }

    zeros = torch.zeros_like(gate_up), torch.zeros_like(down)
    destinations = describe_ranks(2, lambda _: packed(*zeros), forms=forms)
    refit_in_process(describe_ranks(3, rows), destinations)
    expected = describe_ranks(2, lambda _: packed(gate_up, down), forms=forms)
    for found, wanted in zip(destinations, expected, strict=True):
        for name, whole in (("gate_up_proj", gate_up), ("down_proj", down)):
            full = f"{_EXPERTS}.{name}"
            compare(full, found.local[full], wanted.local[full], whole)


@pytest.mark.parametrize(
    "family",
    [models.transformers_llama, models.transformers_qwen3, models.transformers_qwen3_moe],
)
def test_the_trainers_configuration_is_refused(family) -> None:
    with pytest.raises(
        LayoutError, match=f"{family.__name__}: .* has no tie_word_embeddings. Give"
    ):
        family(SimpleNamespace(num_layers=2))
