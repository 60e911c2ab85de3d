"""What a pytree of weights is, without the weights: specs to plan with, shardings to build with."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Sharding

from reshard import (
    Forms,
    LayoutError,
    Paddings,
    TensorSpec,
    UnsupportedError,
    check_forms,
    check_names,
    padding_of,
    parts_of,
)
from reshard_jax.compat import devices_of
from reshard_jax.dtypes import dtype_of
from reshard_jax.layout import Boxes, LayoutTable
from reshard_jax.ranks import Ranks
from reshard_jax.tree import NamedLeaves, NamedTree

__all__ = ["Description", "Leaf"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One weight: what it is and where it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Sharding

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.sharding}"


class Description:
    """The weights of a tree as one side of a refit sees them. Keeps no array alive.

    Args:
        tree: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
        forms: which canonical tensors each leaf holds; None means one of its own name, as stored.
        padding: what elements are that no canonical tensor covers, of all leaves or by name.
        ranks: the numbering of devices; None means that of the platform of the leaves.
        is_target: whether the leaves are to be made, and no arrays that processes may have alone.

    Attributes:
        ranks: the numbering of devices.
        leaves, specs: one per weight, in the order of the tree.

    Raises:
        LayoutError: naming the leaf that is not laid out or whose form does not fit.
        UnsupportedError: naming the leaf and the limit.
    """

    def __init__(
        self,
        tree: NamedTree | NamedLeaves,
        forms: Forms | None = None,
        padding: Paddings = "refuse",
        ranks: Ranks | None = None,
        *,
        is_target: bool = False,
    ) -> None:
        if not tree.names:
            raise LayoutError("the tree holds no weight: it is empty, or leaves=... excludes all.")
        self.leaves = tuple(map(_leaf, tree.names, tree.values))
        self.ranks = Ranks.of_leaves(tree.values) if ranks is None else ranks
        self._layouts = LayoutTable(self.ranks)
        if not is_target:
            self._check_seen_by_all()
        check_forms(forms, tree.names)
        check_names("padding", padding, tree.names)
        self.specs = tuple(self._spec(leaf, forms, padding) for leaf in self.leaves)

    def changes(self, tree: NamedTree | NamedLeaves) -> list[str]:
        """Returns what is not as it was described, one line per weight; empty if nothing changed.

        Shardings that are written differently but put the same boxes on the same ranks are equal,
        and so are other memory layouts and memory kinds.
        """
        old, new = {leaf.name: leaf for leaf in self.leaves}, map(_leaf, tree.names, tree.values)
        lines = [f"{name}: gone" for name in sorted(old.keys() - set(tree.names))]
        for leaf in new:
            before = old.get(leaf.name)
            if before is None:
                lines.append(f"{leaf.name}: new, {leaf}")
            elif not self._is_same(before, leaf):
                lines.append(f"{leaf.name}: was {before}, is {leaf}")
        return lines

    def has_shard(self, leaf: Leaf) -> bool:
        """Says whether a device of this process holds a part of a weight."""
        local = set(self.ranks.local)
        return any(self.ranks.of(device) in local for device in devices_of(leaf.sharding))

    def boxes(self, leaf: Leaf) -> Boxes:
        """Returns the box of a weight that each rank holds."""
        try:
            return self._layouts.boxes(leaf.sharding, leaf.shape)
        except (LayoutError, UnsupportedError) as error:
            raise type(error)(f"{leaf.name}: {error}") from error

    def _is_same(self, old: Leaf, new: Leaf) -> bool:
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            return False
        return old.sharding == new.sharding or self.boxes(old) == self.boxes(new)

    def _check_seen_by_all(self) -> None:
        """Refuses arrays that each process has for itself: the others would describe other ones."""
        if self.ranks.num_processes == 1:
            return
        for leaf in self.leaves:
            if isinstance(leaf.sharding, jax.sharding.SingleDeviceSharding):
                raise LayoutError(
                    f"{leaf.name}: {leaf.sharding} is local to one of {self.ranks.num_processes} "
                    "processes. All processes must hold one global array: jax.device_put(x, "
                    "NamedSharding(mesh, P())) with a mesh over all of its devices."
                )

    def _spec(self, leaf: Leaf, forms: Forms | None, padding: Paddings) -> TensorSpec:
        try:
            layout = self._layouts.layout(leaf.sharding, leaf.shape)
        except (LayoutError, UnsupportedError) as error:
            raise type(error)(f"{leaf.name}: {error}") from error
        dtype = dtype_of(leaf.name, leaf.dtype)
        parts = parts_of(forms, leaf.name, leaf.shape)
        own_padding = padding_of(padding, leaf.name)
        return TensorSpec(leaf.name, leaf.shape, dtype, layout, parts, own_padding)


def _leaf(name: str, value: jax.Array | jax.ShapeDtypeStruct) -> Leaf:
    sharding = value.sharding
    if sharding is None:
        raise LayoutError(
            f"{name}: {value} has no sharding. Give jax.ShapeDtypeStruct(shape, dtype, "
            "sharding=...); jax.eval_shape drops it."
        )
    if not devices_of(sharding):
        raise LayoutError(
            f"{name}: {sharding} has no devices. Give a sharding over a mesh of devices, not over "
            "an AbstractMesh."
        )
    return Leaf(name, tuple(value.shape), np.dtype(value.dtype), sharding)
