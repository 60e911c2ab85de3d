"""Models of a few MB that are cut as a large one is, for running its plan on a laptop.

Names, rules and layers stay; each extent shrinks to the least that divides as before over the ranks
of all sides: evenly where it did, and else with the same remainder.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from reshard.division import Cut, Division, cut_dim
from reshard.errors import LayoutError
from reshard.layout import Layout
from reshard.model import Model
from reshard.parallelism import Parallelism
from reshard.parameter import Parameter

__all__ = ["scaled_down"]

# Extents stay at least this long, so that a dim that is reversed or moved is seen.
_LEAST_EXTENT: Final = 4
_Chain = tuple[tuple[Cut, ...], Division]


def scaled_down(
    model: Model, sides: Iterable[Parallelism], *, num_layers: int | None = None
) -> Model:
    """Returns a small model of the same structure.

    Equal extents stay equal. An extent is even over some ranks afterwards if it was before; if not,
    the same number of ranks is left without elements.

    Args:
        model: the large one.
        sides: every parallelism that the small model will be laid out with.
        num_layers: keep only so many layers, of every kind at least one; None keeps all. The small
            model has no published pipeline splits then, and layers per stage of `sides` are its.

    Raises:
        LayoutError: if a side does not fit the small model, or it has more kinds of layers than
            are to be kept.

    Example:
        >>> model = Model.load("deepseek-v3")
        >>> sides = [Parallelism.parse("pp16,ep16"), Parallelism.parse("tp32,dp8")]
        >>> print(scaled_down(model, sides))
        deepseek-v3 scaled down: 1025 parameters in 61 layers, 411.0 k elements, 822.1 kB
    """
    chosen = model if num_layers is None else _with_layers(model, num_layers)
    sizes = {extent: _scaled(extent, found) for extent, found in _chains(chosen, sides).items()}
    parameters = [_replaced(p, shape=[sizes[n] for n in p.shape]) for p in chosen.parameters]
    return dataclasses.replace(
        chosen, name=f"{model.name} scaled down", parameters=tuple(parameters)
    )


def _chains(model: Model, sides: Iterable[Parallelism]) -> dict[int, set[_Chain]]:
    """Returns, for each extent of the model, all ways in which a dim of this extent is cut."""
    chains: dict[int, set[_Chain]] = {n: set() for p in model.parameters for n in p.shape}
    for side in sides:
        for parameter, spec in zip(model.parameters, side.specs(model), strict=True):
            layout = spec.layout
            if not isinstance(layout, Layout):
                continue
            for dim, extent in enumerate(parameter.shape):
                cuts = layout.cuts_of_dim(dim)
                if cuts:
                    chains[extent].add((cuts, layout.division))
    for parameter in model.parameters:
        if parameter.num_kv_heads:
            # Heads stay whole whether or not anybody cuts them.
            chains[parameter.shape[0]].add((((parameter.num_kv_heads, 1),), "chunk"))
    return chains


def _scaled(extent: int, chains: set[_Chain]) -> int:
    """Returns the least extent that all chains cut as they cut `extent`."""
    step = math.lcm(*(math.prod(parts for parts, _ in cuts) for cuts, _ in chains))
    wanted = {chain: _num_held(extent, chain) for chain in chains}
    for smaller in range(extent % step, extent, step):
        if smaller >= _LEAST_EXTENT and all(
            _num_held(smaller, chain) == held for chain, held in wanted.items()
        ):
            return smaller
    return extent


def _num_held(extent: int, chain: _Chain) -> int:
    """Returns how many parts have an element."""
    cuts, division = chain
    return sum(map(bool, cut_dim(extent, cuts, division)))


def _replaced(parameter: Parameter, **changes: Any) -> Parameter:  # noqa: ANN401 - fields
    fields = {field.name: getattr(parameter, field.name) for field in dataclasses.fields(parameter)}
    return Parameter(**(fields | changes))


def _with_layers(model: Model, num_layers: int) -> Model:
    kinds = _kinds_of_layers(model)
    first_of_kind = {kinds[layer]: layer for layer in sorted(kinds, reverse=True)}
    chosen = set(first_of_kind.values())
    if not len(chosen) <= num_layers <= len(kinds):
        raise LayoutError(
            f"model {model.name!r}: num_layers={num_layers} to keep. It has {len(kinds)} layers of "
            f"{len(chosen)} kinds: give a number from {len(chosen)} to {len(kinds)}."
        )
    chosen |= set(sorted(set(kinds) - chosen)[: num_layers - len(chosen)])
    numbers = {layer: number for number, layer in enumerate(sorted(chosen))}
    parameters = []
    for parameter in model.parameters:
        layer = parameter.layer
        if not isinstance(layer, int):
            parameters.append(parameter)
        elif layer in numbers:
            name = re.sub(rf"\.{layer}\.", f".{numbers[layer]}.", parameter.name, count=1)
            parameters.append(_replaced(parameter, name=name, layer=numbers[layer]))
    return dataclasses.replace(
        model, parameters=tuple(parameters), num_layers=num_layers, pipeline_splits=()
    )


def _kinds_of_layers(model: Model) -> Mapping[int, object]:
    """Returns what tells the layers apart: names without number, shapes and rules."""
    rows: dict[int, list[object]] = {layer: [] for layer in range(model.num_layers)}
    for parameter in model.parameters:
        layer = parameter.layer
        if isinstance(layer, int):
            name = re.sub(rf"\.{layer}\.", ".", parameter.name, count=1)
            rows[layer].append((name, parameter.shape, parameter.dtype, parameter.rule))
    return {layer: tuple(found) for layer, found in rows.items()}
