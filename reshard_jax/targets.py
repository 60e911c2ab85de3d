"""Where arrays should go: a prefix tree of shardings becomes one sharding per leaf."""

from __future__ import annotations

import jax
from jax.experimental.layout import Format
from jax.sharding import Sharding, SingleDeviceSharding

from reshard import LayoutError, UnsupportedError
from reshard_jax.tree import NamedTree, Weight

__all__ = ["targets_of"]


def targets_of(tree: NamedTree, shardings: object) -> list[jax.ShapeDtypeStruct]:
    """Returns what each weight of a tree is to become, in the order of the tree.

    Args:
        tree: of arrays or `jax.ShapeDtypeStruct`s.
        shardings: a sharding, device or `Format` for all weights, or a tree of them that is a
            prefix of the tree; a `jax.ShapeDtypeStruct` or array means its sharding.

    Raises:
        LayoutError: `shardings` is no prefix of the tree, or something in it says no place.
        UnsupportedError: a memory layout that is not row-major is asked for.
    """
    wanted = tree.spread("shardings", shardings)
    return [
        _placed(name, value, target)
        for (name, value), target in zip(tree.items(), wanted, strict=True)
    ]


def _placed(name: str, value: Weight, target: object) -> jax.ShapeDtypeStruct:
    if isinstance(target, jax.Array | jax.ShapeDtypeStruct) and (
        (target.shape, target.dtype) != (value.shape, value.dtype)
    ):
        raise LayoutError(
            f"{name}: {value.dtype}{list(value.shape)} is to become "
            f"{target.dtype}{list(target.shape)}. A move changes neither shape nor dtype; cast "
            "before or afterwards."
        )
    sharding = _sharding_of(name, target)
    try:
        return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            value.shape, value.dtype, sharding=sharding
        )
    except ValueError as error:
        raise LayoutError(f"{name}: {error}") from error


def _sharding_of(name: str, target: object) -> Sharding:
    if isinstance(target, jax.Device):
        return SingleDeviceSharding(target)
    if isinstance(target, jax.Array | jax.ShapeDtypeStruct):
        target = target.sharding
    if isinstance(target, Format):
        order = getattr(target.layout, "major_to_minor", None)
        if order is not None and tuple(order) != tuple(range(len(order))):
            raise UnsupportedError(
                f"{name}: {target} asks for a memory layout, but arrays are made row-major. Change "
                "it afterwards: jax.device_put(x, format)."
            )
        target = target.sharding
    if not isinstance(target, Sharding):
        raise LayoutError(
            f"{name}: {target!r} is no place. Give a jax.sharding.Sharding, such as "
            "NamedSharding(mesh, P('x'))."
        )
    return target
