"""Laws of values: they print as what makes them, and survive pickle and the wire."""

from __future__ import annotations

import math
import pickle

import numpy as np
from helpers import oracle
from helpers.strategies import box_layouts, layouts, meshes, problems, shapes
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard import Box
from reshard.division import Division, divide
from reshard.spec_codec import decode_specs, encode_specs
from reshard.spec_merge import merge_specs, shift_specs


def made_again(value: object) -> object:
    return eval(repr(value), vars(reshard))


@st.composite
def boxes(draw, ndim):
    offset = tuple(draw(st.integers(0, 6)) for _ in range(ndim))
    return Box(offset, tuple(draw(st.integers(0, 5)) for _ in range(ndim)))


def points(box: Box) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = {()}
    for low, high in zip(box.offset, box.stop, strict=True):
        found = {(*point, i) for point in found for i in range(low, high)}
    return found


@given(st.integers(0, 3).flatmap(lambda ndim: st.tuples(boxes(ndim), boxes(ndim))))
def test_boxes_are_sets_of_points(pair):
    a, b = pair
    common = a.intersect(b)
    assert (points(common) if common else set()) == points(a) & points(b)
    assert a.contains(b) == (points(b) <= points(a))
    assert a.num_elements == len(points(a))
    rest = a.subtract(b)
    assert sum(part.num_elements for part in rest) == len(points(a) - points(b))
    assert set().union(*map(points, rest)) == points(a) - points(b)
    assert made_again(a) == a
    assert pickle.loads(pickle.dumps(a)) == a


@given(meshes(list(range(9))))
def test_a_mesh_knows_where_each_rank_is(mesh):
    for position, rank in enumerate(mesh.ranks):
        assert mesh.position(rank) == position
        coordinate = mesh.coordinate(rank)
        where = [i * stride for i, stride in zip(coordinate, mesh.strides, strict=True)]
        assert mesh.ranks[sum(where)] == rank
        assert mesh.shifted(100).coordinate(rank + 100) == coordinate
    assert mesh.position(100) is None
    assert made_again(mesh) == mesh
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert hash(made_again(mesh)) == hash(mesh)


@st.composite
def shapes_with_layouts(draw):
    shape = draw(shapes(0, 4))
    pool = list(range(draw(st.integers(1, 9))))
    if draw(st.booleans()):
        return shape, draw(layouts(shape, draw(meshes(pool))))
    return shape, draw(box_layouts(shape, pool, draw(st.booleans())))


@given(shapes_with_layouts())
def test_a_layout_holds_what_the_oracle_says(drawn):
    shape, layout = drawn
    layout.check(shape)
    for rank in layout.ranks:
        expected = oracle.local_indices(layout, shape, rank)
        assert layout.local_shape(rank, shape) == expected.shape
        held = {}
        for box, at in layout.local_boxes(rank, shape):
            assert not box.is_empty
            for point in points(box):
                local = tuple(a + i - o for a, i, o in zip(at, point, box.offset, strict=True))
                assert local not in held
                held[local] = sum(i * math.prod(shape[dim + 1 :]) for dim, i in enumerate(point))
        found = {
            tuple(index): int(expected[tuple(index)])
            for index in np.argwhere(expected != oracle.HOLE).tolist()
        }
        assert held == found
    assert layout.local_shape(99, shape) is None
    assert layout.local_boxes(99, shape) == ()
    assert layout.position(99) is None


@given(shapes_with_layouts())
def test_layouts_are_values(drawn):
    _, layout = drawn
    for other in (made_again(layout), pickle.loads(pickle.dumps(layout))):
        assert other == layout
        assert hash(other) == hash(layout)
    assert layout.shifted(7).shifted(-7) == layout
    assert layout.shifted(7).ranks == tuple(rank + 7 for rank in layout.ranks)


@given(problems())
def test_specs_are_values(problem):
    for side in problem.sides:
        for spec in side:
            for other in (made_again(spec), pickle.loads(pickle.dumps(spec))):
                assert other == spec
                assert hash(other) == hash(spec)


@given(problems())
def test_specs_survive_the_wire(problem):
    for side in problem.sides:
        encoded = encode_specs(side)
        decoded = decode_specs(encoded)
        assert decoded == list(side)
        assert encode_specs(decoded) == encoded
        merged = merge_specs("source", [encoded, encoded])
        assert merged == merge_specs("source", [encoded])
        for before, after in zip(side, merged, strict=True):
            ranks = before.layout.ranks
            assert set(after.layout.ranks) == set(ranks)
            for rank in ranks:
                held = before.layout.local_boxes(rank, before.shape)
                assert after.layout.local_boxes(rank, after.shape) == held
        shifted = shift_specs(decoded, 5)
        assert shifted == [spec.shifted(5) for spec in side]


@given(st.integers(0, 200), st.integers(1, 12), st.sampled_from(("chunk", "balanced")))
def test_every_division_is_a_partition_in_order(length: int, parts: int, division: Division):
    runs = divide(length, parts, division)
    assert len(runs) == parts
    assert [i for a, b in runs for i in range(a, b)] == list(range(length))
    sizes = [b - a for a, b in runs]
    if division == "balanced":
        assert max(sizes) - min(sizes) <= 1
    else:
        assert max(sizes) == -(-length // parts)
    assert sizes == sorted(sizes, reverse=True)
