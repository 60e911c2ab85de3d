"""Weights as `jit` traces them: are they those that the end described, and on which mesh?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from reshard import LayoutError, UnsupportedError
from reshard_jax.compat import explicit_axes, manual_axes, names_of_spec, traced_spec
from reshard_jax.description import Description, Leaf
from reshard_jax.tree import NamedTree

__all__ = ["Placement", "check_traced", "placement_of"]

_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the weights of a program are.

    Attributes:
        mesh: of all of them.
        specs: one per weight, in the order of the tree.
    """

    mesh: Mesh
    specs: tuple[PartitionSpec, ...]


def placement_of(description: Description) -> Placement:
    """Returns the mesh and specs of described weights.

    Raises:
        UnsupportedError: they are on several meshes, in memory that programs do not work in, or
            some process of the job has none of the devices.
    """
    first, mesh = description.leaves[0], _mesh_of(description.leaves[0])
    for leaf in description.leaves:
        if _mesh_of(leaf) != mesh:
            raise UnsupportedError(
                f"{leaf.name} is on {_mesh_of(leaf)}, {first.name} on {mesh}. A program is "
                "compiled for one mesh, so its refit is too: put all weights on one mesh, or make "
                "one end per mesh, with leaves=... and a group of its own."
            )
        _check_memory(leaf)
    _check_processes(mesh, description)
    return Placement(mesh, tuple(_spec_of(leaf) for leaf in description.leaves))


def check_traced(tree: NamedTree, description: Description, placement: Placement) -> None:
    """Checks that traced weights are what the end described.

    Raises:
        UnsupportedError: the code is inside of `shard_map`.
        LayoutError: naming each weight that differs, or that XLA would move before the refit.
    """
    axes = manual_axes()
    if axes:
        raise UnsupportedError(
            f"this is inside jax.shard_map over {axes}, where a weight is one shard. Call it in "
            "the jitted function, outside of shard_map: it makes its own."
        )
    leaves = {leaf.name: leaf for leaf in description.leaves}
    lines = [f"{name}: not there" for name in sorted(leaves.keys() - set(tree.names))]
    lines += [f"{name}: not described" for name in sorted(set(tree.names) - leaves.keys())]
    for name, value in zip(tree.names, tree.values, strict=True):
        if name in leaves:
            lines += _differences(leaves[name], value, placement.mesh)
    if not lines:
        return
    more = f"\n  ... and {len(lines) - _MAX_LISTED} more" if len(lines) > _MAX_LISTED else ""
    listed = "\n  ".join(lines[:_MAX_LISTED])
    raise LayoutError(
        f"{len(lines)} weights are not what this end described:\n  {listed}{more}\n"
        "Hand in weights like those that the end was made with, or make an end for these."
    )


def _differences(leaf: Leaf, value: Any, mesh: Mesh) -> list[str]:  # noqa: ANN401 - a tracer
    if (tuple(value.shape), np.dtype(value.dtype)) != (leaf.shape, leaf.dtype):
        return [
            f"{leaf.name}: {value.dtype}{list(value.shape)} is traced, "
            f"{leaf.dtype}{list(leaf.shape)} was described"
        ]
    axes = explicit_axes(mesh)
    if not axes:
        return []  # a tracer does not know its sharding
    spec = traced_spec(value)
    ndim = len(leaf.shape)
    wanted = _normal(_spec_of(leaf), ndim, axes)
    if spec is not None and _normal(spec, ndim, axes) == wanted:
        return []
    return [
        f"{leaf.name}: traced with {spec or 'no mesh'}, described with {_spec_of(leaf)}; XLA would "
        "move it first. Reshard it in the program: jax.sharding.reshard(x, spec)"
    ]


def _normal(
    spec: PartitionSpec, ndim: int, axes: frozenset[object]
) -> tuple[tuple[object, ...], ...]:
    """Returns the axes that cut each dim, as far as they are among `axes`."""
    entries = [
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in names_of_spec(spec)
    ]
    entries += [()] * (ndim - len(entries))
    return tuple(tuple(name for name in entry if name in axes) for entry in entries)


def _mesh_of(leaf: Leaf) -> Mesh:
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return sharding.mesh
    if isinstance(sharding, SingleDeviceSharding):
        return Mesh(np.array(list(sharding.device_set)), ("device",))
    raise UnsupportedError(
        f"{leaf.name}: {sharding} has no mesh, which a program needs. Put the weight on one: "
        "jax.device_put(x, NamedSharding(mesh, spec))."
    )


def _spec_of(leaf: Leaf) -> PartitionSpec:
    if isinstance(leaf.sharding, NamedSharding):
        return leaf.sharding.spec
    return PartitionSpec()  # type: ignore[no-untyped-call]


def _check_memory(leaf: Leaf) -> None:
    device: Any = next(iter(leaf.sharding.device_set))
    default = device.default_memory().kind
    kind = leaf.sharding.memory_kind
    if kind not in (None, default):
        raise UnsupportedError(
            f"{leaf.name}: memory of kind {kind!r}, programs work in {default!r}. Refit it outside "
            "jit, or put it there first."
        )


def _check_processes(mesh: Mesh, description: Description) -> None:
    there = {device.process_index for device in mesh.devices.flat}
    absent = sorted(set(range(description.ranks.num_processes)) - there)
    if absent:
        raise UnsupportedError(
            f"processes {absent} of {description.ranks.num_processes} have no device of "
            f"{mesh}, so the program does not run there, and a refit needs all processes of the "
            "job. Use a mesh over devices of all processes, or refit outside jit."
        )
