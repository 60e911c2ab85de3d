"""Meshes: names, shapes, ranks in any order."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from reshard import LayoutError, Mesh


def test_the_last_axis_varies_fastest():
    mesh = Mesh.of(fsdp=2, tp=3)
    assert mesh == Mesh(("fsdp", "tp"), (2, 3), (0, 1, 2, 3, 4, 5))
    assert [mesh.coordinate(rank) for rank in (0, 1, 3, 5)] == [(0, 0), (0, 1), (1, 0), (1, 2)]
    assert mesh.strides == (3, 1)
    assert mesh.size == 6


def test_layout_case_b6_ranks_are_in_the_order_that_is_given():
    mesh = Mesh(("a", "b"), (2, 2), (0, 2, 1, 3))
    assert mesh.coordinate(2) == (0, 1)
    assert mesh.coordinate(1) == (1, 0)


def test_any_numbers_are_ranks():
    mesh = Mesh(("a",), (3,), (70, 2, 11))
    assert mesh.position(11) == 2
    assert mesh.position(0) is None
    assert mesh.coordinate(0) is None


def test_a_mesh_without_axes_has_one_rank():
    mesh = Mesh((), ())
    assert (mesh.ranks, mesh.coordinate(0), str(mesh)) == ((0,), (), "()")


def test_names_and_numbers_of_any_kind_become_plain_ones():
    mesh = Mesh(np.array(["a", "b"]), np.array([1, 2]), (np.int64(3), True))
    assert repr(mesh) == repr(Mesh(("a", "b"), (1, 2), (3, 1)))
    assert {*map(type, (*mesh.shape, *mesh.ranks, *mesh.axis_names))} == {int, str}
    assert mesh.position(np.int32(3)) == 0


def test_shifted_keeps_the_order():
    assert Mesh(("a",), (2,), (3, 1)).shifted(10).ranks == (13, 11)


def test_values():
    mesh = Mesh(("a", "b"), (2, 2), (0, 2, 1, 3))
    assert eval(repr(mesh)) == mesh
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert hash(eval(repr(mesh))) == hash(mesh)
    assert mesh != Mesh.of(a=2, b=2)
    assert str(mesh) == "(a=2,b=2)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("a",), (2, 2)), r"names \('a',\) and shape \(2, 2\). Give one size per name"),
        ((("a", "a"), (2, 2)), "repeat a name"),
        ((("a",), (0,)), r"shape \(0,\) needs 0 ranks"),
        ((("a",), (3,), (0, 1)), r"shape \(3,\) needs 3 ranks, got 2: \(0, 1\)"),
        ((("a",), (2,), (1, 1)), r"ranks \(1, 1\) hold a rank twice"),
        ((("a",), (2,), (-1, 0)), r"ranks \(-1, 0\) hold a negative number. Count from 0"),
    ],
)
def test_what_is_no_mesh_is_refused(arguments, message):
    with pytest.raises(LayoutError, match=message):
        Mesh(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (("tp",), 2),
        (("tp",), ("2",)),
        (("tp",), (2.0,)),
        (None, (2,)),
        (("x",), (1,), 3),
        (("x",), (1,), (0.0,)),
        ((1,), (2,)),
        (((),), (2,)),
    ],
)
def test_names_and_whole_numbers_make_a_mesh(arguments):
    with pytest.raises(LayoutError, match=r"Give names and whole numbers, as in Mesh\("):
        Mesh(*arguments)
