"""The engine's program: transformers takes each model, then gives the trainer another one.

Its arguments are a folder and a JSON text of addresses. Before the refit every parameter and buffer
is NaN, so one that is not covered shows in the logits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import CASES, Case
from transformers import AutoConfig, AutoModelForCausalLM

import reshard_torch

LIMIT_S = 900.0


def _model(case: Case) -> Any:
    kind, options = case.engine
    config = AutoConfig.for_model(kind, **options)
    torch.manual_seed(len(case.name))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def _forms(model: Any) -> Any:
    # DeepSeek packs experts as Qwen3 does; Gemma has a tied head as Llama does.
    kinds = reshard_torch.models
    is_packed = model.config.model_type in ("qwen3_moe", "deepseek_v2", "deepseek_v3")
    return (kinds.transformers_qwen3_moe if is_packed else kinds.transformers_llama)(model.config)


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    kept = model.state_dict().keys()
    return {name: tensor.detach() for name, tensor in named.items() if name in kept}


def _logits(model: Any) -> np.ndarray:
    tokens = np.random.default_rng(7).integers(0, 40, (4, 12), dtype=np.int32)
    with torch.no_grad():
        return np.asarray(model(torch.tensor(tokens, dtype=torch.long)).logits)


def _refit_both_ways(case: Case, forward: str, back: str, path: Path) -> dict[str, Any]:
    model = _model(case)
    tensors = _tensors(model)
    own = {name: 0.3 * torch.randn_like(tensor) for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.fill_(torch.nan)
    given = {"forms": _forms(model), "timeout_s": LIMIT_S}
    with reshard_torch.Destination(forward, model, **given) as destination:
        destination.refit()
    uncovered = [name for name, tensor in tensors.items() if tensor.isnan().any()]
    if uncovered:
        raise SystemExit(f"engine: {case.name}: not covered: {uncovered}")
    received = _logits(model)
    for name, tensor in tensors.items():
        tensor.copy_(own[name])
    with reshard_torch.Source(back, model, **given) as source:
        source.publish(model, version=1)
    np.savez(path, received=received, own=_logits(model))
    return {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}


def main() -> None:
    """Runs the cases in the order of `CASES`."""
    folder, addresses = Path(sys.argv[1]), json.loads(sys.argv[2])
    shapes = {}
    for case in CASES:
        if case.name in addresses:
            path = folder / f"{case.name}.engine.npz"
            shapes[case.name] = _refit_both_ways(case, *addresses[case.name], path)
    (folder / "engine.trees.json").write_text(json.dumps(shapes))


if __name__ == "__main__":
    main()
