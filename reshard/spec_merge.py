"""One side's tensors, out of what each of its processes describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

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
    known: set[bytes] = set()
    tellers: dict[str, list[tuple[int, TensorSpec]]] = {}
    for process, data in enumerate(encoded):
        if data not in known:
            known.add(data)
            for spec in decode_specs(data):
                tellers.setdefault(spec.name, []).append((process, spec))
    joiner = _Joiner(side)
    return [joiner.join(told) for told in tellers.values()]


class _Joiner:
    """Joins what processes tell of one tensor; tensors that are cut alike share their layout."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._layouts: dict[tuple[int, ...], BoxLayout] = {}
        self._copies: dict[tuple[int, ...], Layout] = {}

    def join(self, told: Sequence[tuple[int, TensorSpec]]) -> TensorSpec:
        """Returns the tensor of one (process, spec) per process that knows it."""
        process, first = told[0]
        for other, spec in told[1:]:
            if spec != first and not _differ_in_boxes_alone(first, spec):
                self._refuse(process, first, other, spec)
        layout = first.layout
        if not isinstance(layout, BoxLayout):
            return first
        if len(told) > 1:
            key = tuple(id(spec.layout) for _, spec in told)
            joined = self._layouts.get(key)
            if joined is None:
                joined = self._layouts[key] = self._joined_layout(told)
            layout = joined
        simple = self._simplified(layout, first.shape)
        return TensorSpec(first.name, first.shape, first.dtype, simple, first.parts, first.padding)

    def _simplified(self, layout: BoxLayout, shape: tuple[int, ...]) -> AnyLayout:
        """Returns a mesh layout if boxes only say that all ranks hold the whole tensor."""
        whole = (LocalBox(Box((0,) * len(shape), shape), (0,) * len(shape)),)
        if not layout.entries or any(boxes != whole for _, boxes in layout.entries):
            return layout
        copies = self._copies.get(layout.ranks)
        if copies is None:
            mesh = Mesh(("replica",), (len(layout.ranks),), layout.ranks)
            copies = self._copies[layout.ranks] = Layout.replicated(mesh)
        return copies

    def _joined_layout(self, told: Sequence[tuple[int, TensorSpec]]) -> BoxLayout:
        entries: dict[int, tuple[LocalBox, ...]] = {}
        tellers: dict[int, tuple[int, TensorSpec]] = {}
        for process, spec in told:
            for rank, boxes in spec.layout.entries if isinstance(spec.layout, BoxLayout) else ():
                if entries.setdefault(rank, boxes) != boxes:
                    self._refuse(*tellers[rank], process, spec)
                tellers.setdefault(rank, (process, spec))
        return BoxLayout(tuple(entries.items()))

    def _refuse(self, first: int, one: TensorSpec, second: int, other: TensorSpec) -> NoReturn:
        for what in ("shape", "dtype", "parts", "padding", "layout"):
            if getattr(one, what) != getattr(other, what):
                here, there = _texts(getattr(one, what), getattr(other, what))
                raise LayoutError(
                    f"{one.name}: {self._side} process {first} says {what} {here}, process "
                    f"{second} says {there}. All processes of a side must describe a tensor alike: "
                    "check the mesh (order of ranks) and the model on both."
                )
        raise LayoutError(f"{one.name}: {self._side} processes {first} and {second} disagree.")


def _differ_in_boxes_alone(one: TensorSpec, other: TensorSpec) -> bool:
    def rest(spec: TensorSpec) -> tuple[object, ...]:
        return spec.shape, spec.dtype, spec.parts, spec.padding

    layouts = one.layout, other.layout
    return all(isinstance(each, BoxLayout) for each in layouts) and rest(one) == rest(other)


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
        shifted.append(spec.placed(layout))
    return shifted
