"""The files, one row per parameter, that the ready-made models were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["ORIGINAL_MODELS", "original_model"]

_FOLDER = Path(__file__).parents[1] / "data" / "models"
ORIGINAL_MODELS = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def original_model(name: str) -> dict[str, Any]:
    """Returns the rows of a model, its degrees and its layers."""
    found: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return found
