"""Rules for values: what they are made of, what they come to, and which steps are none."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from reshard import Elementwise, LayoutError, Part, TensorSpec, UnsupportedError
from reshard.dtypes import DType
from reshard.elementwise import Change, change_of
from reshard.layout import Layout
from reshard.mesh import Mesh

ALONE = Layout.replicated(Mesh.of(x=1))


@pytest.mark.parametrize(
    "rule",
    [
        Elementwise(),
        Elementwise(scale=np.float32(0.1)),
        Elementwise(divisor=ml_dtypes.bfloat16(50.5)),
        Elementwise(-3, 7, 1e-9),
        Elementwise(offset=-1),
    ],
    ids=str,
)
def test_a_rule_is_a_value(rule):
    assert eval(repr(rule)) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(eval(repr(rule))) == hash(rule)


def test_numbers_of_any_type_keep_their_value():
    assert Elementwise(np.float32(0.1)).scale == float(np.float32(0.1)) != 0.1
    assert Elementwise(divisor=ml_dtypes.bfloat16(50.6)).divisor == 50.5
    assert Elementwise(2).scale == 2.0
    assert type(Elementwise(np.float64(2)).scale) is float


def test_there_is_one_zero():
    assert repr(Elementwise(offset=-0.0)) == repr(Elementwise())


@pytest.mark.parametrize(
    "given",
    [
        {"scale": 0},
        {"divisor": -0.0},
        {"scale": float("nan")},
        {"offset": float("inf")},
        {"offset": 10**400},
        {"scale": "2"},
        {"scale": True},
        {"divisor": None},
        {"offset": np.zeros(2)},
        {"scale": 1j},
    ],
    ids=str,
)
def test_what_is_no_rule_is_refused_with_what_was_given(given):
    with pytest.raises(LayoutError, match=r"give finite numbers") as raised:
        Elementwise(**given)
    ((name, value),) = given.items()
    assert f"{name}={value!r}" in str(raised.value)


def test_a_rule_that_changes_nothing_is_the_identity():
    assert Elementwise(1, 1.0, 0).is_identity
    assert not any(Elementwise(**one).is_identity for one in ({"scale": 2}, {"offset": 1}))
    assert not Elementwise(divisor=3).is_identity


def test_stored_and_canonical_are_each_other_undone():
    rule = Elementwise(scale=8, divisor=2, offset=-3)
    assert rule.to_canonical(5.0) == 17.0
    assert rule.to_stored(17.0) == 5.0
    np.testing.assert_array_equal(rule.to_canonical(np.array([5.0, 1.0])), [17.0, 1.0])


def test_steps_that_do_nothing_keep_the_sign_of_zero():
    zero = Elementwise(scale=2).to_canonical(-0.0)
    assert np.signbit(zero)
    assert np.signbit(Elementwise(divisor=2).to_stored(zero))


def test_equal_rules_cancel():
    rule = Elementwise(scale=0.1, offset=3)
    assert change_of(rule, Elementwise(scale=0.1, offset=3)) is None
    assert change_of(None, None) is None
    assert change_of(rule, None) == Change(rule, Elementwise())
    assert change_of(None, rule) == Change(Elementwise(), rule)


def test_the_source_is_followed_and_the_destination_undone():
    change = Change(Elementwise(3, 2, 1), Elementwise(5, 7, 11))
    assert change.of(4.0) == (((4 * 3 / 2 + 1) - 11) * 7) / 5
    assert change.numbers == (3.0, 2.0, 1.0, 5.0, 7.0, 11.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change(Elementwise(scale=0.1), Elementwise()), "x * 0.1"),
        (Change(Elementwise(divisor=50.5), Elementwise()), "x / 50.5"),
        (Change(Elementwise(offset=-1), Elementwise()), "x - 1"),
        (Change(Elementwise(), Elementwise(offset=-1)), "x + 1"),
        (Change(Elementwise(2, 3, 4), Elementwise(5, 6, 7)), "(x * 2 / 3 + 4 - 7) * 6 / 5"),
        (Change(Elementwise(), Elementwise(5, 6)), "x * 6 / 5"),
    ],
)
def test_a_change_is_written_as_what_happens_to_x(change, text):
    assert str(change) == text


def test_what_a_change_is_written_as_is_what_it_does():
    change = Change(Elementwise(3, -2, 1), Elementwise(5, 7, -11))
    assert eval(str(change), {"x": 4.0}) == change.of(4.0)


def test_a_part_has_one_rule_or_none():
    rule = Elementwise(offset=-1)
    assert Part("w", elementwise=rule).elementwise == rule
    assert Part("w", elementwise=Elementwise()) == Part("w")
    assert Part("w", elementwise=rule) != Part("w")
    part = Part("w", None, ("v",), rule)
    assert eval(repr(part)) == part


@pytest.mark.parametrize("given", [2, "x * 2", (1, 1, -1), Elementwise])
def test_a_part_takes_rules_alone(given):
    with pytest.raises(LayoutError, match=r"give a reshard.Elementwise or None, as in Part\('w'"):
        Part("w", elementwise=given)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_values_of_types_without_casts_are_not_changed(dtype):
    part = Part("w", elementwise=Elementwise(scale=2))

    def make():
        return TensorSpec("stored", (4,), dtype, ALONE, part)

    if dtype.can_cast_to(DType.FLOAT64):
        assert make().parts == (part,)
        return
    with pytest.raises(UnsupportedError) as raised:
        make()
    text = str(raised.value)
    assert "stored: Elementwise(scale=2.0, divisor=1.0, offset=0.0) of 'w'" in text
    assert f"and {dtype} has none" in text
