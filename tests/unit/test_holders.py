"""Stripes: both ends come to the same shares, every index is sent once, holders send alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.holders import (
    MIN_STRIPE_BYTES,
    Striping,
    make_striping,
    period_of,
    rotation_of_box,
    turn_of,
)


def all_shares(striping: Striping) -> list[tuple[int, int, int, int]]:
    """Returns (holder, copy, start, stop) as the copies see them."""
    return sorted(
        (share.peer, copy, share.start, share.stop)
        for copy in range(striping.num_copies)
        for share in striping.shares_of_copy(copy)
    )


SHAPES = st.lists(st.integers(1, 3000), max_size=3)


@given(
    SHAPES,
    st.integers(1, 9),
    st.integers(1, 20),
    st.sampled_from((1, 2, 8)),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_both_ends_agree_and_every_copy_is_whole(shape, copies, holders, itemsize, turn, rotation):
    striping = make_striping(shape, copies, holders, itemsize).based(turn).turned(rotation)
    by_copy = all_shares(striping)
    by_holder = sorted(
        (holder, share.peer, share.start, share.stop)
        for holder in range(holders)
        for share in striping.shares_of_holder(holder)
    )
    assert by_copy == by_holder
    for copy in range(copies):
        own = sorted((a, b) for _, other, a, b in by_copy if other == copy)
        assert [i for a, b in own for i in range(a, b)] == list(range(striping.length))
    sent = [0] * holders
    for holder, _, a, b in by_copy:
        sent[holder] += b - a
    busy = [n for n in sent if n]
    assert len(busy) == striping.num_segments
    assert max(busy) - min(busy) <= 1


@given(SHAPES, st.integers(1, 9), st.integers(1, 20), st.integers(0, 9), st.integers(0, 40))
def test_the_period_is_after_how_many_rotations_shares_repeat(
    shape, copies, holders, turn, rotation
):
    striping = make_striping(shape, copies, holders, 2).based(turn)
    again = striping.turned(rotation + striping.period)
    assert all_shares(again) == all_shares(striping.turned(rotation))
    within = [striping.turned(each) for each in range(striping.period)]
    assert len({each.rotation for each in within}) == striping.period


def test_large_boxes_use_every_holder():
    striping = make_striping((4096, 4096), 1, 8, 2)
    assert (striping.dim, striping.num_segments, striping.period) == (0, 8, 1)
    assert [share.stop - share.start for share in striping.shares_of_copy(0)] == [512] * 8
    assert striping.based(5) is striping.turned(5) is striping


def test_small_boxes_are_not_cut_and_turn():
    striping = make_striping((100,), 1, 4, 2)
    by_tensor = [striping.turned(rotation).shares_of_copy(0)[0].peer for rotation in range(6)]
    by_box = [striping.based(turn).shares_of_copy(0)[0].peer for turn in range(6)]
    assert by_tensor == by_box == [0, 1, 2, 3, 0, 1]


def test_many_holders_take_turns_of_eight():
    """Else tensors of one geometry would have as many different plans as there are holders."""
    striping = make_striping((100,), 1, 32, 2)
    chosen = [striping.turned(rotation).shares_of_copy(0)[0].peer for rotation in range(9)]
    assert chosen == [0, 4, 8, 12, 16, 20, 24, 28, 0]
    assert [striping.based(turn).shares_of_copy(0)[0].peer for turn in (1, 31, 32)] == [1, 31, 0]


@pytest.mark.parametrize("num_ranks", [1, 2, 7, 8, 9, 15, 16, 100])
def test_turns_of_one_period_are_different_ranks_and_then_repeat(num_ranks):
    period = period_of(num_ranks)
    turns = [turn_of(rotation, num_ranks) % num_ranks for rotation in range(2 * period)]
    assert len(set(turns[:period])) == period
    assert turns[:period] == turns[period:]


def test_a_segment_is_never_below_the_limit():
    elements = 3 * MIN_STRIPE_BYTES
    assert make_striping((elements,), 1, 8, 1).num_segments == 3
    assert make_striping((elements - 1,), 1, 8, 1).num_segments == 2


def test_copies_together_are_one_line():
    """Two copies and three holders: each holder sends two thirds of a copy."""
    striping = make_striping((3 << 20,), 2, 3, 1)
    third = 1 << 20
    assert [share[1:] for share in striping.shares_of_holder(0)] == [(0, 2 * third)]
    assert [share for share in striping.shares_of_holder(1)] == [
        (0, 2 * third, 3 * third),
        (1, 0, third),
    ]
    assert [share[1:] for share in striping.shares_of_holder(2)] == [(third, 3 * third)]


def test_the_longest_dim_is_cut_and_the_first_of_equals():
    assert make_striping((10, 20), 1, 2, 1 << 16).dim == 1
    assert make_striping((20, 20), 1, 2, 1 << 16).dim == 0


def test_a_cut_counts_from_the_start_of_the_box():
    striping = make_striping((10, 20), 1, 2, 1 << 16)
    box = ((3, 7), (13, 27))
    assert striping.cut(box, 0, 20) == box
    assert striping.cut(box, 4, 9) == ((3, 11), (13, 16))


@pytest.mark.parametrize("box", [((3,), (4,)), ((), ())])
def test_a_single_element_has_no_dim_to_cut(box):
    shape = tuple(b - a for a, b in zip(*box, strict=True))
    striping = make_striping(shape, 2, 3, 8)
    assert (striping.dim, striping.length) == (-1, 1)
    assert striping.cut(box, 0, 1) == box


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [((0, 0), (4, 4), 0), ((4, 0), (8, 4), 1), ((4, 8), (8, 12), 3), ((), (), 0)],
)
def test_neighbours_turn_by_one(start, stop, expected):
    assert rotation_of_box(start, stop) == expected
