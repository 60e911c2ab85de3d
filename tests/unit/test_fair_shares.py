"""How much each holder serves, against a linear program."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import reshard.fair_shares
from reshard.fair_shares import components, fair_shares
from reshard.holders import RING_TURNS


def loads_of(supplies, shares):
    loads = Counter()
    for ranks, nbytes in supplies.items():
        weights = shares.get(ranks, (1,) * len(ranks))
        for rank, weight in zip(ranks, weights, strict=True):
            loads[rank] += nbytes * weight / sum(weights)
    return loads


def least_busiest(supplies):
    """Returns the load of the busiest rank in the best of all divisions."""
    ranks = sorted({rank for group in supplies for rank in group})
    entries = [(number, rank) for number, group in enumerate(supplies) for rank in group]
    per_group = np.zeros((len(supplies), len(entries) + 1))
    per_rank = np.zeros((len(ranks), len(entries) + 1))
    for column, (number, rank) in enumerate(entries):
        per_group[number, column] = 1
        per_rank[ranks.index(rank), column] = 1
    per_rank[:, -1] = -1
    found = linprog(
        [0] * len(entries) + [1],
        A_ub=per_rank,
        b_ub=np.zeros(len(ranks)),
        A_eq=per_group,
        b_eq=list(supplies.values()),
    )
    assert found.success
    return found.fun


def test_ranks_that_hold_the_same_share_evenly():
    assert fair_shares({(0, 1, 2): 300, (0,): 5, (1,): 5, (2,): 5}) == {}
    assert fair_shares({}) == {}


def test_a_rank_with_much_of_its_own_leaves_the_rest_to_others():
    assert fair_shares({(0,): 100, (0, 1): 40}) == {(0, 1): (0, 128)}
    assert fair_shares({(0,): 40, (0, 1): 100}) == {(0, 1): (38, 90)}


def test_a_rank_that_shares_with_everybody_sends_as_much_as_they_do():
    supplies = {(0, i): 1000 for i in range(1, 5)}
    shares = fair_shares(supplies)
    loads = loads_of(supplies, shares)
    assert max(loads.values()) <= 1.02 * 800
    assert max(loads_of(supplies, {}).values()) == 2000


def test_relief_goes_through_ranks_in_between():
    """Rank 0 gives to rank 1 what rank 1 gives to rank 2."""
    supplies = {(0,): 90, (0, 1): 60, (1, 2): 60}
    assert max(loads_of(supplies, fair_shares(supplies)).values()) == pytest.approx(90, rel=0.01)


@st.composite
def any_supplies(draw):
    groups = st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True)
    return {
        tuple(sorted(group)): draw(st.integers(1, 10**12))
        for group in draw(st.lists(groups, min_size=1, max_size=8))
    }


@given(any_supplies())
def test_the_busiest_rank_is_as_idle_as_possible(supplies):
    shares = fair_shares(supplies)
    busiest = max(loads_of(supplies, shares).values())
    assert busiest <= least_busiest(supplies) * 1.05
    for ranks, weights in shares.items():
        assert len(weights) == len(ranks)
        assert min(weights) >= 0
        assert sum(weights) % RING_TURNS == 0


@given(any_supplies(), st.randoms())
def test_the_order_of_groups_does_not_matter(supplies, random):
    """Every rank reads them in an order of its own."""
    items = list(supplies.items())
    random.shuffle(items)
    assert fair_shares(dict(items)) == fair_shares(supplies)


def test_no_float_is_added_up_by_sum(monkeypatch):
    """Python 3.12 rounds such sums in another way, and ranks may run different ones."""

    def whole_sum(values, start=0):
        values = list(values)
        assert not any(isinstance(value, float) for value in values)
        return sum(values, start)

    monkeypatch.setattr(reshard.fair_shares, "sum", whole_sum, raising=False)
    fair_shares({(0, 1, 2, 3): 5242880, (0, 1, 3): 1048576, (0, 3): 2097152, (3,): 3932160})
    with pytest.raises(AssertionError):
        whole_sum([0.5])


def test_weights_of_an_example_that_python_versions_disagreed_about():
    found = fair_shares({(0, 1, 2, 3): 5242880, (0, 1, 3): 1048576, (0, 3): 2097152, (3,): 3932160})
    assert found == {(0, 1, 2, 3): (8, 111, 137, 0), (0, 1, 3): (96, 96, 0), (0, 3): (128, 0)}


def test_numbers_that_floats_do_not_hold_exactly_make_whole_rings():
    found = fair_shares({(0,): 10**18, (0, 1): 3, (1, 2): 10**18, (2,): 5})
    assert all(sum(weights) == RING_TURNS * len(ranks) for ranks, weights in found.items())
    assert fair_shares({(0,): 2**60, (0, 1): 1}) == {(0, 1): (0, 128)}


def test_groups_with_ranks_in_common_are_together():
    found = components([(0, 1), (2, 3), (1, 4), (3, 2), (5,), (4, 6)])
    assert sorted([sorted(map(sorted, each)) for each in found]) == [
        [[0, 1], [1, 4], [4, 6]],
        [[2, 3]],
        [[5]],
    ]
    assert components([(0, 1), (1, 0)]) == [{frozenset((0, 1))}]
    assert components([]) == []
