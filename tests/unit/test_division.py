"""How a dim is cut: the named rules, against numbers of torch and NumPy."""

from __future__ import annotations

import pytest

from reshard import LayoutError
from reshard.division import check_division, cut_dim, divide


def sizes(runs):
    return [b - a for a, b in runs]


@pytest.mark.parametrize(
    ("length", "parts", "division", "expected"),
    [
        (10, 4, "chunk", [3, 3, 3, 1]),
        (10, 4, "balanced", [3, 3, 2, 2]),
        (12, 4, "even", [3, 3, 3, 3]),
        (5, 4, "chunk", [2, 2, 1, 0]),
        (6, 4, "chunk", [2, 2, 2, 0]),
        (2, 4, "chunk", [1, 1, 0, 0]),
        (2, 4, "balanced", [1, 1, 0, 0]),
        (0, 3, "chunk", [0, 0, 0]),
        (0, 3, "even", [0, 0, 0]),
        (151665, 2, "chunk", [75833, 75832]),
    ],
)
def test_sizes_of_the_parts(length, parts, division, expected):
    assert sizes(divide(length, parts, division)) == expected


def test_empty_parts_lie_at_the_end_of_the_dim():
    assert divide(2, 4, "chunk")[2:] == [(2, 2), (2, 2)]


def test_even_refuses_a_remainder_and_says_what_else_there_is():
    with pytest.raises(
        LayoutError, match=r"10 elements.*4 parts; pad the dim, or.*'chunk'.*'balanced'"
    ):
        divide(10, 4, "even")


def test_an_unknown_rule_is_refused():
    with pytest.raises(
        LayoutError, match=r"'odd' is unknown; use one of \('chunk', 'balanced', 'even'\)"
    ):
        check_division("odd")


def test_layout_case_a4_cuts_work_on_what_earlier_cuts_left():
    """[7, ...] over (2, 2), both axes on dim 0: 4 and 3, then 2 2 2 1."""
    assert cut_dim(7, ((2, 1), (2, 1)), "chunk") == (
        ((0, 2),),
        ((2, 4),),
        ((4, 6),),
        ((6, 7),),
    )


def test_layout_case_a5_fsdp_after_tensor_parallel():
    """torch's `_StridedShard(0, split_factor=2)` then `Shard(0)`, of 5 and of 6 elements."""
    assert cut_dim(5, ((2, 2), (2, 1)), "chunk") == (((0, 2),), ((3, 4),), ((2, 3),), ((4, 5),))
    assert cut_dim(6, ((2, 2), (2, 1)), "chunk") == (((0, 2),), ((3, 5),), ((2, 3),), ((5, 6),))


def test_blocks_give_each_part_its_share_of_every_block():
    assert cut_dim(8, ((2, 2),), "chunk") == (((0, 2), (4, 6)), ((2, 4), (6, 8)))


def test_neighbouring_runs_are_one():
    assert cut_dim(4, ((1, 4),), "chunk") == (((0, 4),),)


def test_no_cut_is_one_run_and_an_empty_dim_is_none():
    assert cut_dim(4, (), "chunk") == (((0, 4),),)
    assert cut_dim(0, ((2, 1),), "chunk") == ((), ())
