"""Groups of ranks, and the busiest of them."""

from __future__ import annotations

from reshard import Box, BoxLayout, Layout, Mesh, Shard, TensorSpec, make_plan
from reshard.imbalance import Imbalance, imbalances


def rows(name, counts, first=0):
    """Returns a tensor whose ranks hold these numbers of rows of 256 bytes."""
    entries, start = {}, 0
    for rank, count in enumerate(counts, first):
        entries[rank] = Box((start, 0), (count, 64))
        start += count
    return TensorSpec(name, (start, 64), "float32", BoxLayout(entries))


def test_even_ranks_are_balanced():
    assert imbalances(make_plan([rows("w", [4, 4])], [rows("w", [2, 6][::-1], 2)])) != []
    assert imbalances(make_plan([rows("w", [4, 4])], [rows("w", [4, 4], 2)])) == []


def test_the_busiest_of_each_side():
    plan = make_plan([rows("w", [6, 2])], [rows("w", [3, 5], 2)])
    assert imbalances(plan) == [
        Imbalance("source", 0, 6 * 256, 1.5, 2, True),
        Imbalance("destination", 3, 5 * 256, 1.25, 2, True),
    ]


def test_ranks_of_other_tensors_are_no_measure():
    """Two pipeline stages of unequal size, each balanced in itself."""
    src = [rows("v", [8, 8]), rows("w", [1, 1], 2)]
    dst = [rows("v", [8, 8], 4), rows("w", [1, 1], 4)]
    assert imbalances(make_plan(src, dst)) == []


def test_a_rank_that_sends_more_than_it_holds_is_not_of_the_layout():
    """Rank 1 alone is asked: the destination wants only what rank 0 has already."""
    src = TensorSpec("w", (8, 64), "float32", Layout(Mesh.of(x=2), (Shard(0),)))
    dst = TensorSpec("w", (8, 64), "float32", Layout.replicated(Mesh((("x"),), (1,), (0,))))
    (found,) = imbalances(make_plan([src], [dst]))
    assert (found.side, found.rank, found.is_of_layout) == ("source", 1, False)
