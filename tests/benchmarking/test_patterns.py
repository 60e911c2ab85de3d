"""The benchmark's checker: accepts what is right and finds every planted error."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import patterns
from benchmarks.regions import Region

SHAPE = (12, 20)
REGION = Region((4, 8), (6, 10))
SEED = patterns.seed_of("layer.weight", 3)


def _filled(dtype: str) -> np.ndarray:
    local = np.zeros(REGION.shape, dtype)
    patterns.fill(local, REGION, SHAPE, SEED)
    return local


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_fill_agrees_with_the_values_of_single_elements(dtype: str) -> None:
    local = _filled(dtype)
    rows, columns = np.meshgrid(np.arange(4, 10), np.arange(8, 18), indexing="ij")
    indices = (rows * 20 + columns).astype(np.uint64)
    expected = patterns.values_at(indices.reshape(-1), SEED, local.itemsize)
    assert np.array_equal(local.reshape(-1), expected)
    assert patterns.check(local, REGION, SHAPE, SEED) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: np.roll(good, 1, axis=0),
        lambda good: np.roll(good, 1, axis=1),
        lambda good: good[::-1],
        lambda good: np.concatenate([good[3:], good[:3]]),
        lambda good: np.concatenate([good[:, 5:], good[:, :5]], axis=1),
    ],
)
def test_check_finds_moved_elements(damage: object) -> None:
    assert callable(damage)
    bad = np.ascontiguousarray(damage(_filled("u2")))
    assert patterns.check(bad, REGION, SHAPE, SEED) is not None


def test_check_names_the_one_wrong_byte() -> None:
    local = _filled("u2")
    good = int(local[2, 7])
    local[2, 7] ^= 0x0100
    wrong = patterns.check(local, REGION, SHAPE, SEED)
    assert wrong == patterns.Mismatch((6, 15), expected=good, found=good ^ 0x0100, num_wrong=1)


def test_check_finds_a_stale_version_and_another_tensor() -> None:
    local = _filled("u2")
    for seed in (patterns.seed_of("layer.weight", 2), patterns.seed_of("other.weight", 3)):
        wrong = patterns.check(local, REGION, SHAPE, seed)
        assert wrong is not None
        assert wrong.num_wrong > 50


def test_blocks_larger_than_the_cache_block_and_one_dim() -> None:
    region = Region((70_000,), (150_000,))
    local = np.zeros(region.shape, np.uint16)
    patterns.fill(local, region, (300_000,), SEED)
    expected = patterns.values_at(np.arange(70_000, 220_000, dtype=np.uint64), SEED, 2)
    assert np.array_equal(local, expected)
    local[149_999] ^= 1
    wrong = patterns.check(local, region, (300_000,), SEED)
    assert wrong is not None
    assert (wrong.index, wrong.num_wrong) == ((219_999,), 1)


def test_three_dims() -> None:
    region = Region((1, 2, 3), (2, 3, 4))
    local = np.zeros(region.shape, np.uint32)
    patterns.fill(local, region, (4, 6, 8), SEED)
    index = np.ravel_multi_index((2, 3, 5), (4, 6, 8))
    expected = patterns.values_at(np.array([index], np.uint64), SEED, 4)
    assert local[1, 1, 2] == expected[0]


def test_non_contiguous_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="not a contiguous array of the region"):
        patterns.check(np.zeros((10, 6), np.uint16).T, REGION, SHAPE, SEED)
