"""Pytrees of weights: leaves named by dotted path, and the same tree with other leaves.

Flax variables and boxes (`nnx.Variable`, `linen.Partitioned`) are pytree nodes whose only child is
called `value`; they are recognised by what they offer, without importing flax, and leave no trace
in the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from reshard import LayoutError
from reshard_jax.compat import is_array, is_prng_key, is_tracer

__all__ = ["Leaves", "NamedLeaves", "NamedTree", "Weight"]

Leaves = Callable[[str, object], bool]
"""Says of a leaf, by dotted path and value, whether it is a weight."""

Weight = jax.Array | jax.ShapeDtypeStruct

_MAX_LISTED = 10
_IS_NO_WEIGHT = ", which is no weight"


class NamedLeaves(NamedTuple):
    """Weights by name.

    Attributes:
        names: dotted paths.
        values: the weight of each name.
    """

    names: tuple[str, ...]
    values: tuple[Weight, ...]


class NamedTree:
    """The weights of a pytree by name.

    Args:
        tree: nested dicts, lists, tuples, dataclasses or flax states of arrays or
            `jax.ShapeDtypeStruct`s.
        leaves: which leaves are weights; None means all of them, and then a leaf that cannot be one
            is an error.
        is_traced: whether the weights are the stand-ins that `jit` traces with, and nothing else.

    Attributes:
        names: dotted paths such as `layers.0.attn.q_proj.w`, in the order of the tree. Integer and
            string keys give the same name.
        values: the leaves of these names.

    Raises:
        LayoutError: naming every leaf that is no array, or two leaves of one name.
    """

    def __init__(
        self, tree: object, leaves: Leaves | None = None, *, is_traced: bool = False
    ) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        boxes = _boxed_paths(tree)
        self._rest: list[Any] = []
        self._positions: list[int] = []
        names: list[str] = []
        values: list[Any] = []
        problems: list[str] = []
        for position, (path, value) in enumerate(paths):
            name = _name(path, boxes)
            is_weight = leaves is None or leaves(name, value)
            self._rest.append(None if is_weight else value)
            if not is_weight:
                continue
            why = _why_not_traced if is_traced else _why_no_weight
            problem = why(value) if name else "a bare array has no name; pass a dict"
            if problem is not None:
                problems.append(f"{name}: {problem}")
            self._positions.append(position)
            names.append(name)
            values.append(value)
        problems += [f"{name}: two leaves have this name" for name in _repeated(names)]
        if problems:
            raise LayoutError(_report(problems))
        self.names = tuple(names)
        self.values = tuple(values)

    def items(self) -> Iterator[tuple[str, Weight]]:
        """Yields name and value of each weight."""
        return zip(self.names, self.values, strict=True)

    def spread(self, what: str, prefix: object) -> list[Any]:
        """Returns for each weight the leaf of another tree that stands for it.

        Args:
            what: how messages call the other tree.
            prefix: a tree that is a prefix of this one; each leaf stands for all below it.

        Raises:
            LayoutError: it is no prefix.
        """
        numbered = jax.tree_util.tree_unflatten(self._structure, range(len(self._rest)))
        found: dict[int, Any] = {}

        def note(leaf: object, subtree: object) -> None:
            found.update((number, leaf) for number in jax.tree_util.tree_leaves(subtree))

        try:
            jax.tree_util.tree_map(note, prefix, numbered)
        except (ValueError, TypeError) as error:
            raise LayoutError(
                f"{what}: not a prefix of the tree of arrays: {error} Give one leaf for all, or a "
                "tree with a leaf wherever the tree of arrays has a leaf or a subtree."
            ) from error
        return [found[position] for position in self._positions]

    def others(self) -> list[jax.Array]:
        """Returns the arrays among the leaves that are no weights."""
        return [leaf for leaf in self._rest if isinstance(leaf, jax.Array)]

    def without_values(self) -> NamedTree:
        """Returns the same tree that keeps no weight alive."""
        bare = object.__new__(NamedTree)
        bare._structure, bare._rest, bare._positions = self._structure, self._rest, self._positions
        bare.names, bare.values = self.names, ()
        return bare

    def with_values(self, values: Sequence[object]) -> Any:  # noqa: ANN401 - whatever was given
        """Returns the tree with other weights; leaves that are no weights stay what they were.

        Args:
            values: one per name, in the same order.
        """
        flat = list(self._rest)
        for position, value in zip(self._positions, values, strict=True):
            flat[position] = value
        return jax.tree_util.tree_unflatten(self._structure, flat)


def _boxed_paths(tree: object) -> set[tuple[Any, ...]]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)
    return {tuple(path) for path, value in paths if _is_box(value)}


def _is_box(value: object) -> bool:
    """True for flax's wrappers: nnx has get_value or get_metadata, linen has unbox."""
    kind = type(value)
    return any(hasattr(kind, name) for name in ("get_value", "get_metadata", "unbox"))


def _name(path: tuple[Any, ...], boxes: set[tuple[Any, ...]]) -> str:
    if path and path[:-1] in boxes and path[-1] == GetAttrKey("value"):
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _why_not_traced(value: Any) -> str | None:  # noqa: ANN401 - a leaf of any kind
    if not is_tracer(value):
        return (
            "not traced; pass the weights as an argument of the function that jax.jit compiles, or "
            "call publish or refit outside jit"
        )
    return f"a PRNG key{_IS_NO_WEIGHT}" if is_prng_key(value.dtype) else None


def _why_no_weight(value: object) -> str | None:
    if is_tracer(value):
        return "a traced value; call this outside jit, or publish_in_jit or refit_in_jit inside"
    if isinstance(value, jax.ShapeDtypeStruct) or is_array(value):
        return f"a PRNG key{_IS_NO_WEIGHT}" if is_prng_key(value.dtype) else None
    if isinstance(value, np.ndarray | np.generic):
        return "a NumPy array; make it a jax.Array with jax.device_put"
    return f"a {type(value).__module__}.{type(value).__qualname__}, no jax.Array{_IS_NO_WEIGHT}"


def _repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _report(problems: list[str]) -> str:
    listed = "\n  ".join(problems[:_MAX_LISTED])
    more = len(problems) - _MAX_LISTED
    rest = f"\n  ... and {more} more" if more > 0 else ""
    text = f"the tree of weights has {len(problems)} leaves that cannot be moved:\n  {listed}{rest}"
    if any(problem.endswith(_IS_NO_WEIGHT) for problem in problems):
        text += (
            "\nSay which leaves are weights, e.g. "
            "leaves=lambda name, leaf: not name.startswith('rngs.')."
        )
    return text
