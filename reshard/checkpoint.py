"""Hugging Face checkpoints as models: names from an index, shapes from headers or configuration.

Weights are never read. Shard files that are missing, or that a Git checkout has as pointers, are
no error: their shapes follow from `config.json` where the family is known.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from reshard.config_shapes import ConfigShapes
from reshard.errors import LayoutError
from reshard.json_file import read_json
from reshard.model import Model
from reshard.parameter import Parameter
from reshard.safetensors_header import HeaderEntry, is_pointer, read_header
from reshard.sharding_rules import Layer, layer_of_name, place_of_expert, rule_of_name

__all__ = ["INDEX", "read_checkpoint", "read_folder"]

INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_CONFIG: Final = "config.json"
_SCALE: Final = "_scale_inv"
# How many names a message lists.
_NAMES_SHOWN: Final = 5


def read_folder(folder: Path) -> Model:
    """Returns the model whose checkpoint is in a folder.

    Raises:
        LayoutError: if the folder has neither an index nor a single file of weights.
    """
    for name in (INDEX, _SINGLE):
        if (folder / name).exists():
            return read_checkpoint(folder / name)
    raise LayoutError(
        f"{folder}: has neither {INDEX} nor {_SINGLE}. Give the folder of a Hugging Face "
        "checkpoint, its index, or one .safetensors file."
    )


def read_checkpoint(path: Path) -> Model:
    """Returns the model of an index or of a single `.safetensors` file.

    Raises:
        LayoutError: if a file is not sound, or a shape cannot be known; says which.
    """
    path = path.absolute()
    config = read_json(path.parent / _CONFIG) if (path.parent / _CONFIG).exists() else None
    notes: list[str] = []
    if path.suffix == ".safetensors":
        entries, total = read_header(path), None
    else:
        index = read_json(path)
        shards = _read_weight_map(index, path)
        entries = _entries_of_shards(shards, path.parent)
        entries |= _entries_of_config(shards, entries, config, path, notes)
        total = _read_total(index, path)
    found = sum(dtype.itemsize * math.prod(shape) for dtype, shape in entries.values())
    if total is not None and found != total:
        notes.append(
            f"all parameters have {found} bytes, but {path.name} says total_size {total}: some "
            "type or shape may be another than assumed"
        )
    return _make_model(path, entries, config or {}, notes)


def _read_weight_map(index: Mapping[str, Any], path: Path) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LayoutError(
            f"{path}: has no weight_map from parameters to files. Give the "
            f"{INDEX} of a checkpoint, or a JSON file that Model.to_json wrote."
        )
    for name, file in weight_map.items():
        # A shard lies beside its index; any other path is not one that a checkpoint may name.
        if not isinstance(file, str) or PurePosixPath(file).name != file or file in ("", ".."):
            raise LayoutError(
                f"{path}: {name} is in file {file!r:.80}. Give the name of a file in the same "
                "folder."
            )
    return weight_map


def _read_total(index: Mapping[str, Any], path: Path) -> int | None:
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if total is not None and (type(total) is not int or total < 0):
        raise LayoutError(f"{path}: total_size is {total!r:.40}, not a number of bytes.")
    return total


def _entries_of_shards(shards: Mapping[str, str], folder: Path) -> dict[str, HeaderEntry]:
    """Returns what the headers of those shard files say that are there."""
    headers: dict[str, dict[str, HeaderEntry]] = {}
    for file in dict.fromkeys(shards.values()):
        path = folder / file
        if path.is_file() and not is_pointer(path):
            headers[file] = read_header(path)
    entries = {}
    for name, file in shards.items():
        if file not in headers:
            continue
        if name not in headers[file]:
            raise LayoutError(
                f"{folder / file}: lacks {name}, which {INDEX} says is there. Index and file are "
                "of different checkpoints; download both again."
            )
        entries[name] = headers[file][name]
    return entries


def _entries_of_config(
    shards: Mapping[str, str],
    known: Mapping[str, HeaderEntry],
    config: Mapping[str, Any] | None,
    path: Path,
    notes: list[str],
) -> dict[str, HeaderEntry]:
    """Returns type and shape of the parameters whose shard files are missing."""
    names = [name for name in shards if name not in known]
    if not names:
        return {}
    if config is None:
        raise LayoutError(
            f"{path}: {len(names)} parameters lie in shard files that are missing, such as "
            f"{shards[names[0]]}, and there is no {_CONFIG} from which shapes follow. Download "
            f"{_CONFIG}, or the shard files, or only their headers."
        )
    shapes = ConfigShapes(config, str(path.parent / _CONFIG))
    entries = {name: shapes.entry(name, f"{name}{_SCALE}" in shards) for name in names}
    unknown = [name for name, entry in entries.items() if entry is None]
    if unknown:
        files = sorted({shards[name] for name in unknown})
        raise LayoutError(
            f"{path}: the shapes of {len(unknown)} parameters do not follow from {_CONFIG}: "
            f"{_some(unknown)}. Download their shard files, {_some(files)}, or only the headers "
            "of these: the first bytes of each."
        )
    notes.append(f"shapes of {len(names)} of {len(shards)} parameters follow from {_CONFIG}")
    return {name: entry for name, entry in entries.items() if entry is not None}


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _make_model(
    path: Path, entries: Mapping[str, HeaderEntry], config: Mapping[str, Any], notes: list[str]
) -> Model:
    text_config = config.get("text_config")
    text = text_config if isinstance(text_config, Mapping) else config
    layers = {name: layer_of_name(name) for name in entries}
    numbered = [layer for layer in layers.values() if isinstance(layer, int)]
    num_layers = _count(text.get("num_hidden_layers")) or 1 + max(numbered, default=-1)
    in_files = len(set(numbered))
    if numbered and in_files < num_layers:
        notes.append(
            f"{_CONFIG} says {num_layers} layers, but parameters are there of {in_files} only: "
            "some may be missing"
        )
    num_kv_heads = _count(text.get("num_key_value_heads"))
    if num_kv_heads is None and any(rule_of_name(name) == "kv" for name in entries):
        notes.append("the number of kv heads is unknown; k and v are cut as columns")
    counts = Counter(place[0] for name in entries if (place := place_of_expert(name)))
    parameters, unknown = [], []
    for name in sorted(entries, key=lambda name: _order(name, layers[name])):
        dtype, shape = entries[name]
        rule = rule_of_name(name)
        if rule is None:
            unknown.append(name)
        place = place_of_expert(name) if rule in ("expert_column", "expert_row") else None
        layer = layers[name]
        heads = num_kv_heads if rule == "kv" and isinstance(layer, int) else None
        parameters.append(
            Parameter(
                name,
                shape,
                dtype,
                rule or "replicated",
                # Layers after the last one, which predict further tokens, lie in the last stage.
                "last" if isinstance(layer, int) and layer >= num_layers else layer,
                heads if heads and shape and shape[0] % heads == 0 else None,
                expert=place[1] if place else None,
                num_experts=max(counts[place[0]], place[1] + 1) if place else None,
            )
        )
    name = path.parent.name if path.name in (INDEX, _SINGLE) else path.stem
    return Model(
        name,
        tuple(parameters),
        num_layers,
        f"Hugging Face checkpoint {name}",
        unknown_names=tuple(unknown),
        notes=tuple(notes),
    )


def _count(given: object) -> int | None:
    return given if type(given) is int and given > 0 else None


def _order(name: str, layer: Layer) -> tuple[int, int, list[tuple[int, str]]]:
    """Orders parameters by stage and layer, inside a layer by name with numbers by value."""
    words = [
        (int(word), "") if re.fullmatch("[0-9]{1,18}", word) else (-1, word)
        for word in re.split("([0-9]+)", name)
        if word
    ]
    if isinstance(layer, int):
        return 1, layer, words
    return (0 if layer == "first" else 2), 0, words
