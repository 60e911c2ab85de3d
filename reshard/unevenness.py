"""Dims that do not divide evenly over the ranks that share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reshard.division import cut_dim
from reshard.layout import AnyLayout, Layout
from reshard.segmented_layout import SegmentedLayout

if TYPE_CHECKING:
    from reshard.tensor_spec import TensorSpec

__all__ = ["UnevenDim", "uneven_dims"]


@dataclass(frozen=True, slots=True)
class UnevenDim:
    """A dim that is cut into parts of different sizes.

    Attributes:
        dim: of the stored tensor.
        length: indices that are shared out.
        num_parts: by how many.
        largest, smallest: indices of a part; 0 for one that is left without any.
        num_empty: parts without any.
        division: the rule by which it is cut.
    """

    dim: int
    length: int
    num_parts: int
    largest: int
    smallest: int
    num_empty: int
    division: str


def uneven_dims(specs: Iterable[TensorSpec]) -> Iterator[tuple[TensorSpec, UnevenDim]]:
    """Yields every dim of every spec that is cut unevenly; layouts that list boxes have no rule."""
    known: dict[tuple[int, tuple[int, ...]], list[UnevenDim]] = {}
    for spec in specs:
        key = id(spec.layout), spec.shape
        if key not in known:
            known[key] = list(dict.fromkeys(_of_layout(spec.layout, spec.shape)))
        for each in known[key]:
            yield spec, each


def _of_layout(layout: AnyLayout, shape: tuple[int, ...]) -> Iterator[UnevenDim]:
    if isinstance(layout, SegmentedLayout):
        for index, segment in enumerate(layout.layouts):
            yield from _of_layout(segment, layout.segment_shape(index, shape))
    if not isinstance(layout, Layout):
        return
    for dim, length in enumerate(shape):
        cuts = layout.cuts_of_dim(dim)
        if not cuts:
            continue
        parts = cut_dim(length, cuts, layout.division)
        sizes = Counter([sum([stop - start for start, stop in runs]) for runs in parts])
        if len(sizes) > 1:
            yield UnevenDim(
                dim, length, len(parts), max(sizes), min(sizes), sizes[0], layout.division
            )
