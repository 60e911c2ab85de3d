"""Models as JSON that people can read: one line per kind of parameter, not per parameter.

    {"format": "reshard-model-1", "name": "...", "dtype": "bfloat16", "num_layers": 61,
     "layer_sets": {"dense": "0-2", "moe": "3-60"},
     "parameters": [
      {"name": "lm_head.weight", "shape": [129280, 7168], "rule": "vocab", "layer": "last"},
      {"name": "model.layers.{layer}.mlp.gate.weight", "shape": [256, 7168], "rule": "replicated",
       "layers": "moe"}, ...]}

Neighbouring lines with `layers` are laid out layer by layer. Text to value and back; files are read
elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from reshard.errors import LayoutError
from reshard.model import Model
from reshard.parameter import Parameter

__all__ = ["FORMAT", "model_from_json", "model_to_json"]

FORMAT: Final = "reshard-model-1"

_PUBLISHED: Final = ("trainer", "generator")
_KEYS: Final = {
    "format", "name", "source", "dtype", "num_layers", *_PUBLISHED, "pipeline_splits", "experts",
    "unknown_names", "notes", "layer_sets", "parameters",
}  # fmt: skip
_ROW_KEYS: Final = {
    "name", "shape", "rule", "layers", "layer", "dtype", "num_kv_heads", "expert", "num_experts",
}  # fmt: skip
_KINDS: Final = {int: "a whole number", str: "a text", list: "a list", dict: "an object"}
# Sets of layers longer than this get a name in `layer_sets`.
_INLINE_LENGTH: Final = 12
Row = dict[str, Any]


def model_from_json(found: Mapping[str, Any], where: str) -> Model:
    """Returns the model that parsed JSON describes.

    Args:
        found: the object of the file.
        where: what messages call the file.

    Raises:
        LayoutError: if it is no model; says what is wrong and where.
    """
    _check_keys(found, {"name", "dtype", "num_layers", "parameters"}, _KEYS, where)
    num_layers = _typed(found, "num_layers", int, where)
    sets = {
        name: _read_layers(text, num_layers, f"{where}, layer_sets")
        for name, text in _typed(found, "layer_sets", dict, where, {}).items()
    }
    rows = _read_rows(_typed(found, "parameters", list, where), sets, num_layers, where)
    splits = _typed(found, "pipeline_splits", list, where, [])
    if not all(isinstance(split, list) and all(type(n) is int for n in split) for split in splits):
        raise LayoutError(
            f"{where}: pipeline_splits {splits!r:.80} is no list of lists of numbers."
        )
    model = Model(
        _typed(found, "name", str, where),
        tuple(_expanded(rows, found["dtype"])),
        num_layers,
        _typed(found, "source", str, where, ""),
        trainer=_optional_text(found, "trainer", where),
        generator=_optional_text(found, "generator", where),
        pipeline_splits=splits,
        unknown_names=_typed(found, "unknown_names", list, where, []),
        notes=_typed(found, "notes", list, where, []),
    )
    experts = found.get("experts", "stacked")
    return model if experts == "stacked" else model.with_experts(experts)


def _read_rows(
    rows: list[Any], sets: Mapping[str, list[int]], num_layers: int, where: str
) -> list[Row]:
    """Returns checked rows, their `layers` as numbers."""
    checked = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise LayoutError(f"{where}, parameters[{number}]: {row!r:.60} is no object.")
        here = f"{where}, parameters[{number}] {row.get('name', '')!r}"
        _check_keys(row, {"name", "shape", "rule"}, _ROW_KEYS, here)
        if ("layers" in row) == ("layer" in row):
            raise LayoutError(
                f"{here}: give either 'layers', for a name with {{layer}}, or 'layer', for one "
                "parameter."
            )
        name, _ = _typed(row, "name", str, here), _typed(row, "shape", list, here)
        layers = row.get("layers")
        if layers is None:
            checked.append(row)
            continue
        known = sets.get(layers) if isinstance(layers, str) else None
        if "{layer}" not in name:
            raise LayoutError(f"{here}: its name has no {{layer}}, so its layers would share it.")
        checked.append(row | {"layers": known or _read_layers(layers, num_layers, here)})
    return checked


def _check_keys(found: Mapping[str, Any], needed: set[str], known: set[str], where: str) -> None:
    missing, strange = sorted(needed - set(found)), sorted(set(found) - known)
    if missing or strange:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(strange)}"
        raise LayoutError(
            f"{where}: it {wrong}. It needs {', '.join(sorted(needed))} and may have "
            f"{', '.join(sorted(known - needed))}."
        )


def _typed(
    found: Mapping[str, Any], key: str, kind: type, where: str, default: object = None
) -> Any:  # noqa: ANN401 - JSON
    value = found.get(key, default)
    if type(value) is not kind:
        raise LayoutError(f"{where}: {key} is {value!r:.60}. Give {_KINDS[kind]}.")
    return value


def _optional_text(found: Mapping[str, Any], key: str, where: str) -> str | None:
    return str(_typed(found, key, str, where)) if key in found else None


def _read_layers(text: object, num_layers: int, where: str) -> list[int]:
    """Returns the numbers of a text such as `0-2,5`, ascending."""
    layers: list[int] = []
    if not isinstance(text, str) or not re.fullmatch(
        r"\d{1,15}(-\d{1,15})?(,\d{1,15}(-\d{1,15})?)*", text
    ):
        raise LayoutError(
            f"{where}: layers {text!r:.60} are no set of layers. Give numbers and ranges, as in "
            "'0-2,5', or a name in layer_sets."
        )
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) >= num_layers:
            raise LayoutError(
                f"{where}: layers {part!r} are outside of the {num_layers} layers, counted from 0."
            )
        layers += range(int(first), int(last or first) + 1)
    if layers != sorted(set(layers)) or not layers:
        raise LayoutError(f"{where}: layers {text!r} must ascend, each once.")
    return layers


def _expanded(rows: list[Row], dtype: object) -> Iterator[Parameter]:
    """Yields the parameters of all rows, those of neighbouring rows with layers layer by layer."""
    for has_layers, group in groupby(rows, lambda row: "layers" in row):
        block = list(group)
        if not has_layers:
            for row in block:
                yield _parameter(row, dtype, row["name"], row["layer"])
            continue
        of_layer: dict[int, list[Row]] = {}
        for row in block:
            for layer in row["layers"]:
                of_layer.setdefault(layer, []).append(row)
        for layer in sorted(of_layer):
            for row in of_layer[layer]:
                yield _parameter(row, dtype, row["name"].replace("{layer}", str(layer)), layer)


def _parameter(row: Row, dtype: object, name: str, layer: Any) -> Parameter:  # noqa: ANN401 - JSON
    rest = {key: row[key] for key in ("num_kv_heads", "expert", "num_experts") if key in row}
    return Parameter(name, row["shape"], row.get("dtype", dtype), row["rule"], layer, **rest)


def model_to_json(model: Model) -> str:
    """Returns the JSON of a model, as short as its regularity allows."""
    is_separate = any(parameter.expert is not None for parameter in model.parameters)
    stacked = model
    if is_separate:
        try:
            stacked = model.with_experts("stacked")
        except LayoutError:  # experts that are not alike are written one by one
            stacked = model
        is_separate = stacked is not model and stacked.with_experts("separate") == model
    parameters = stacked.parameters if is_separate else model.parameters
    dtypes = [str(parameter.dtype) for parameter in parameters]
    dtype = max(dict.fromkeys(dtypes), key=dtypes.count, default="bfloat16")
    head: Row = {"format": FORMAT, "name": model.name}
    if model.source:
        head["source"] = model.source
    head |= {"dtype": dtype, "num_layers": model.num_layers}
    head |= {side: text for side in _PUBLISHED if (text := getattr(model, side)) is not None}
    for key in ("pipeline_splits", "unknown_names", "notes"):
        if getattr(model, key):
            head[key] = getattr(model, key)
    if is_separate:
        head["experts"] = "separate"
    rows = _templates(parameters, dtype)
    if tuple(_expanded(rows, dtype)) != parameters:
        rows = [_row(parameter, dtype) | {"layer": parameter.layer} for parameter in parameters]
    sets = _name_sets(rows)
    if sets:
        head["layer_sets"] = sets
    lines = [f'  "{key}": {json.dumps(value)},' for key, value in head.items()]
    body = ",\n".join("    " + json.dumps(row) for row in rows)
    return "\n".join(["{", *lines, '  "parameters": [', body, "  ]", "}"]) + "\n"


def _row(parameter: Parameter, dtype: str) -> Row:
    row: Row = {
        "name": parameter.name,
        "shape": list(parameter.shape),
        "rule": parameter.rule,
    }
    if str(parameter.dtype) != dtype:
        row["dtype"] = str(parameter.dtype)
    for key in ("num_kv_heads", "expert", "num_experts"):
        if getattr(parameter, key) is not None:
            row[key] = getattr(parameter, key)
    return row


def _templates(parameters: tuple[Parameter, ...], dtype: str) -> list[Row]:
    """Returns a row per kind of parameter, in the order of first appearance within layers."""
    rows: list[Row] = []
    blocks: dict[str, Row] = {}
    for parameter in parameters:
        row = _row(parameter, dtype)
        if not isinstance(parameter.layer, int):
            rows.append(row | {"layer": parameter.layer})
            blocks = {}
            continue
        row["name"] = parameter.name.replace(f".{parameter.layer}.", ".{layer}.", 1)
        if "{layer}" not in row["name"]:
            rows.append(row | {"layer": parameter.layer})
            continue
        key = json.dumps(row)
        if key not in blocks:
            blocks[key] = row | {"layers": []}
            rows.append(blocks[key])
        blocks[key]["layers"].append(parameter.layer)
    return rows


def _name_sets(rows: list[Row]) -> dict[str, str]:
    """Writes the layers of rows as texts, and returns names for the long ones."""
    names: dict[str, str] = {}
    for row in rows:
        if "layers" in row:
            text = _layers_text(row["layers"])
            if len(text) > _INLINE_LENGTH:
                text = names.setdefault(text, f"set {len(names) + 1}")
            row["layers"] = text
    return {name: text for text, name in names.items()}


def _layers_text(layers: list[int]) -> str:
    parts: list[str] = []
    first = last = layers[0]
    for layer in [*layers[1:], -1]:
        if layer == last + 1:
            last = layer
            continue
        parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = layer
    return ",".join(parts)
