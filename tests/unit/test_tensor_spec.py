"""Specs of one stored tensor: layout, parts and padding fit each other, or the name is told."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

import reshard
from reshard import Box, BoxLayout, DType, Form, Layout, LayoutError, Mesh, Part, Shard, TensorSpec

ROWS = Layout(Mesh.of(x=2), (Shard(0),))


def segment(name, rows, start):
    return Part(name, Form("rows e -> rows e", {"rows": rows}, start={0: start}))


def slice_of(name, count, index):
    return Part(name, Form("(f i) e -> f e", {"i": count}, {"i": index}))


def test_a_tensor_is_its_own_canonical_tensor_unless_it_says_otherwise():
    spec = TensorSpec("w", [4, 3], "bfloat16", ROWS)
    assert (spec.shape, spec.dtype, spec.parts) == ((4, 3), DType.BFLOAT16, (Part("w"),))
    assert spec.parts[0].names == ("w",)
    assert spec.uncovered() == []


def test_values():
    spec = TensorSpec("w", (8, 3), "int8", ROWS, (segment("a", 5, 0), segment("b", 3, 5)))
    for other in (eval(repr(spec), vars(reshard)), pickle.loads(pickle.dumps(spec))):
        assert other == spec
        assert hash(other) == hash(spec)
    assert spec.shifted(4) == TensorSpec("w", (8, 3), "int8", ROWS.shifted(4), spec.parts)
    assert str(spec) == "w int8[8, 3] (x:S(0))@(x=2)"


def test_aliases_are_further_names():
    assert Part("embed", None, ["head"]).names == ("embed", "head")


def test_what_no_part_covers_is_named():
    with pytest.raises(
        LayoutError, match=r"w: no part covers \[5:6, 0:3\].*missing parts, or declare"
    ):
        TensorSpec("w", (8, 3), "int8", ROWS, (segment("a", 5, 0), segment("b", 2, 6)))


@pytest.mark.parametrize("padding", ["keep", "zero"])
def test_declared_padding_may_be_uncovered(padding):
    spec = TensorSpec("w", (8, 3), "int8", ROWS, (segment("a", 5, 1),), padding)
    assert spec.uncovered() == [Box((0, 0), (1, 3)), Box((6, 0), (2, 3))]


def test_all_slices_of_a_stack_cover_it():
    parts = tuple(slice_of(f"e{i}", 3, i) for i in (2, 0, 1))
    assert TensorSpec("w", (12, 2), "int8", ROWS, parts).uncovered() == []


def test_a_stack_with_a_slice_missing_may_be_kept_but_not_zeroed():
    parts = (slice_of("a", 3, 0), slice_of("b", 3, 2))
    with pytest.raises(LayoutError, match=r"no part covers \[0:12, 0:2\]"):
        TensorSpec("w", (12, 2), "int8", ROWS, parts)
    with pytest.raises(LayoutError, match="padding='zero' would clear the others"):
        TensorSpec("w", (12, 2), "int8", ROWS, parts, "zero")
    assert TensorSpec("w", (12, 2), "int8", ROWS, parts, "keep")


def test_parts_that_overlap_are_refused():
    with pytest.raises(
        LayoutError, match=r"w: parts cover stored elements \[3:7, 0:3\] and \[0:5, 0:3\] twice"
    ):
        TensorSpec("w", (8, 3), "int8", ROWS, (segment("a", 5, 0), segment("b", 4, 3)), "keep")


def test_one_slice_given_twice_is_refused():
    parts = (slice_of("a", 2, 1), slice_of("b", 2, 1))
    with pytest.raises(LayoutError, match=r"w: two parts are slice \(1,\) of the same stack"):
        TensorSpec("w", (12, 2), "int8", ROWS, parts, "keep")


def test_empty_parts_are_not_doubles():
    parts = (segment("a", 0, 0), segment("b", 0, 0), segment("c", 4, 0))
    assert TensorSpec("w", (4, 3), "int8", ROWS, parts).uncovered() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (-1, 3)}, r"w: shape \(-1, 3\) has a negative number"),
        ({"layout": Layout(Mesh.of(x=2), (Shard(2),))}, r"w: S\(2\) cuts dim 2"),
        ({"layout": BoxLayout({0: Box((0, 0), (9, 9))})}, r"w: rank 0: box \[0:9, 0:9\]"),
        ({"parts": (Part("w", Form("a -> a")),)}, "w: form 'a -> a' has 1 stored dims"),
    ],
)
def test_the_tensor_is_named_in_every_message(changes, message):
    with pytest.raises(LayoutError, match=message):
        TensorSpec(**{"name": "w", "shape": (4, 3), "dtype": "int8", "layout": ROWS, **changes})


def test_padding_is_one_of_three():
    with pytest.raises(LayoutError, match="padding"):
        TensorSpec("w", (4, 3), "int8", ROWS, (), "fill")


def test_one_part_or_the_form_of_it_may_be_given_alone():
    form = Form("a b -> b a")
    for given, parts in [
        (Part("v", form), (Part("v", form),)),
        (form, (Part("w", form),)),
        ([Part("v")], (Part("v"),)),
    ]:
        assert TensorSpec("w", (4, 3), "int8", ROWS, given).parts == parts


@pytest.mark.parametrize("given", ["w", ["w"], [Form("a b -> a b")], 5, [Part("w"), None]])
def test_what_is_no_part_is_refused_with_an_example(given):
    with pytest.raises(LayoutError, match=r"w: its parts are .* Give a tuple of reshard.Part, as"):
        TensorSpec("w", (4, 3), "int8", ROWS, given)


@pytest.mark.parametrize(
    "arguments",
    [
        ("w", "a b -> b a"),
        ("w", None, "v"),
        (Part("w"),),
        (0, None),
        ("w", None, 5),
        ("w", None, ("v", 1)),
    ],
)
def test_a_part_is_a_name_a_form_and_names(arguments):
    message = r"Part\(.*give a name, a reshard.Form or None.*Names are texts"
    with pytest.raises(LayoutError, match=message):
        Part(*arguments)


@pytest.mark.parametrize("name", [0, None, b"w", ("a", "w")])
def test_a_name_is_a_text(name):
    with pytest.raises(LayoutError, match=r"tensor name .* is of type .*Names are texts"):
        TensorSpec(name, (4, 3), "int8", ROWS)


def test_what_is_no_layout_is_refused_with_an_example():
    with pytest.raises(LayoutError, match=r"w: its layout is 'x'\. Give a reshard\.Layout, as in"):
        TensorSpec("w", (4, 3), "int8", "x")
    with pytest.raises(LayoutError, match=r"w: its layout is <class"):
        TensorSpec("w", (4, 3), "int8", Layout)


@pytest.mark.parametrize("shape", [4, (4.0, 3), "ab", None])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(LayoutError, match=r"w: its shape is .* Give the number of elements along"):
        TensorSpec("w", shape, "int8", ROWS)


def test_numbers_and_types_of_numpy_become_plain_ones():
    part = Part(np.str_("v"), None, np.array(["u"]))
    spec = TensorSpec(np.str_("w"), np.array([4, 3]), np.float32, ROWS, part, np.str_("keep"))
    assert spec == TensorSpec("w", (4, 3), "float32", ROWS, Part("v", None, ("u",)), "keep")
    assert eval(repr(spec), vars(reshard)) == spec


def test_specs_may_be_made_anew_with_one_thing_changed():
    spec = TensorSpec("w", (8, 3), "int8", ROWS, segment("a", 5, 0), "zero")
    assert dataclasses.replace(spec) == spec
    assert dataclasses.replace(spec, dtype="int16").dtype is DType.INT16
    part = Part("a", Form("a b -> b a"), ("v",))
    assert dataclasses.replace(part, name="b") == Part("b", part.form, ("v",))
