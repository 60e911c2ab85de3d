"""The definition of fingerprints: fixed numbers, and what they depend on."""

from __future__ import annotations

import itertools
import random

import pytest

from reshard import fingerprint_of_values, seed_of_name
from reshard.fingerprint import mix


def test_numbers_do_not_change_between_versions():
    """Source and destination may run different versions, so the definition is for good."""
    assert seed_of_name("model.layers.0.self_attn.q_proj.weight") == 0xE32ED6127B67A70A
    assert mix(0, 0, 0) == 0
    assert mix(1, 2, 3) == 0x33D311E0D81F469A
    assert mix(0x0123456789ABCDEF, 10**12, 0x3F80) == 0xAED47C41A0BB39C0


@pytest.mark.parametrize(("seed", "index", "bits"), [(1, 2, 3), (2**64 - 1, 2**40, 2**64 - 1)])
def test_numbers_follow_the_formula_of_the_docstring(seed, index, bits):
    a = (seed + index * 0x9E3779B97F4A7C15) % 2**64
    c = ((a ^ a >> 31) + bits * 0x9FB21C651E98DF25) % 2**64
    assert mix(seed, index, bits) == ((c % 2**32) * (c >> 32) + c) % 2**64


def test_seeds_differ_between_names():
    names = [f"layers.{i}.{w}" for i in range(100) for w in ("q", "k", "v")]
    assert len({seed_of_name(name) for name in names}) == len(names)


def test_the_order_of_boxes_does_not_matter():
    values = list(range(100))
    parts = [fingerprint_of_values(7, values[a : a + 10], a) for a in range(0, 100, 10)]
    random.Random(1).shuffle(parts)
    assert sum(parts) % 2**64 == fingerprint_of_values(7, values)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_swap_of_two_different_rows_is_seen(width):
    rng = random.Random(width)
    rows = [[rng.randrange(256**width) for _ in range(4)] for _ in range(12)]
    whole = fingerprint_of_values(3, list(itertools.chain(*rows)))
    for i, j in itertools.combinations(range(len(rows)), 2):
        swapped = rows.copy()
        swapped[i], swapped[j] = rows[j], rows[i]
        changed = fingerprint_of_values(3, list(itertools.chain(*swapped)))
        assert (changed != whole) == (rows[i] != rows[j])


def test_every_single_bit_is_seen():
    values = [0x0123456789ABCDEF, 0, 2**64 - 1]
    whole = fingerprint_of_values(5, values)
    for at in range(3):
        for bit in range(64):
            changed = values.copy()
            changed[at] ^= 1 << bit
            assert fingerprint_of_values(5, changed) != whole


def test_name_and_shift_are_seen():
    values = [1, 2, 3]
    assert fingerprint_of_values(1, values) != fingerprint_of_values(2, values)
    assert fingerprint_of_values(1, values) != fingerprint_of_values(1, values, 1)


def test_zeros_are_told_from_nothing():
    assert fingerprint_of_values(9, [0, 0]) != fingerprint_of_values(9, [0, 0, 0])
    assert fingerprint_of_values(9, []) == 0
