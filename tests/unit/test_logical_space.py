"""The space that two forms share, and the pieces that a rank holds in it."""

from __future__ import annotations

import pytest

from reshard import Form, Layout, Mesh, PlanError, Shard
from reshard.logical_space import (
    LogicalDigit,
    LogicalRow,
    Piece,
    Side,
    copy_numbers,
    make_logical_space,
    pieces_of_rank,
)


def space(src, src_shape, dst, dst_shape):
    return make_logical_space(Form(*src).resolve(src_shape), Form(*dst).resolve(dst_shape))


def test_equal_forms_keep_their_dims():
    shared = space(["a b -> a b"], (4, 6), ["x y -> x y"], (4, 6))
    assert (shared.shape, shared.names, shared.num_elements) == ((4, 6), ("a", "b"), 24)
    assert shared.index_strides == (6, 1)


def test_factors_of_both_sides_are_refined():
    """12 = 2 * 6 at the source, 4 * 3 at the destination: 2 * 2 * 3."""
    shared = space(["a b -> (a b)"], (2, 6), ["x y -> (x y)"], (4, 3))
    assert shared.shape == (2, 2, 3)
    assert shared.canonical_dims == ((0, 1, 2),)
    assert [row.dims for row in shared.src_rows] == [(0,), (1, 2)]
    assert [row.dims for row in shared.dst_rows] == [(0, 1), (2,)]


def test_factors_of_size_one_need_no_dim():
    shared = space(["a one b -> (a one b)"], (2, 1, 3), ["n -> n"], (6,))
    assert shared.shape == (2, 3)
    assert shared.src_rows[1] == LogicalRow(0, ())


def test_empty_tensors_are_not_cut():
    shared = space(["a b -> (a b)"], (0, 6), ["n -> n"], (0,))
    assert (shared.shape, shared.num_elements) == ((0,), 0)


def test_canonical_shapes_must_agree():
    with pytest.raises(
        PlanError, match=r"source has canonical shape \(4, 6\), destination \(6, 4\)"
    ):
        space(["a b -> a b"], (4, 6), ["a b -> a b"], (6, 4))


def test_factors_without_a_common_refinement_are_refused():
    with pytest.raises(
        PlanError, match=r"dim 0 is cut into factors \[4, 3\].*\[6, 2\].*same factors"
    ):
        space(["a b -> (a b)"], (4, 3), ["a b -> (a b)"], (6, 2))


def row(start, *digits):
    return LogicalRow(start, tuple(LogicalDigit(*digit) for digit in digits))


def test_a_range_of_a_merged_dim_is_at_most_2m_minus_1_boxes():
    merged = row(0, (0, 3, 0, 3), (1, 4, 0, 4), (2, 5, 0, 5))
    assert merged.strides == (20, 5, 1)
    assert [bounds for bounds, _ in merged.preimage(7, 53)] == [
        ((0, 1), (1, 2), (2, 5)),
        ((0, 1), (2, 4), (0, 5)),
        ((1, 2), (0, 4), (0, 5)),
        ((2, 3), (0, 2), (0, 5)),
        ((2, 3), (2, 3), (0, 3)),
    ]


@pytest.mark.parametrize(("low", "high"), [(0, 60), (0, 1), (59, 60), (7, 53), (19, 21), (5, 5)])
def test_the_boxes_of_a_range_hold_each_of_its_numbers_once(low, high):
    merged = row(0, (0, 3, 0, 3), (1, 4, 0, 4), (2, 5, 0, 5))
    found = [
        20 * a + 5 * b + c
        for (x, y, z), constant in merged.preimage(low, high)
        for a in range(*x)
        for b in range(*y)
        for c in range(*z)
        if constant == 0
    ]
    assert sorted(found) == list(range(low, high))


def test_a_fixed_digit_gives_one_constant_and_a_repeat_several():
    fixed = row(2, (0, 3, 0, 3), (-1, 4, 1, 2))
    assert fixed.preimage(0, 14) == [(((0, 3),), 3)]
    repeated = row(0, (-1, 2, 0, 2), (0, 3, 0, 3))
    assert repeated.preimage(0, 6) == [(((0, 3),), 0), (((0, 3),), 3)]


def test_stored_indices_outside_the_digits_hold_nothing():
    assert row(4, (0, 3, 0, 3)).preimage(0, 4) == []
    assert row(4, (0, 3, 0, 3)).preimage(7, 9) == []
    assert row(4, (0, 3, 0, 3)).preimage(5, 99) == [(((1, 3),), 4)]


def test_pieces_say_where_their_elements_lie():
    shared = space(["a b -> b a"], (4, 6), ["x y -> x y"], (6, 4))
    src = Side((4, 6), Layout(Mesh.of(x=2), (Shard(0),)), shared.src_rows)
    assert pieces_of_rank(src, 2, 1) == [Piece((0, 2), (6, 4), (-2, 0))]
    assert pieces_of_rank(src, 2, 7) == []
    assert Piece((0, 2), (6, 4), (-2, 0)).num_elements == 12


def pieces(*bounds):
    return [Piece((a,), (b,), (0,)) for a, b in bounds]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([(0, 4), (4, 8)], [0, 0]),
        ([(0, 4), (0, 4), (0, 4)], [0, 1, 2]),
        ([(0, 4), (2, 6), (5, 8)], [0, 1, 0]),
        ([(0, 4), (0, 2), (2, 4), (0, 4)], [0, 1, 1, 2]),
        ([], []),
    ],
)
def test_pieces_with_common_elements_never_share_a_number(bounds, expected):
    assert copy_numbers(pieces(*bounds)) == expected
