"""Tensor specs as bytes, for the exchange between processes and for digests.

Equal specs give equal bytes. Layouts and parts are written once and referred to by number, since a
model of 1,000 tensors has a dozen of them. MessagePack through msgspec: typed and bounded, nothing
is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from reshard.box import Box
from reshard.dtypes import DType
from reshard.elementwise import Elementwise
from reshard.errors import LayoutError
from reshard.form import Form
from reshard.layout import AnyLayout, BoxLayout, Layout, LocalBox
from reshard.mesh import Mesh
from reshard.placement import Placement, Replicate, Shard
from reshard.segmented_layout import SegmentedLayout
from reshard.tensor_spec import Part, TensorSpec

__all__ = ["decode_specs", "encode_specs"]


def encode_specs(specs: Sequence[TensorSpec]) -> bytes:
    """Returns the bytes of a list of specs.

    Raises:
        LayoutError: naming the first spec that holds something which has no bytes.
    """
    try:
        return msgspec.msgpack.encode(_plain_specs(specs))
    except _UNSENDABLE as error:
        raise _refusal(specs, error) from error


_UNSENDABLE = (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError)
"""What plain values and msgspec raise for values that they do not know."""


def _refusal(specs: Sequence[TensorSpec], reason: Exception) -> LayoutError:
    """Returns the error that names the first spec that cannot be sent."""
    name = "specs"
    for spec in specs:
        try:
            msgspec.msgpack.encode(_plain_specs([spec]))
        except _UNSENDABLE as error:
            name, reason = str(getattr(spec, "name", repr(spec))), error
            break
    if isinstance(reason, LayoutError):
        return LayoutError(f"{name}: {reason}")
    return LayoutError(
        f"{name!r}: its spec cannot be sent to other processes ({reason}). Make it of reshard's "
        "layouts and forms, of whole numbers below 2**63 and of texts."
    )


def _plain_specs(specs: Sequence[TensorSpec]) -> tuple[list[Any], list[Any]]:
    layouts: dict[AnyLayout, int] = {}
    numbers: dict[int, int] = {}
    rows = []
    for spec in specs:
        number = numbers.get(id(spec.layout))
        if number is None:
            number = layouts.setdefault(spec.layout, len(layouts))
            numbers[id(spec.layout)] = number
        parts = [_plain_part(part) for part in spec.parts]
        rows.append((spec.name, spec.shape, int(spec.dtype), number, parts, spec.padding))
    return [_plain_layout(layout) for layout in layouts], rows


def decode_specs(data: bytes) -> list[TensorSpec]:
    """Returns the specs; equal layouts are one object, so that plans find equal geometries fast.

    Raises:
        LayoutError: if the bytes are not what `encode_specs` writes.
    """
    try:
        plain_layouts, rows = msgspec.msgpack.decode(data)
        layouts = [_layout(plain) for plain in plain_layouts]
        forms: dict[Form, Form] = {}
        return [
            TensorSpec(
                name,
                tuple(shape),
                DType(dtype),
                layouts[number],
                tuple(_part(part, forms) for part in parts),
                padding,
            )
            for name, shape, dtype, number, parts, padding in rows
        ]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(
            f"received {len(data)} bytes that are no tensor specs ({error}). Use one version of "
            "reshard on both sides."
        ) from error


def _plain_part(part: Part) -> tuple[Any, ...]:
    form = part.form
    plain = (
        None if form is None else (form.pattern, form.sizes, form.index, form.repeat, form.start)
    )
    rule = part.elementwise
    change = None if rule is None else (rule.scale, rule.divisor, rule.offset)
    return part.name, plain, part.aliases, change


def _part(plain: Any, forms: dict[Form, Form]) -> Part:  # noqa: ANN401 (decoded msgpack)
    name, plain_form, aliases, change = plain
    rule = None if change is None else Elementwise(*change)
    if plain_form is None:
        return Part(name, None, tuple(aliases), rule)
    pattern, sizes, index, repeat, start = plain_form
    form = Form(pattern, _pairs(sizes), _pairs(index), tuple(repeat), _pairs(start))
    return Part(name, forms.setdefault(form, form), tuple(aliases), rule)


def _pairs(plain: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return tuple(tuple(item) for item in plain)


def _plain_layout(layout: AnyLayout) -> tuple[Any, ...]:
    if isinstance(layout, Layout):
        mesh = layout.mesh
        placements = [
            (p.dim, p.blocks) if isinstance(p, Shard) else None for p in layout.placements
        ]
        mesh_plain = (mesh.axis_names, mesh.shape, mesh.ranks)
        return "mesh", mesh_plain, placements, layout.order, layout.division
    if isinstance(layout, BoxLayout):
        return (
            "boxes",
            [
                (rank, [(box.offset, box.shape, at) for box, at in local_boxes])
                for rank, local_boxes in layout.entries
            ],
        )
    if isinstance(layout, SegmentedLayout):
        segments = [_plain_layout(segment) for segment in layout.layouts]
        return "segments", layout.dim, layout.lengths, segments
    raise LayoutError(f"layout of type {type(layout).__name__} cannot be sent to other processes.")


def _layout(plain: Any) -> AnyLayout:  # noqa: ANN401
    kind, *rest = plain
    if kind == "mesh":
        (names, shape, ranks), placements, order, division = rest
        mesh = Mesh(tuple(names), tuple(shape), tuple(ranks))
        decoded: tuple[Placement, ...] = tuple(
            Replicate() if placement is None else Shard(*placement) for placement in placements
        )
        return Layout(mesh, decoded, tuple(order), division)
    if kind == "boxes":
        return BoxLayout(
            tuple(
                (
                    rank,
                    tuple(
                        LocalBox(Box(tuple(offset), tuple(shape)), tuple(at))
                        for offset, shape, at in local_boxes
                    ),
                )
                for rank, local_boxes in rest[0]
            )
        )
    if kind == "segments":
        dim, lengths, segments = rest
        return SegmentedLayout(dim, tuple(lengths), tuple(_layout(item) for item in segments))
    raise LayoutError(f"layout kind {kind!r} is unknown.")
