"""How leaves of a trainer's tree become canonical tensors: rules by name, for one layer or a stack.

A rule names the dims of a leaf as one layer has it. Stacks of layers and of experts are slices of
the leaf: one `Part` each. Which rule applies follows from the name, never from the shape: a square
kernel would hide a missing transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from reshard import Elementwise, Form, LayoutError, Part

__all__ = ["Place", "Rule", "Tree"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One canonical tensor per layer (and expert) in a leaf.

    Attributes:
        name: canonical name, after the prefix of the layer; `{experts}` stands for the number of
            an expert.
        stored: dims of the leaf of one layer, as in a `Form`.
        canonical: dims of the canonical tensor.
        sizes: sizes of factors, where the shape does not tell them.
        index: factor -> the index at which the tensor lies.
        aliases: further canonical names.
        elementwise: how stored values become canonical ones; None means they are the same.
        layers_axis: stored dim of the layers in a stack, where it is not that of the other leaves.
    """

    name: str
    stored: tuple[str, ...]
    canonical: str
    sizes: tuple[tuple[str, int], ...] = ()
    index: tuple[tuple[str, int], ...] = ()
    aliases: tuple[str, ...] = ()
    elementwise: Elementwise | None = None
    layers_axis: int | None = None

    def parts(
        self, prefixes: tuple[str, ...], axis: int | None, shape: tuple[int, ...]
    ) -> Iterator[Part]:
        """Yields the parts of a leaf.

        Args:
            prefixes: what comes before the names of each layer in it.
            axis: stored dim of the layers; None for a leaf of one layer.
            shape: of the leaf.
        """
        for layer, prefix in enumerate(prefixes):
            if "experts" not in self.stored:
                yield self._part(prefix, self.name, axis, layer, self.index)
                continue
            for expert in range(shape[self._place(self.stored.index("experts"), axis)]):
                name = self.name.format(experts=expert)
                yield self._part(prefix, name, axis, layer, (*self.index, ("experts", expert)))

    def _part(
        self,
        prefix: str,
        name: str,
        axis: int | None,
        layer: int,
        index: tuple[tuple[str, int], ...],
    ) -> Part:
        stored = list(self.stored)
        if axis is not None:
            stored.insert(axis, "layers")
            index = (*index, ("layers", layer))
        form = Form(f"{' '.join(stored)} -> {self.canonical}", self.sizes, index)
        is_as_stored = form == Form(f"{self.canonical} -> {self.canonical}")
        given = None if is_as_stored else form
        return Part(prefix + name, given, self.aliases, self.elementwise)

    @staticmethod
    def _place(dim: int, axis: int | None) -> int:
        """Returns where a dim of one layer's leaf is in the stack."""
        return dim if axis is None or dim < axis else dim + 1


class Place(NamedTuple):
    """Where a leaf of layers belongs.

    Attributes:
        layers: numbers of the layers in it, in the order of their stack.
        leaf: its name below the layer.
        axis: preferred stored dim of the stack; None for one layer alone.
    """

    layers: tuple[int, ...]
    leaf: str
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """The rules of a model's tree: its `Forms`.

    Attributes:
        function: that was called for them, for messages.
        config: what it read, for messages.
        whole: rules of the leaves outside layers, by name.
        layers: rules of the leaves of a layer, by name below the layer.
        place_of: name -> the layers of a leaf and its name below them; None if it is of no layer.
        prefix: canonical prefix of the layers.
        wrapper: what may come before the names of all leaves.
    """

    function: str
    config: str
    whole: Mapping[str, tuple[Rule, ...]]
    layers: Mapping[str, tuple[Rule, ...]]
    place_of: Callable[[str], Place | None]
    prefix: str = "model.layers."
    wrapper: str = ""

    def __call__(self, name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """Returns the canonical tensors in a leaf.

        Raises:
            LayoutError: for a leaf that no rule knows, or of another shape than the model's.
        """
        bare = name.removeprefix(self.wrapper)
        if bare in self.whole:
            return self._parts_of(self.whole[bare], name, shape, ("",), None)
        place = self.place_of(bare)
        if place is None or place.leaf not in self.layers:
            raise LayoutError(
                f"{name}: {self.function} has no rule for this leaf of shape {shape} "
                f"({self.config}). If it is no weight of the model, exclude it with leaves=."
            )
        prefixes = tuple(f"{self.prefix}{layer}." for layer in place.layers)
        return self._parts_of(self.layers[place.leaf], name, shape, prefixes, place.axis)

    def _parts_of(
        self,
        rules: tuple[Rule, ...],
        name: str,
        shape: tuple[int, ...],
        prefixes: tuple[str, ...],
        axis: int | None,
    ) -> tuple[Part, ...]:
        if axis is not None and rules[0].layers_axis is not None:
            axis = rules[0].layers_axis
        if axis is not None and axis >= len(shape):
            axis = 0  # MaxText moves the axis of layers only where there are dims enough
        dims = len(rules[0].stored) + (axis is not None)
        if len(shape) != dims or (axis is not None and shape[axis] != len(prefixes)):
            layers = "" if axis is None else f", {len(prefixes)} of them layers along dim {axis}"
            raise LayoutError(
                f"{name}: shape {shape} is not that of {' '.join(rules[0].stored)}{layers}. The "
                f"configuration given to {self.function} is not that of the model "
                f"({self.config})."
            )
        return tuple(part for rule in rules for part in rule.parts(prefixes, axis, shape))
