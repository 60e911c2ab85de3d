"""One side's tensors, out of what each of its processes describes."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.box import Box
from reshard.errors import LayoutError
from reshard.layout import AnyLayout, BoxLayout, Layout, LocalBox
from reshard.mesh import Mesh
from reshard.spec_codec import decode_specs
from reshard.tensor_spec import TensorSpec

__all__ = ["merge_specs", "shift_specs"]


def merge_specs(side: str, encoded: Sequence[bytes]) -> list[TensorSpec]:
    """Returns the union of the specs of all processes of one side, in order of first appearance.

    Processes may know different tensors (pipeline stages). A tensor that several know must be the
    same to all of them; explicit boxes are joined, as each process may know only its own.

    Args:
        side: how messages call the side.
        encoded: per process, what `encode_specs` wrote.

    Raises:
        LayoutError: naming tensor, processes and both values.
    """
    known: dict[bytes, list[TensorSpec]] = {}
    merged: dict[str, TensorSpec] = {}
    origin: dict[str, int] = {}
    for process, data in enumerate(encoded):
        if data in known:
            continue
        known[data] = decode_specs(data)
        for spec in known[data]:
            other = merged.get(spec.name)
            if other is None:
                merged[spec.name] = spec
                origin[spec.name] = process
            elif other != spec:
                merged[spec.name] = _joined(side, origin[spec.name], other, process, spec)
    return [_simplified(spec) for spec in merged.values()]


def _simplified(spec: TensorSpec) -> TensorSpec:
    """Returns the spec with a mesh layout if its boxes only say that all ranks hold all of it."""
    layout = spec.layout
    if not isinstance(layout, BoxLayout) or not layout.entries:
        return spec
    whole = (LocalBox(Box((0,) * len(spec.shape), spec.shape), (0,) * len(spec.shape)),)
    if any(boxes != whole for _, boxes in layout.entries):
        return spec
    mesh = Mesh(("replica",), (len(layout.ranks),), layout.ranks)
    copies = Layout.replicated(mesh)
    return TensorSpec(spec.name, spec.shape, spec.dtype, copies, spec.parts, spec.padding)


def _joined(side: str, first: int, one: TensorSpec, second: int, other: TensorSpec) -> TensorSpec:
    def rest(spec: TensorSpec) -> tuple[object, ...]:
        return spec.shape, spec.dtype, spec.parts, spec.padding

    a, b = one.layout, other.layout
    if isinstance(a, BoxLayout) and isinstance(b, BoxLayout) and rest(one) == rest(other):
        entries = dict(a.entries)
        if all(entries.get(rank, boxes) == boxes for rank, boxes in b.entries):
            layout = BoxLayout(tuple((entries | dict(b.entries)).items()))
            return TensorSpec(one.name, one.shape, one.dtype, layout, one.parts, one.padding)
    for what in ("shape", "dtype", "layout", "parts", "padding"):
        if getattr(one, what) != getattr(other, what):
            here, there = _texts(getattr(one, what), getattr(other, what))
            raise LayoutError(
                f"{one.name}: {side} process {first} says {what} {here}, process {second} says "
                f"{there}. All processes of a side must describe a tensor alike: check the mesh "
                "(order of ranks) and the model on both."
            )
    raise LayoutError(f"{one.name}: {side} processes {first} and {second} disagree.")


def _texts(one: object, other: object) -> tuple[str, str]:
    """Returns two values in short, or in full if that does not tell them apart."""
    return (str(one), str(other)) if str(one) != str(other) else (repr(one), repr(other))


def shift_specs(specs: Sequence[TensorSpec], offset: int) -> list[TensorSpec]:
    """Returns the specs with `offset` added to every rank; equal layouts stay one object."""
    if offset == 0:
        return list(specs)
    layouts: dict[int, AnyLayout] = {}
    shifted = []
    for spec in specs:
        layout = layouts.get(id(spec.layout))
        if layout is None:
            layout = layouts[id(spec.layout)] = spec.layout.shifted(offset)
        shifted.append(
            TensorSpec(spec.name, spec.shape, spec.dtype, layout, spec.parts, spec.padding)
        )
    return shifted
