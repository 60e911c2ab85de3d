"""Finds and reads the file that describes a model: ready-made, our own format, or a checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from reshard.errors import LayoutError
from reshard.model import Model
from reshard.model_file import model_from_json

__all__ = ["read_json", "read_model", "ready_made_names"]

_FOLDER: Final = Path(__file__).resolve().parent / "model_files"
# An index of a checkpoint of 100,000 parameters has about 10 MB.
_MAX_JSON_BYTES: Final = 256 << 20


def ready_made_names() -> tuple[str, ...]:
    """Returns the names of the models that come with the library."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def read_model(name_or_path: str | os.PathLike[str]) -> Model:
    """Returns a model by name or from a file; see `Model.load`."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise LayoutError(f"model {name_or_path!r} is neither a name nor a path.")
    if name_or_path in ready_made_names():
        path = _FOLDER / f"{name_or_path}.json"
        return model_from_json(read_json(path), str(name_or_path))
    path = Path(name_or_path)
    if not path.exists():
        raise LayoutError(
            f"model {os.fspath(name_or_path)!r} is no ready-made one and no file. Ready-made are "
            f"{', '.join(ready_made_names())}; or give the path of a model's JSON, or of a Hugging "
            "Face checkpoint."
        )
    found = read_json(path)
    return model_from_json(found, str(path))


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        LayoutError: if it cannot be read, is too large, or is no JSON object.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise LayoutError(
                f"{path}: {size} bytes are more than the {_MAX_JSON_BYTES} that a JSON file of a "
                "model has at most. Is this the right file?"
            )
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise LayoutError(f"{path}: cannot be read, {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: not JSON, {error}.") from None
    if not isinstance(found, dict):
        raise LayoutError(f"{path}: holds a {type(found).__name__}, not a JSON object.")
    return found
