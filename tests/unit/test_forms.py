"""Own forms: a mapping or a function, of parts, one part or one form."""

from __future__ import annotations

import pytest

from reshard import Form, LayoutError, Part, check_config, check_forms, parts_of

TRANSPOSED = Form("a b -> b a")


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ((Part("v"), Part("u")), (Part("v"), Part("u"))),
        ([Part("v")], (Part("v"),)),
        (Part("v"), (Part("v"),)),
        (TRANSPOSED, (Part("w", TRANSPOSED),)),
        (None, (Part("w"),)),
    ],
)
def test_parts_may_be_given_in_several_ways(given, parts):
    assert parts_of({"w": given}, "w", (2, 3)) == parts
    assert parts_of(lambda name, shape: given, "w", (2, 3)) == parts


def test_names_that_a_mapping_does_not_have_are_stored_as_they_are():
    assert parts_of({"w": TRANSPOSED}, "v", (2, 3)) == (Part("v"),)
    assert parts_of(None, "v", (2, 3)) == (Part("v"),)


@pytest.mark.parametrize("given", ["v", ("v",), (TRANSPOSED,), 3, ()])
def test_what_is_no_part_is_refused(given):
    with pytest.raises(LayoutError, match=r"w: its form is .* Give a tuple of reshard\.Part"):
        parts_of({"w": given}, "w", (2, 3))


def ready_made(config):
    return lambda name, shape: None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("qwen3", "forms='qwen3' is neither a mapping nor a function. Give a mapping"),
        (3, "forms=3 is neither"),
        (ready_made, "forms=ready_made cannot be called with a name and a shape: too many"),
        ({"u": None}, "forms name tensors that are not there: u. There are v, w."),
    ],
    ids=["name", "number", "not called", "other names"],
)
def test_what_can_say_nothing_of_tensors_is_refused(given, words):
    with pytest.raises(LayoutError) as caught:
        check_forms(given, ["v", "w"])
    assert words in str(caught.value)


def test_forms_that_can_be_asked_are_taken():
    for given in (None, {"w": TRANSPOSED}, ready_made(None), dict.get):
        check_forms(given, ["w"])


def test_a_configuration_of_another_kind_is_refused():
    check_config("f", 1, ["real", "imag"], "a number")
    with pytest.raises(LayoutError) as caught:
        check_config("f", "x", ["real", "imag"], "a number")
    assert str(caught.value) == "f: a builtins.str has no real and no imag. Give a number."
