"""Finds what describes a model: a ready-made file, one of our own format, or a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from reshard.checkpoint import read_checkpoint, read_folder
from reshard.errors import LayoutError
from reshard.json_file import read_json
from reshard.model import Model
from reshard.model_file import FORMAT, model_from_json
from reshard.suggestion import did_you_mean

__all__ = ["read_model", "ready_made_names"]

_FOLDER: Final = Path(__file__).resolve().parent / "model_files"


def ready_made_names() -> tuple[str, ...]:
    """Returns the names of the models that come with the library."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def read_model(name_or_path: str | os.PathLike[str]) -> Model:
    """Returns a model by name or from a file; see `Model.load`."""
    given: object = name_or_path
    if not isinstance(given, str | os.PathLike):
        raise LayoutError(
            f"model {given!r} is neither a name nor a path. Names are "
            f"{', '.join(ready_made_names())}."
        )
    text = os.fsdecode(given)
    if text in ready_made_names():
        return model_from_json(read_json(_FOLDER / f"{text}.json"), text)
    path = Path(text)
    if not path.exists():
        raise LayoutError(
            f"model {text!r} is no ready-made one and no file."
            f"{did_you_mean(text, ready_made_names())} Ready-made are "
            f"{', '.join(ready_made_names())}; or give the path of a model's JSON, or of a Hugging "
            "Face checkpoint."
        )
    if path.is_dir():
        return read_folder(path)
    if path.suffix == ".safetensors":
        return read_checkpoint(path)
    found = read_json(path)
    if "weight_map" in found:
        return read_checkpoint(path)
    if found.get("format") != FORMAT:
        raise LayoutError(
            f"{path}: neither an index of a checkpoint, which has a weight_map, nor a model of "
            f"format {FORMAT!r}, as Model.to_json writes it (format is "
            f"{found.get('format')!r:.40})."
        )
    return model_from_json(found, str(path))
