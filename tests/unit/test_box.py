"""Boxes; what holds for all of them is in property/test_value_laws.py."""

from __future__ import annotations

import numpy as np
import pytest

from reshard import Box, LayoutError


def test_a_box_of_no_dims_is_one_element():
    box = Box((), ())
    assert (box.ndim, box.num_elements, box.is_empty, box.stop) == (0, 1, False, ())
    assert box.intersect(Box((), ())) == box
    assert box.subtract(box) == []
    assert str(box) == "[]"


def test_an_extent_of_zero_makes_it_empty():
    box = Box((4, 2), (0, 3))
    assert (box.num_elements, box.is_empty, box.stop) == (0, True, (4, 5))
    assert Box((0, 0), (1, 1)).contains(box)
    assert box.subtract(Box((9, 9), (1, 1))) == []


def test_lists_become_tuples():
    assert Box([1, 2], [3, 4]) == Box((1, 2), (3, 4))
    assert hash(Box([1], [3])) == hash(Box((1,), (3,)))


@pytest.mark.parametrize(
    ("offset", "shape"),
    [
        (np.array([1, 2]), np.array([3, 4])),
        ((np.int64(1), 2), (3, np.uint8(4))),
        ((True, 2), [3, np.int32(4)]),
    ],
)
def test_whole_numbers_of_any_kind_become_plain_ones(offset, shape):
    box = Box(offset, shape)
    assert repr(box) == repr(Box((1, 2), (3, 4)))
    assert {*map(type, box.offset + box.shape)} == {int}


def test_touching_boxes_have_nothing_in_common():
    assert Box((0,), (4,)).intersect(Box((4,), (4,))) is None


def test_subtracting_the_middle_leaves_a_frame():
    rest = Box((0, 0), (5, 5)).subtract(Box((1, 2), (2, 2)))
    assert sorted(map(str, rest)) == ["[0:1, 0:5]", "[1:3, 0:2]", "[1:3, 4:5]", "[3:5, 0:5]"]


def test_repr_makes_the_same_box():
    assert repr(Box((3, 1), (5, 2))) == "Box(offset=(3, 1), shape=(5, 2))"
    assert eval(repr(Box((3, 1), (5, 2)))) == Box((3, 1), (5, 2))


@pytest.mark.parametrize(
    ("offset", "shape", "message"),
    [
        ((0, 0), (1,), r"offset \(0, 0\) has 2 dims, shape \(1,\) has 1. Give one number per dim"),
        ((-1,), (1,), r"offset \(-1,\), shape \(1,\): negative number"),
        ((0,), (-1,), r"shape \(-1,\): negative number"),
        (3, (1,), r"box offset 3, shape \(1,\): give one whole number per dim"),
        (("a",), (1,), r"offset \('a',\), shape \(1,\): give one whole number"),
        ((0.0,), (1,), r"offset \(0.0,\), shape \(1,\): give one whole number"),
        ((0,), (np.float32(1),), "give one whole number per dim"),
        ((0, 0), (1, "4"), "give one whole number per dim"),
        ((np.int64(-1),), (1,), r"offset \(-1,\), shape \(1,\): negative number"),
    ],
)
def test_what_is_no_box_is_refused(offset, shape, message):
    with pytest.raises(LayoutError, match=message):
        Box(offset, shape)


def test_boxes_do_not_change():
    with pytest.raises(AttributeError):
        Box((0,), (1,)).offset = (1,)
