"""Hypothesis strategies: meshes, layouts, forms, and whole pairs of sides that fit each other.

The dimensions that vary: ranks 1 to 9 (primes too) in disjoint, overlapping, identical, gapped and
permuted sets; meshes of 1 to 4 axes, of size 1 too; tensors of 0 to 5 dims, extents 0 to 13;
replicated, sharded, blocked and ragged placements, several axes on one dim in any order; every
element type; permuted, merged, split, fused, stacked, interleaved, repeated and padded forms;
aliases; memory that is transposed, sliced, padded or runs backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from helpers.patterns import Array
from reshard import (
    AnyLayout,
    Box,
    BoxLayout,
    DType,
    Form,
    Layout,
    LocalBox,
    Mesh,
    Padding,
    Part,
    Placement,
    Replicate,
    SegmentedLayout,
    Shard,
    TensorSpec,
)

__all__ = [
    "MAX_ELEMENTS",
    "Problem",
    "box_layouts",
    "layouts",
    "memory",
    "meshes",
    "problems",
    "seeded",
    "shapes",
]

MAX_ELEMENTS = 2000
_MAX_RANKS = 9
_DIVISIONS = ("chunk", "balanced")


@dataclass(frozen=True)
class Problem:
    """Sides that fit each other: every canonical tensor is on all of them.

    Attributes:
        sides: specs of each side, with all ranks in one numbering. The last side may store some
            elements only; the others store all.
        shapes: canonical shape per canonical name; tied names have one more entry each.
        dtype: of all tensors.
    """

    sides: tuple[tuple[TensorSpec, ...], ...]
    shapes: dict[str, tuple[int, ...]]
    dtype: DType

    @property
    def src(self) -> tuple[TensorSpec, ...]:
        return self.sides[0]

    @property
    def dst(self) -> tuple[TensorSpec, ...]:
        return self.sides[-1]


def seeded() -> SearchStrategy[Random]:
    """Sources of choices that cost one draw, for what need not shrink."""
    return st.integers(0, 2**32 - 1).map(Random)


def shapes(min_dims: int = 0, max_dims: int = 5) -> SearchStrategy[tuple[int, ...]]:
    """Shapes of a bounded number of elements; sometimes an extent is 0."""
    extents = st.one_of(st.integers(1, 13), st.sampled_from((1, 2, 3, 4, 8, 0)))
    drawn = st.lists(extents, min_size=min_dims, max_size=max_dims)
    return drawn.map(_bounded)


def _bounded(extents: Sequence[int]) -> tuple[int, ...]:
    bounded: list[int] = []
    for extent in extents:
        room = MAX_ELEMENTS // max(1, math.prod(bounded))
        bounded.append(min(extent, max(1, room)))
    return tuple(bounded)


@st.composite
def meshes(draw: DrawFn, pool: Sequence[int]) -> Mesh:
    """Meshes of 1 to 4 axes over ranks of a pool, in any order."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        sizes.append(draw(st.integers(1, max(1, len(pool) // math.prod(sizes)))))
    ranks = draw(st.permutations(list(pool)))[: math.prod(sizes)]
    return Mesh(tuple(f"x{axis}" for axis in range(len(sizes))), tuple(sizes), tuple(ranks))


@st.composite
def layouts(draw: DrawFn, shape: tuple[int, ...], mesh: Mesh) -> Layout:
    """Layouts of a tensor of this shape over a mesh."""
    placements: list[Placement] = []
    for _ in mesh.shape:
        if not shape or draw(st.integers(0, 2)) == 0:
            placements.append(Replicate())
            continue
        dim = draw(st.integers(0, len(shape) - 1))
        placements.append(Shard(dim, draw(st.sampled_from((1, 1, 1, 2, 3)))))
    order = tuple(draw(st.permutations(list(mesh.axis_names))))
    return Layout(mesh, tuple(placements), order, draw(st.sampled_from(_DIVISIONS)))


@st.composite
def box_layouts(
    draw: DrawFn, shape: tuple[int, ...], pool: Sequence[int], covers: bool
) -> BoxLayout:
    """Explicit boxes: a random partition, each box on some ranks; overlaps on a source.

    Args:
        draw: from hypothesis.
        shape: of the stored tensor.
        pool: ranks to use.
        covers: True for a source, which holds every element; a destination may hold some only.
    """
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5))):
        boxes = _split(draw, boxes)
    held: dict[int, list[Box]] = {rank: [] for rank in pool}
    for box in boxes:
        ranks = st.lists(st.sampled_from(list(pool)), min_size=int(covers), max_size=3)
        for rank in draw(ranks):  # a rank that comes twice stores the box twice
            held[rank].append(box)
    if draw(st.integers(0, 2)) == 0:
        held[draw(st.sampled_from(list(pool)))].append(draw(_boxes_in(shape)))
    lists_empty_ranks = draw(st.booleans())
    chosen = {rank: own for rank, own in held.items() if own or lists_empty_ranks} or held
    if len(shape) > 0 and draw(st.booleans()):
        dim = draw(st.integers(0, len(shape) - 1))
        return BoxLayout.concatenated(chosen, dim)
    spread = {rank: tuple(_spread(draw, own, len(shape))) for rank, own in chosen.items()}
    return BoxLayout(tuple(spread.items()))


def _split(draw: DrawFn, boxes: list[Box]) -> list[Box]:
    index = draw(st.integers(0, len(boxes) - 1))
    box = boxes[index]
    dims = [dim for dim in range(box.ndim) if box.shape[dim] > 1]
    if not dims:
        return boxes
    dim = draw(st.sampled_from(dims))
    at = draw(st.integers(1, box.shape[dim] - 1)) + box.offset[dim]
    low, high = list(box.stop), list(box.offset)
    low[dim] = high[dim] = at
    halves = [Box.from_bounds(box.offset, low), Box.from_bounds(high, box.stop)]
    return [*boxes[:index], *halves, *boxes[index + 1 :]]


@st.composite
def _boxes_in(draw: DrawFn, shape: tuple[int, ...]) -> Box:
    start = [draw(st.integers(0, extent)) for extent in shape]
    stop = [draw(st.integers(low, extent)) for low, extent in zip(start, shape, strict=True)]
    return Box.from_bounds(start, stop)


def _spread(draw: DrawFn, boxes: list[Box], ndim: int) -> list[LocalBox]:
    """Puts boxes at distinct places, one diagonal step after the other, with gaps between."""
    if ndim == 0:
        return [LocalBox(box, ()) for box in boxes[:1]]
    placed = []
    position = draw(st.integers(0, 2))
    for box in draw(st.permutations(boxes)):
        placed.append(LocalBox(box, (position,) + (0,) * (ndim - 1)))
        position += box.shape[0] + draw(st.integers(0, 1))
    return placed


# ---- forms -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Digit:
    name: str
    size: int
    kind: str  # factor, index, repeat


@dataclass
class _Canonical:
    """A canonical tensor: per dim, the sizes of its finest factors, major first."""

    name: str
    factors: list[list[int]]
    tied: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(sizes) for sizes in self.factors)


@st.composite
def _canonical_factors(draw: DrawFn) -> list[list[int]]:
    factors = []
    for extent in draw(shapes()):
        splits = [p for p in range(2, extent) if extent % p == 0]
        if extent == 0 or not splits or draw(st.booleans()):
            factors.append([extent])
            continue
        inner = draw(st.sampled_from(splits))
        rest = extent // inner
        more = [p for p in range(2, rest) if rest % p == 0]
        if len(more) > 0 and draw(st.booleans()):
            third = draw(st.sampled_from(more))
            factors.append([rest // third, third, inner])
        else:
            factors.append([rest, inner])
    return factors


def _coarsen(draw: DrawFn, factors: list[list[int]]) -> list[list[int]]:
    """Merges some neighbouring factors: each side may cut a dim in its own way."""
    coarse = []
    for sizes in factors:
        merged = [sizes[0]] if sizes else []
        for size in sizes[1:]:
            if draw(st.booleans()):
                merged[-1] *= size
            else:
                merged.append(size)
        coarse.append(merged)
    return coarse


def _groups(draw: DrawFn, digits: list[_Digit], lead: _Digit | None) -> list[list[_Digit]]:
    """Deals digits to stored dims in a random order; `lead` is major in its dim."""
    order = draw(st.permutations(digits))
    groups: list[list[_Digit]] = []
    for digit in order:
        if groups and digit is not lead and draw(st.integers(0, 2)) == 0:
            groups[-1].append(digit)
        else:
            groups.append([digit])
    if draw(st.integers(0, 5)) == 0:
        groups.insert(draw(st.integers(0, len(groups))), [])
    return groups[:6] if len(groups) <= 6 else [*groups[:5], [d for g in groups[5:] for d in g]]


def _form(
    groups: list[list[_Digit]],
    canonical: list[list[str]],
    index: dict[str, int],
    starts: dict[int, int],
) -> Form:
    def text(names: list[str]) -> str:
        return names[0] if len(names) == 1 else "(" + " ".join(names) + ")" if names else "1"

    left = " ".join(text([digit.name for digit in group]) for group in groups)
    right = " ".join(text(names) for names in canonical)
    sizes = {digit.name: digit.size for group in groups for digit in group}
    repeat = tuple(d.name for group in groups for d in group if d.kind == "repeat")
    return Form(
        f"{left} -> {right}",
        tuple(sizes.items()),
        tuple(index.items()),
        repeat,
        tuple(starts.items()),
    )


@dataclass
class _Stored:
    """A stored tensor before it has a layout; `segments` along `dim` may be laid out apart."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    padding: Padding
    dim: int = 0
    segments: tuple[int, ...] = ()


def _store_one(draw: DrawFn, tensor: _Canonical, names_: tuple[str, ...]) -> _Stored:
    name, *aliases = names_
    allow_gaps = draw(st.integers(0, 3)) == 0
    if draw(st.integers(0, 2)) == 0:
        return _Stored(tensor.shape, (Part(name, None, tuple(aliases)),), "refuse")
    coarse = _coarsen(draw, tensor.factors)
    names = [[f"d{d}f{k}" for k in range(len(sizes))] for d, sizes in enumerate(coarse)]
    digits = [
        _Digit(name, size, "factor")
        for dim_names, sizes in zip(names, coarse, strict=True)
        for name, size in zip(dim_names, sizes, strict=True)
    ]
    index: dict[str, int] = {}
    if draw(st.integers(0, 3)) == 0:
        digits.append(_Digit("copies", draw(st.integers(1, 3)), "repeat"))
    if allow_gaps and draw(st.integers(0, 3)) == 0:
        digits.append(_Digit("slices", draw(st.integers(1, 3)), "index"))
        index["slices"] = draw(st.integers(0, digits[-1].size - 1))
    groups = _groups(draw, digits, None)
    shape = [math.prod(digit.size for digit in group) for group in groups]
    starts = {}
    padding: Padding = "refuse"
    if allow_gaps:
        is_stack = index and digits[-1].size > 1
        padding = "keep" if is_stack else draw(st.sampled_from(("keep", "zero")))
        for dim in range(len(shape)):
            if draw(st.integers(0, 2)) == 0:
                starts[dim] = draw(st.integers(0, 2))
                shape[dim] += starts[dim] + draw(st.integers(0, 2))
    form = _form(groups, names, index, starts)
    return _Stored(tuple(shape), (Part(name, form, tuple(aliases)),), padding)


def _store_stack(draw: DrawFn, tensors: list[_Canonical]) -> _Stored:
    """Stores equal tensors as slices of one: experts, layers, interleaved gate and up."""
    coarse = _coarsen(draw, tensors[0].factors)
    names = [[f"d{d}f{k}" for k in range(len(sizes))] for d, sizes in enumerate(coarse)]
    digits = [
        _Digit(name, size, "factor")
        for dim_names, sizes in zip(names, coarse, strict=True)
        for name, size in zip(dim_names, sizes, strict=True)
    ]
    stack = _Digit("slices", len(tensors), "index")
    groups = _groups(draw, [*digits, stack], None)
    shape = tuple(math.prod(digit.size for digit in group) for group in groups)
    slots = draw(st.permutations(range(len(tensors))))
    parts = tuple(
        Part(tensor.name, _form(groups, names, {"slices": slot}, {}))
        for tensor, slot in zip(tensors, slots, strict=True)
    )
    return _Stored(shape, parts, draw(st.sampled_from(("refuse", "keep", "zero"))))


def _store_joined(draw: DrawFn, tensors: list[_Canonical], joined: int) -> _Stored:
    """Stores tensors one after the other along a stored dim: fused q, k, v."""
    groups: list[list[_Digit]] = []
    deal = draw(st.randoms(use_true_random=False))
    parts, start, dim = [], 0, 0
    lengths = []
    shape: list[int] = []
    order: list[int] = []
    breaks: list[bool] = []
    for number, tensor in enumerate(tensors):
        names = [[f"d{d}f{k}" for k in range(len(s))] for d, s in enumerate(tensor.factors)]
        digits = [
            _Digit(name, size, "factor")
            for dim_names, sizes in zip(names, tensor.factors, strict=True)
            for name, size in zip(dim_names, sizes, strict=True)
        ]
        lead_name = f"d{joined}f0"
        if number == 0:
            order = list(range(len(digits)))
            deal.shuffle(order)
            breaks = [deal.random() < 0.6 for _ in digits]
        groups = []
        for digit, is_break in zip((digits[i] for i in order), breaks, strict=True):
            if not groups or is_break or digit.name == lead_name:
                groups.append([digit])
            else:
                groups[-1].append(digit)
        extents = [math.prod(digit.size for digit in group) for group in groups]
        dim = next(i for i, group in enumerate(groups) if group[0].name == lead_name)
        parts.append(Part(tensor.name, _form(groups, names, {}, {dim: start})))
        start += extents[dim]
        lengths.append(extents[dim])
        shape = extents
    shape[dim] = start
    return _Stored(tuple(shape), tuple(parts), "refuse", dim, tuple(lengths))


@st.composite
def _bundles(draw: DrawFn, number: int) -> tuple[str, list[_Canonical], int]:
    """One canonical tensor, or several that a side may fuse: (kind, tensors, joined dim)."""
    kind = draw(st.sampled_from(("single", "single", "stack", "join")))
    factors = draw(_canonical_factors())
    if kind == "join" and not factors:
        kind = "single"
    if kind == "single":
        tied = f"t{number}.tied" if draw(st.integers(0, 3)) == 0 else None
        return kind, [_Canonical(f"t{number}", factors, tied)], 0
    count = draw(st.integers(2, 3))
    joined = draw(st.integers(0, len(factors) - 1)) if kind == "join" else 0
    tensors = []
    for member in range(count):
        own = [list(sizes) for sizes in factors]
        if kind == "join":
            own[joined][0] = draw(st.integers(0 if own[joined][0] == 0 else 1, 4))
        tensors.append(_Canonical(f"t{number}.{member}", own))
    return kind, tensors, joined


def _store(draw: DrawFn, bundle: tuple[str, list[_Canonical], int], is_last: bool) -> list[_Stored]:
    kind, tensors, joined = bundle
    if kind == "stack" and draw(st.booleans()):
        return [_store_stack(draw, tensors)]
    if kind == "join" and draw(st.booleans()):
        return [_store_joined(draw, tensors, joined)]
    stored = []
    for tensor in tensors:
        if tensor.tied is None:
            stored.append(_store_one(draw, tensor, (tensor.name,)))
            continue
        names = tuple(draw(st.permutations((tensor.name, tensor.tied))))
        how = draw(st.sampled_from(("tied", "one name", "two tensors"))) if is_last else "tied"
        if how == "two tensors":
            stored += [_store_one(draw, tensor, (name,)) for name in names]
        else:
            stored.append(_store_one(draw, tensor, names if how == "tied" else names[:1]))
    return stored


def _lay_out(draw: DrawFn, stored: _Stored, pool: Sequence[int], covers: bool) -> AnyLayout:
    if len(stored.segments) > 0 and draw(st.booleans()):
        mesh = draw(meshes(pool))
        segment_shape = list(stored.shape)
        own = []
        for length in stored.segments:
            segment_shape[stored.dim] = length
            own.append(draw(layouts(tuple(segment_shape), mesh)))
        others = [
            {dim: own_.cuts_of_dim(dim) for dim in range(len(stored.shape)) if dim != stored.dim}
            for own_ in own
        ]
        # A local array is a box: the segments must cut the other dims alike.
        if all(cuts == others[0] for cuts in others) and len({o.division for o in own}) == 1:
            return SegmentedLayout(stored.dim, stored.segments, tuple(own))
        return SegmentedLayout(stored.dim, stored.segments, (own[0],) * len(own))
    if draw(st.integers(0, 3)) == 0:
        return draw(box_layouts(stored.shape, pool, covers))
    return draw(layouts(stored.shape, draw(meshes(pool))))


@st.composite
def problems(
    draw: DrawFn, num_sides: int = 2, max_bundles: int = 2, dtype: DType | None = None
) -> Problem:
    """Sides that fit each other, over rank sets that are the same, disjoint, or overlap."""
    dtype = dtype or draw(st.sampled_from(list(DType)))
    pools = [draw(_pools(0))]
    for side in range(1, num_sides):
        relation = draw(st.sampled_from(("same", "disjoint", "overlapping")))
        shift = 20 * side if relation == "disjoint" else 3
        pools.append(pools[0] if relation == "same" else draw(_pools(shift)))
    sides: list[list[TensorSpec]] = [[] for _ in pools]
    all_shapes: dict[str, tuple[int, ...]] = {}
    for number in range(draw(st.integers(1, max_bundles))):
        bundle = draw(_bundles(number))
        for side, specs in enumerate(sides):
            is_last = side == num_sides - 1
            for stored in _store(draw, bundle, is_last):
                layout = _lay_out(draw, stored, pools[side], not is_last)
                name = f"side{side}.{len(specs)}"
                specs.append(
                    TensorSpec(name, stored.shape, dtype, layout, stored.parts, stored.padding)
                )
        for tensor in bundle[1]:
            all_shapes[tensor.name] = tensor.shape
            if tensor.tied is not None:
                all_shapes[tensor.tied] = tensor.shape
    return Problem(tuple(map(tuple, sides)), all_shapes, dtype)


@st.composite
def _pools(draw: DrawFn, shift: int) -> list[int]:
    count = draw(st.integers(1, _MAX_RANKS))
    numbers = draw(
        st.lists(st.integers(0, 15), min_size=count, max_size=count, unique=True)
        if draw(st.booleans())
        else st.just(list(range(count)))
    )
    return [number + shift for number in numbers]


# ---- memory ------------------------------------------------------------------------------------


def memory(random: Random, values: Array) -> tuple[Array, Array, Array]:
    """Returns an array with these values and unusual strides, and the memory that it is a part of.

    Transposed, sliced with steps, padded and backwards in every dim, at random.

    Returns:
        The array, the memory, and a copy of the memory with zeros in place of the array.
    """
    order = random.sample(range(values.ndim), values.ndim)
    steps = [random.choice((1, 1, 2, -1, -2)) for _ in order]
    margins = [random.randint(0, 1) for _ in order]
    sizes = [
        values.shape[dim] * abs(step) + 2 * margin
        for dim, step, margin in zip(order, steps, margins, strict=True)
    ]
    base = np.full(math.prod(sizes) * values.itemsize, 0xA5, np.uint8)
    base = base.view(values.dtype).reshape(sizes)
    view: Any = base
    for axis, (dim, step, margin) in enumerate(zip(order, steps, margins, strict=True)):
        before = (slice(None),) * axis
        window = view[(*before, slice(margin, sizes[axis] - margin))]
        view = window[(*before, slice(None, None, step))][(*before, slice(values.shape[dim]))]
    view = view.transpose([order.index(dim) for dim in range(values.ndim)])
    view[...] = 0
    cleared = base.copy()
    view[...] = values
    return view, base, cleared
