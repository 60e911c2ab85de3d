"""The fingerprint table: native sums equal the definition in reshard.fingerprint."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from reshard import _native
from reshard.errors import PlanError, UnsupportedError
from reshard.fingerprint import mix, seed_of_name

U16, BF16, F32 = 3, 10, 11
MASK = (1 << 64) - 1


def signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def addresses_of(item):
    return array("Q", [item.ctypes.data])


def test_sums_follow_the_definition_for_strided_regions_of_several_slots():
    seed = seed_of_name("layers.0.wq")
    values = np.arange(35, dtype=np.uint16).reshape(5, 7) * 321
    columns_0_to_2 = [0, 0, 0, U16, U16, -1, signed(seed), 2, 5, 3, 14, 2, 7, 1, 0]
    columns_3_to_6 = [1, 0, 6, U16, U16, -1, signed(seed), 2, 5, 4, 14, 2, 7, 1, 3]
    table = array("q", columns_0_to_2 + columns_3_to_6)
    left, right = _native.fingerprints(table, addresses_of(values), 2)
    expected = [[mix(seed, 7 * i + j, int(values[i, j])) for j in range(7)] for i in range(5)]
    assert left == sum(sum(row[:3]) for row in expected) & MASK
    assert right == sum(sum(row[3:]) for row in expected) & MASK


def test_elements_are_cast_before_they_count():
    values = np.array([1.0, -2.0], np.float32)
    table = array("q", [0, 0, 0, F32, BF16, -1, 5, 1, 2, 4, 1, 0])
    (total,) = _native.fingerprints(table, addresses_of(values), 1)
    assert total == (mix(5, 0, 0x3F80) + mix(5, 1, 0xC000)) & MASK


def test_values_change_before_elements_are_cast_and_count():
    values = np.array([1.0, -2.0, 0.5], np.float32)
    table = array("q", [0, 0, 0, F32, BF16, 1, 5, 1, 2, 4, 1, 0, 0, 0, 8, F32, F32, -1, 5, 0, 2])
    rules = array("d", [7, 7, 7, 7, 7, 7, 3, 1, 0.5, 1, 1, 1])
    (total,) = _native.fingerprints(table, addresses_of(values), 1, rules=rules)
    changed = [mix(5, 0, 0x4020), mix(5, 1, 0xC0D0)]  # 2.5 and -6.5
    assert total == (sum(changed) + mix(5, 2, 0x3F000000)) & MASK


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 0, 0, U16, U16, -1, 5, 0, 0], "row 0: slot 1 is not in 0..0"),
        ([0, 1, 0, U16, U16, -1, 5, 0, 0], "buffer 1 is not in 0..0"),
        ([0, 0, 0, U16, 77, -1, 5, 0, 0], "stored dtype code 77"),
        ([0, 0, 0, U16, U16, 0, 5, 0, 0], "row 0: rule 0 is not in 0..-1"),
        ([0, 0, 0, U16, U16, -1, 5, 99, 0], "ndim 99"),
        ([0, 0, 0, U16, U16, -1, 5, 1, 2, 2, 1], "4 more values expected but 3"),
    ],
)
def test_wrong_rows_are_refused(row, message):
    with pytest.raises(PlanError, match=message):
        _native.fingerprints(array("q", row), addresses_of(np.zeros(4, np.uint16)), 1)


def test_values_of_integers_are_not_changed():
    with pytest.raises(UnsupportedError, match="values of uint16 or uint16 cannot be changed"):
        row = array("q", [0, 0, 0, U16, U16, 0, 5, 0, 0])
        rules = array("d", [2, 1, 0, 1, 1, 0])
        _native.fingerprints(row, addresses_of(np.zeros(1, np.uint16)), 1, rules=rules)


def test_rules_are_float64():
    with pytest.raises(PlanError, match="rules table: typecode 'f' is not 'd'"):
        _native.fingerprints(array("q"), array("Q"), 0, rules=array("f"))


def test_a_cast_that_does_not_exist_is_unsupported():
    with pytest.raises(UnsupportedError, match="no cast from uint16 to float32"):
        row = array("q", [0, 0, 0, U16, F32, -1, 5, 0, 0])
        _native.fingerprints(row, addresses_of(np.zeros(1, np.uint16)), 1)
