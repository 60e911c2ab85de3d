"""Chunks and rounds under a staging budget."""

from __future__ import annotations

import pytest

from reshard import PlanError
from reshard.schedule import SLOTS_PER_RING, Schedule, chunk_bytes_for, make_schedule


@pytest.mark.parametrize("num_rings", [0, 1, 7, 8, 64, 200])
@pytest.mark.parametrize("staging_bytes", [4 << 20, 64 << 20, 1 << 30])
def test_all_rings_fit_the_budget(num_rings, staging_bytes):
    chunk = chunk_bytes_for(num_rings, staging_bytes)
    # One more slot, because a process may copy between its own ranks through a buffer.
    assert (num_rings * SLOTS_PER_RING + 1) * chunk <= staging_bytes
    assert chunk % 4096 == 0
    assert chunk <= 256 << 10


def test_a_chunk_is_as_large_as_the_budget_allows():
    assert chunk_bytes_for(8, 64 << 20) == 256 << 10
    assert chunk_bytes_for(64, 16 << 20) == 60 << 10


def test_a_budget_below_a_page_per_slot_is_refused_with_the_least_that_works():
    with pytest.raises(
        PlanError,
        match=r"staging_bytes=69631, the smallest that any process gave, is too small for 4 rings "
        r"of 4 slots and one slot for copies inside: give at least 69632",
    ):
        chunk_bytes_for(4, 69631)
    assert chunk_bytes_for(4, 69632) == 4096


def test_rounds_are_those_of_the_longest_stream():
    chunk = 256 << 10
    streams = {(0, 2): 3 * chunk + 1, (1, 2): 10}
    assert make_schedule(streams, {0: 1, 1: 1, 2: 2}, 64 << 20) == Schedule(chunk, 4, 9 * chunk)


def test_nothing_to_move_needs_no_round():
    assert make_schedule({}, {}, 64 << 20) == Schedule(256 << 10, 0, 256 << 10)
