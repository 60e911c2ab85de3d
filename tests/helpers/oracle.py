"""What every rank must hold, by the conventional way: build whole tensors, then slice.

Written on NumPy arrays of indices and shares no code with the library: its own reading of patterns,
its own division of dims. Slow and obvious.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from helpers.patterns import Array
from reshard import AnyLayout, BoxLayout, Form, Layout, Part, SegmentedLayout, Shard, TensorSpec

__all__ = [
    "HOLE",
    "canonical_places",
    "canonical_shape",
    "local_array",
    "local_indices",
    "stored_indices",
    "stored_indices_of",
]

HOLE = -1
"""Marks elements that hold nothing of any canonical tensor."""


def stored_indices(spec: TensorSpec) -> dict[str, Array]:
    """Returns, per part, which canonical element (row-major index) each stored element is."""
    return {part.name: stored_indices_of(spec.shape, part) for part in spec.parts}


def local_indices(layout: AnyLayout, shape: tuple[int, ...], rank: int) -> Array | None:
    """Returns which stored element (row-major index) each local element of a rank is."""
    everything = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    return _slice(layout, everything, rank)


def canonical_shape(shape: tuple[int, ...], part: Part) -> tuple[int, ...]:
    """Returns the shape of the canonical tensor of a part of a stored tensor of this shape."""
    if part.form is None:
        return shape
    _, right, sizes = _read(part.form, shape)
    return tuple(math.prod(sizes[name] for name in group) for group in right)


def canonical_places(spec: TensorSpec, rank: int) -> dict[str, Array]:
    """Returns, per part, which canonical element each local element of a rank is, or HOLE."""
    places = local_indices(spec.layout, spec.shape, rank)
    assert places is not None, f"rank {rank} is not in the layout of {spec.name}"
    return {
        name: np.where(places == HOLE, HOLE, _lookup(indices, places))
        for name, indices in stored_indices(spec).items()
    }


def local_array(
    spec: TensorSpec, rank: int, canonicals: Mapping[str, Array], before: Array
) -> Array:
    """Returns what the array of a rank must hold after a refit.

    Args:
        spec: the stored tensor.
        rank: whose array.
        canonicals: whole canonical tensors, by every name.
        before: what the array held, for the elements that are left alone.
    """
    places = local_indices(spec.layout, spec.shape, rank)
    local = before.copy()
    if spec.padding == "zero":
        local[places != HOLE] = 0
    for name, indices in canonical_places(spec, rank).items():
        covered = indices != HOLE
        local[covered] = canonicals[name].reshape(-1)[indices[covered]]
    return local


def _lookup(indices: Array, places: Array) -> Array:
    if indices.size == 0:
        return np.full(places.shape, HOLE)
    return indices.reshape(-1)[np.maximum(places, 0)]


def stored_indices_of(shape: tuple[int, ...], part: Part) -> Array:
    """Returns which canonical element of a part each stored element is, or HOLE."""
    if part.form is None:
        return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    left, right, sizes = _read(part.form, shape)
    fixed = dict(part.form.index)
    starts = dict(part.form.start)
    factors = [name for group in right for name in group]
    index = np.arange(math.prod(sizes[name] for name in factors), dtype=np.int64)
    index = index.reshape([sizes[name] for name in factors])
    order = [name for group in left for name in group]
    kept = [name for name in order if name in factors]
    index = index.transpose([factors.index(name) for name in kept])
    block = np.full([sizes[name] for name in order], HOLE, np.int64)
    target = block[(..., *(fixed.get(name, slice(None)) for name in order))]
    repeated = [name for name in order if name not in fixed]
    target[...] = index[(..., *(slice(None) if name in kept else None for name in repeated))]
    block = block.reshape([math.prod(sizes[name] for name in group) for group in left])
    stored = np.full(shape, HOLE, np.int64)
    window = tuple(
        slice(starts.get(dim, 0), starts.get(dim, 0) + n) for dim, n in enumerate(block.shape)
    )
    stored[window] = block
    return stored


def _read(
    form: Form, shape: tuple[int, ...]
) -> tuple[list[list[str]], list[list[str]], dict[str, int]]:
    left, right = (_read_side(side) for side in form.pattern.split("->"))
    sizes = dict(form.sizes)
    for length, group in zip(shape, left, strict=True):
        unknown = [name for name in group if name not in sizes]
        if unknown:
            (name,) = unknown
            sizes[name] = length // math.prod(sizes[other] for other in group if other != name)
    return left, right, sizes


def _read_side(text: str) -> list[list[str]]:
    dims = re.findall(r"\([^)]*\)|\S+", text)
    return [[name for name in dim.strip("()").split() if name != "1"] for dim in dims]


def _slice(layout: AnyLayout, stored: Array, rank: int) -> Array | None:
    if isinstance(layout, Layout):
        return _slice_mesh(layout, stored, rank)
    if isinstance(layout, BoxLayout):
        return _slice_boxes(layout, stored, rank)
    assert isinstance(layout, SegmentedLayout), layout
    ends = np.cumsum(layout.lengths)
    found = []
    for start, end, own in zip(ends - layout.lengths, ends, layout.layouts, strict=True):
        window = (slice(None),) * layout.dim + (slice(int(start), int(end)),)
        local = _slice(own, stored[window], rank)
        if local is not None:
            found.append(local)
    return np.concatenate(found, axis=layout.dim) if found else None


def _slice_mesh(layout: Layout, stored: Array, rank: int) -> Array | None:
    grid = np.array(layout.mesh.ranks).reshape(layout.mesh.shape)
    where = np.argwhere(grid == rank)
    if len(where) == 0:
        return None
    coordinate = dict(zip(layout.mesh.axis_names, where[0].tolist(), strict=True))
    placement = dict(zip(layout.mesh.axis_names, layout.placements, strict=True))
    size = dict(zip(layout.mesh.axis_names, layout.mesh.shape, strict=True))
    kept = [np.arange(length) for length in stored.shape]
    for axis in layout.order:
        shard = placement[axis]
        if isinstance(shard, Shard):
            parts = _cut(kept[shard.dim], size[axis], shard.blocks, layout.division)
            kept[shard.dim] = parts[coordinate[axis]]
    return stored[np.ix_(*kept)] if kept else stored.copy()


def _cut(indices: Array, parts: int, blocks: int, division: str) -> list[Array]:
    pieces = [
        _divide(block, parts, division)
        for block in _divide(indices, blocks, "even" if division == "even" else "chunk")
    ]
    return [np.concatenate([piece[part] for piece in pieces]) for part in range(parts)]


def _divide(indices: Array, parts: int, division: str) -> list[Array]:
    if division == "balanced":
        return np.array_split(indices, parts)
    size = -(-len(indices) // parts)
    return [indices[part * size : (part + 1) * size] for part in range(parts)]


def _slice_boxes(layout: BoxLayout, stored: Array, rank: int) -> Array | None:
    entries: Sequence[object] | None = dict(layout.entries).get(rank)
    if entries is None:
        return None
    boxes = dict(layout.entries)[rank]
    ends = [[a + n for a, n in zip(at, box.shape, strict=True)] for box, at in boxes]
    shape = [max(column) for column in zip(*ends, strict=True)] if ends else [0] * stored.ndim
    local = np.full(shape, HOLE, np.int64)
    for box, at in boxes:
        here = tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))
        there = tuple(slice(a, a + n) for a, n in zip(box.offset, box.shape, strict=True))
        local[here] = stored[there]
    return local
