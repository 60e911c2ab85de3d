"""A small model in a file, and calls of the command line in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reshard import Model
from reshard.cli import main
from reshard.parameter import Parameter

__all__ = ["Done", "call", "tiny_model", "write_model"]


class Done(NamedTuple):
    """What a call came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document that it wrote."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Done:
    """Runs a command and returns its exit code and what it wrote."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return Done(code, *capsys.readouterr())


def tiny_model(**changes: Any) -> Model:
    """Returns a model of two layers whose parameters are cut in all the usual ways."""
    parameters = [Parameter("model.embed_tokens.weight", (64, 32), "bfloat16", "vocab", "first")]
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        parameters += [
            Parameter(f"{prefix}.input_layernorm.weight", (32,), "bfloat16", "replicated", layer),
            Parameter(f"{prefix}.self_attn.q_proj.weight", (64, 32), "bfloat16", "column", layer),
            Parameter(f"{prefix}.self_attn.o_proj.weight", (32, 64), "bfloat16", "row", layer),
        ]
    fields = {"trainer": "pp2,dp2", "generator": "tp4"} | changes
    return Model(fields.pop("name", "tiny"), fields.pop("parameters", parameters), 2, **fields)


def write_model(folder: Path, **changes: Any) -> Path:
    """Writes a tiny model into a folder and returns the path of the file."""
    path = folder / "tiny.json"
    path.write_text(tiny_model(**changes).to_json())
    return path
