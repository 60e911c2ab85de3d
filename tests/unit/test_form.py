"""Forms: patterns, what they resolve to, and what does not parse or fit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers import oracle

from reshard import Form, LayoutError, Part
from reshard.form import Digit, Row

Q_PROJ = Form("embed heads dim -> (heads dim) embed")


def test_a_permutation_with_a_merge():
    form = Q_PROJ.resolve((8, 4, 6))
    assert form.canonical_shape == (24, 8)
    assert form.rows == (
        Row(0, (Digit("factor", "embed", 8, 0),)),
        Row(0, (Digit("factor", "heads", 4, 0),)),
        Row(0, (Digit("factor", "dim", 6, 0),)),
    )


def test_a_split_needs_the_size_of_one_factor():
    form = Form("(heads dim) embed -> embed heads dim", sizes={"dim": 6})
    assert form.resolve((24, 8)).canonical_shape == (8, 4, 6)


def test_a_slice_of_a_stack_is_a_constant():
    form = Form("embed layers ffn -> ffn embed", index={"layers": 3}).resolve((8, 5, 6))
    assert form.canonical_shape == (6, 8)
    assert form.rows[1] == Row(0, (Digit("index", "layers", 5, 3),))


def test_a_repeated_factor_is_not_in_the_canonical_tensor():
    form = Form("(heads r dim) -> (heads dim)", sizes={"r": 2, "dim": 3}, repeat=("r",))
    resolved = form.resolve((12,))
    assert resolved.canonical_shape == (6,)
    assert [digit.kind for digit in resolved.rows[0].digits] == ["factor", "repeat", "factor"]


def test_a_segment_begins_where_it_says():
    form = Form("rows embed -> rows embed", sizes={"rows": 4}, start={0: 2}).resolve((9, 3))
    assert form.rows[0].start == 2
    assert form.rows[0].extent == 4
    assert form.canonical_shape == (4, 3)


def test_ones_and_empty_groups_are_dims_of_size_one():
    assert Form("1 a () -> a 1").resolve((1, 5, 1)).canonical_shape == (5, 1)


def test_an_identity_of_no_dims():
    assert Form.identity(0).resolve(()).canonical_shape == ()
    assert Form.identity(2) == Form("d0 d1 -> d0 d1")


# (stored shape, form, what einops or NumPy would do from canonical to stored)
ROWS = {
    "transposed": ((5, 7), Form("a b -> b a"), lambda c: c.T),
    "tunix q_proj": ((8, 4, 6), Q_PROJ, lambda c: c.reshape(4, 6, 8).transpose(2, 0, 1)),
    "interleaved": (
        (6, 2),
        Form("(ffn two) e -> ffn e", sizes={"two": 2}, index={"two": 1}),
        lambda c: np.stack([np.full_like(c, -1), c], 1).reshape(6, 2),
    ),
    "rope lanes": (
        (12,),
        Form("(heads pair half) -> (heads half pair)", sizes={"heads": 2, "pair": 3}),
        lambda c: c.reshape(2, 2, 3).transpose(0, 2, 1).reshape(12),
    ),
    "repeated": (
        (12,),
        Form("(heads r dim) -> (heads dim)", sizes={"heads": 2, "r": 2}, repeat=("r",)),
        lambda c: np.repeat(c.reshape(2, 1, 3), 2, 1).reshape(12),
    ),
    "padded": (
        (6,),
        Form("a -> a", sizes={"a": 3}, start={0: 2}),
        lambda c: np.array([-1, -1, *c, -1]),
    ),
    "block swizzle": (
        (2, 2, 2, 2),
        Form("ra rb ca cb -> (ra ca) (rb cb)"),
        lambda c: c.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_form_says_which_canonical_element_is_where(name):
    shape, form, arrange = ROWS[name]
    part = Part("w", form)
    canonical = np.arange(np.prod(oracle.canonical_shape(shape, part)))
    canonical = canonical.reshape(oracle.canonical_shape(shape, part))
    assert form.resolve(shape).canonical_shape == canonical.shape
    found = oracle.stored_indices_of(shape, part)
    np.testing.assert_array_equal(found, arrange(canonical))


def test_mappings_and_pairs_are_the_same_and_order_does_not_matter():
    one = Form("(a b) -> a b", sizes={"a": 2, "b": 3})
    other = Form("(a b) -> a b", sizes=(("b", 3), ("a", 2)))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (
            Form("(a i r) -> a", {"i": np.int64(2), "r": np.int8(2)}, {"i": np.int64(1)}, ["r"]),
            Form("(a i r) -> a", {"i": 2, "r": 2}, {"i": 1}, ("r",)),
        ),
        (
            Form("a -> a", {np.str_("a"): 3}, start={np.int64(0): np.int64(2)}),
            Form("a -> a", {"a": 3}, start={0: 2}),
        ),
        (
            Form(np.str_("a r -> a"), repeat=np.array(["r"])),
            Form("a r -> a", repeat=("r",)),
        ),
        (Form("a -> a", start=np.array([[0, 2]])), Form("a -> a", start={0: 2})),
    ],
)
def test_names_and_numbers_of_any_kind_become_plain_ones(given, plain):
    assert given == plain
    assert repr(given) == repr(plain)


@pytest.mark.parametrize(
    "form",
    [
        Q_PROJ,
        Form("(a i r) -> a", {"i": 2, "r": 2}, {"i": 1}, ("r",)),
        Form("a -> a", {"a": 3}, start={0: 2}),
    ],
)
def test_values(form):
    assert eval(repr(form)) == form
    assert pickle.loads(pickle.dumps(form)) == form
    assert hash(eval(repr(form))) == hash(form)
    assert str(form) == form.pattern


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        ("a b", {}, "needs exactly one '->', as in"),
        ("a -> a -> a", {}, "needs exactly one '->'"),
        ("a -> (a", {}, "a group is not closed"),
        ("a) -> a", {}, r"unmatched '\)'"),
        ("((a b)) -> a b", {}, r"unmatched '\('"),
        ("a% -> a", {}, "cannot read '%'"),
        ("a 2 -> a", {}, "cannot read ' 2'"),
        ("a a -> a", {}, "a name comes twice on one side"),
        ("a b -> a", {}, r"left alone are \['b'\].*Each left-only name needs an index or a repeat"),
        ("a -> a b", {}, r"right alone are \['b'\].*nothing may be on the right alone"),
        ("a -> a", {"index": {"b": 0}}, r"index and repeat name \['b'\]"),
        ("a -> a", {"sizes": {"b": 2}}, r"sizes of unknown names \['b'\]"),
        ("(a b) -> a b", {"sizes": {"a": -2}}, "has a negative number"),
        ("a -> a", {"start": {1: 1}}, "must name stored dims 0 to 0"),
        ("a -> a", {"start": {0: -1}}, "must name stored dims 0 to 0"),
        (3, {}, r"Form\(3\): its pattern is no text"),
        ("a -> a", {"sizes": 3}, "sizes 3, index.*are mappings"),
        ("a -> a", {"sizes": {"a": "2"}}, "are mappings to whole numbers"),
        ("a -> a", {"sizes": {"a": 2.0}}, "are mappings to whole numbers"),
        ("a i -> a", {"index": {"i": 1.0}}, "are mappings to whole numbers"),
        ("a -> a", {"start": {0: 2.0}}, "are mappings to whole numbers"),
        ("a -> a", {"start": {0.0: 2}}, r"start is one of dims: \{0: 128\}"),
        ("a -> a", {"start": {"a": 2}}, r"start is one of dims: \{0: 128\}"),
        ("a -> a", {"sizes": {0: 2}}, "are mappings to whole numbers"),
        ("a r -> a", {"repeat": "r"}, "repeat='r' is one text"),
        ("a r -> a", {"index": {"r": 0}, "repeat": ("r",)}, r"\['r'\] is in index and in repeat"),
    ],
)
def test_what_is_no_form_is_refused(pattern, options, message):
    with pytest.raises(LayoutError, match=message):
        Form(pattern, **options)


@pytest.mark.parametrize(
    ("form", "shape", "message"),
    [
        (Q_PROJ, (8, 4), r"has 3 stored dims, the tensor has shape \(8, 4\)"),
        (Form("(a b) -> a b"), (6,), r"cannot tell the sizes of \['a', 'b'\] from a dim of 6"),
        (Form("(a b) -> a b", {"a": 4}), (6,), r"\['b'\] from a dim of 6 with 4 known.*Give sizes"),
        (Form("a -> a", {"a": 7}), (6,), r"dim 0 needs 0 \+ 7 elements but.*\(6,\) has 6"),
        (Form("a -> a", {"a": 4}, start={0: 3}), (6,), r"dim 0 needs 3 \+ 4 elements"),
        (Form("a i -> a", index={"i": 2}), (6, 2), "index i=2 is outside its 2 slices"),
        (Form("a i -> a", index={"i": -1}), (6, 2), "index i=-1 is outside its 2 slices"),
    ],
)
def test_what_does_not_fit_the_shape_is_refused(form, shape, message):
    with pytest.raises(LayoutError, match=message):
        form.resolve(shape)
