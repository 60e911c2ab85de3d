"""Stripes: both ends come to the same shares, every index is sent once, holders send alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.holders import MIN_STRIPE_BYTES, Striping, make_striping, rotation_of_box


def all_shares(striping: Striping) -> list[tuple[int, int, int, int]]:
    """Returns (holder, copy, start, stop) as the copies see them."""
    return sorted(
        (share.peer, copy, share.start, share.stop)
        for copy in range(striping.num_copies)
        for share in striping.shares_of_copy(copy)
    )


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3000)), max_size=3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from((1, 2, 8)),
    st.integers(0, 20),
)
def test_both_ends_agree_and_every_copy_is_whole(bounds, copies, holders, itemsize, rotation):
    start, stop = [a for a, _ in bounds], [a + n for a, n in bounds]
    striping = make_striping(start, stop, copies, holders, itemsize, rotation)
    by_copy = all_shares(striping)
    by_holder = sorted(
        (holder, share.peer, share.start, share.stop)
        for holder in range(holders)
        for share in striping.shares_of_holder(holder)
    )
    assert by_copy == by_holder
    low = start[striping.dim] if striping.dim >= 0 else 0
    for copy in range(copies):
        own = sorted((a, b) for _, other, a, b in by_copy if other == copy)
        assert [i for a, b in own for i in range(a, b)] == list(range(low, low + striping.length))
    sent = [0] * holders
    for holder, _, a, b in by_copy:
        sent[holder] += b - a
    busy = [n for n in sent if n]
    assert len(busy) == striping.num_segments
    assert max(busy) - min(busy) <= 1


def test_large_boxes_use_every_holder():
    striping = make_striping((0, 0), (4096, 4096), 1, 8, 2, 5)
    assert (striping.dim, striping.num_segments, striping.rotation) == (0, 8, 0)
    assert [share.stop - share.start for share in striping.shares_of_copy(0)] == [512] * 8


def test_small_boxes_are_not_cut_and_turn():
    chosen = [
        make_striping((0,), (100,), 1, 4, 2, rotation).shares_of_copy(0)[0].peer
        for rotation in range(6)
    ]
    assert chosen == [0, 1, 2, 3, 0, 1]


def test_a_segment_is_never_below_the_limit():
    elements = 3 * MIN_STRIPE_BYTES
    assert make_striping((0,), (elements,), 1, 8, 1, 0).num_segments == 3


def test_copies_together_are_one_line():
    """Two copies and three holders: each holder sends two thirds of a copy."""
    striping = make_striping((0,), (3 << 20,), 2, 3, 1, 0)
    third = 1 << 20
    assert [share[1:] for share in striping.shares_of_holder(0)] == [(0, 2 * third)]
    assert [share for share in striping.shares_of_holder(1)] == [
        (0, 2 * third, 3 * third),
        (1, 0, third),
    ]
    assert [share[1:] for share in striping.shares_of_holder(2)] == [(third, 3 * third)]


def test_the_longest_dim_is_cut_and_the_first_of_equals():
    assert make_striping((0, 0), (10, 20), 1, 2, 1 << 16, 0).dim == 1
    assert make_striping((0, 0), (20, 20), 1, 2, 1 << 16, 0).dim == 0


def test_a_single_element_has_no_dim_to_cut():
    striping = make_striping((3,), (4,), 2, 3, 8, 1)
    assert striping.dim == -1
    box = ((3,), (4,))
    assert striping.narrowed(box, 0, 1) == box


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [((0, 0), (4, 4), 0), ((4, 0), (8, 4), 1), ((4, 8), (8, 12), 3), ((), (), 0)],
)
def test_neighbours_turn_by_one(start, stop, expected):
    assert rotation_of_box(start, stop) == expected
