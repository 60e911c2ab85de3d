"""Transfers and legs: one box between two ranks."""

from __future__ import annotations

import pickle
import random

from reshard import Transfer
from reshard.legs import Leg


def test_a_transfer_counts_and_prints():
    transfer = Transfer(3, 1, 7, (0, 4), (2, 8), 0)
    assert transfer.num_elements == 8
    assert str(transfer) == "[0:2, 4:8] 1 -> 7"
    assert eval(repr(transfer)) == transfer
    assert pickle.loads(pickle.dumps(transfer)) == transfer


def test_a_transfer_of_no_dims_is_one_element():
    transfer = Transfer(0, 0, 1, (), (), 0)
    assert transfer.num_elements == 1
    assert str(transfer) == "[] 0 -> 1"


def test_legs_sort_alike_on_both_ends_of_a_pair():
    """By box, then copy, which both ends know; the peer tells legs of different streams apart."""
    boxes = [((0, 0), (2, 2)), ((0, 2), (2, 4)), ((2, 0), (4, 2))]
    legs = [Leg(peer=5, start=a, stop=b, copy=c) for a, b in boxes for c in (0, 1)]
    shuffled = random.Random(4).sample(legs, len(legs))
    assert sorted(shuffled) == legs
