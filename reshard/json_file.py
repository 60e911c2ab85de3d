"""Reads a JSON object from a file, bounded, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from reshard.errors import LayoutError

__all__ = ["MAX_JSON_BYTES", "read_json"]

# The index of a checkpoint of 100,000 parameters has about 10 MB.
MAX_JSON_BYTES: Final = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        LayoutError: if it cannot be read, is too large, or is no JSON object.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise LayoutError(f"{path}: cannot be read, {error.strerror or error}.") from error
    if len(text) > MAX_JSON_BYTES:
        raise LayoutError(
            f"{path}: has more than the {MAX_JSON_BYTES} bytes of a JSON file about a model. Is "
            "this the right file?"
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: not JSON, {error}.") from None
    if not isinstance(found, dict):
        raise LayoutError(f"{path}: holds a {type(found).__name__}, not a JSON object.")
    return found
