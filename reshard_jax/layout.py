"""Shardings as layouts: which rank holds which box of an array.

A `NamedSharding` becomes a `Layout` with the mesh and its axes, so that plans find its regular
shape; other shardings become what `devices_indices_map` says. Every layout is compared with that
map, for every device, so a rule of JAX that this module does not know is an error and never wrong
bytes.
"""

from __future__ import annotations

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from reshard import AnyLayout, Box, BoxLayout, Layout, LayoutError, LocalBox, Mesh, UnsupportedError
from reshard_jax.compat import (
    axes_of_mesh_are_concrete,
    names_of_spec,
    unreduced_axes,
    why_no_memory,
)
from reshard_jax.ranks import Ranks

__all__ = ["LayoutTable", "check_supported"]

Boxes = dict[int, Box]


class LayoutTable:
    """Layouts by sharding and shape; each distinct one is made and verified once.

    Args:
        ranks: the numbering of devices.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._known: dict[tuple[Sharding, tuple[int, ...]], tuple[AnyLayout, Boxes]] = {}
        self._layouts: dict[AnyLayout, AnyLayout] = {}

    def layout(self, sharding: Sharding, shape: tuple[int, ...]) -> AnyLayout:
        """Returns the layout of an array; equal layouts are one object.

        Raises:
            LayoutError: if the sharding does not fit the shape.
            UnsupportedError: for partial sums, unconstrained dims, and memory of devices that are
                neither CPUs nor NVIDIA GPUs.
        """
        return self._find(sharding, shape)[0]

    def boxes(self, sharding: Sharding, shape: tuple[int, ...]) -> Boxes:
        """Returns the box that each rank holds, as JAX says."""
        return self._find(sharding, shape)[1]

    def _find(self, sharding: Sharding, shape: tuple[int, ...]) -> tuple[AnyLayout, Boxes]:
        found = self._known.get((sharding, shape))
        if found is None:
            check_supported(sharding)
            boxes = _boxes(sharding, shape, self._ranks)
            layout = _make_layout(sharding, boxes, self._ranks)
            _verify(layout, boxes, sharding, shape)
            layout = self._layouts.setdefault(layout, layout)
            found = self._known[sharding, shape] = layout, boxes
        return found


def check_supported(sharding: Sharding) -> None:
    """Refuses shardings that are no copy of the array in memory that can be moved.

    Raises:
        UnsupportedError: naming what is in the way and what to call first.
    """
    if isinstance(sharding, NamedSharding):
        _check_spec(sharding.spec)
    if not axes_of_mesh_are_concrete(sharding):
        raise UnsupportedError(
            f"{sharding} is over an abstract mesh, which has no devices. Use the jax.sharding.Mesh "
            "on which the weights lie."
        )
    platform = why_no_memory(sharding)
    if platform:
        raise UnsupportedError(
            f"{sharding} is memory of platform {platform!r}; that of CPUs and NVIDIA GPUs is "
            "moved. Put the weights into host memory first: "
            "jax.device_put(x, x.sharding.with_memory_kind('pinned_host'))."
        )


def _check_spec(spec: PartitionSpec) -> None:
    axes = unreduced_axes(spec)
    if axes:
        raise UnsupportedError(
            f"{spec} is unreduced over {axes}: every device holds a partial sum, no part of the "
            "array. Reduce first: jax.sharding.reshard(x, P())."
        )
    if PartitionSpec.UNCONSTRAINED in names_of_spec(spec):
        raise UnsupportedError(
            f"{spec} leaves a dim UNCONSTRAINED, so it does not say where the elements lie. Give a "
            "full spec, or fix one first: jax.sharding.reshard(x, P())."
        )


def _boxes(sharding: Sharding, shape: tuple[int, ...], ranks: Ranks) -> Boxes:
    try:
        index_map = sharding.devices_indices_map(shape)
    except ValueError as error:
        raise LayoutError(
            f"{sharding} does not fit shape {shape}: {error}. JAX shards evenly: choose another "
            "spec or pad the dim."
        ) from error
    boxes = {}
    for device, index in index_map.items():
        bounds = [part.indices(length) for part, length in zip(index, shape, strict=True)]
        offset = tuple(start for start, _, _ in bounds)
        boxes[ranks.of(device)] = Box(offset, tuple(stop - start for start, stop, _ in bounds))
    return boxes


def _make_layout(sharding: Sharding, boxes: Boxes, ranks: Ranks) -> AnyLayout:
    if isinstance(sharding, NamedSharding):
        return _named_layout(sharding, ranks)
    if sharding.is_fully_replicated:
        return Layout.replicated(Mesh(("device",), (len(boxes),), tuple(sorted(boxes))))
    return BoxLayout(
        tuple((rank, (LocalBox(box, (0,) * box.ndim),)) for rank, box in boxes.items())
    )


def _named_layout(sharding: NamedSharding, ranks: Ranks) -> Layout:
    mesh = sharding.mesh
    if not isinstance(mesh, jax.sharding.Mesh):
        raise UnsupportedError(
            f"sharding {sharding} has an abstract mesh, which says nothing about devices. Use a "
            "jax.sharding.Mesh."
        )
    names = tuple(_text(name) for name in mesh.axis_names)
    devices = tuple(ranks.of(device) for device in mesh.devices.flat)
    spec = [_entry(entry) for entry in names_of_spec(sharding.spec)]
    return Layout.from_spec(Mesh(names, mesh.devices.shape, devices), spec, "even")


def _entry(entry: object) -> tuple[str, ...]:
    """Returns the names that cut one dim, major first."""
    if entry is None:
        return ()
    return tuple(_text(name) for name in entry) if isinstance(entry, tuple) else (_text(entry),)


def _text(axis_name: object) -> str:
    """Returns a mesh axis name as text; JAX allows any hashable value."""
    return axis_name if isinstance(axis_name, str) else repr(axis_name)


def _verify(layout: AnyLayout, boxes: Boxes, sharding: Sharding, shape: tuple[int, ...]) -> None:
    layout.check(shape)
    for rank, box in boxes.items():
        found = layout.local_boxes(rank, shape)
        expected = () if box.is_empty else (LocalBox(box, (0,) * box.ndim),)
        if found != expected:
            raise UnsupportedError(
                f"{sharding} of shape {shape} puts {box} on rank {rank}, but read as {layout} it "
                f"would hold {[str(part.box) for part in found]}. This is a rule of JAX that "
                "reshard does not know; please report the sharding."
            )
