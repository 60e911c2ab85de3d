"""Own forms: a mapping or a function, of parts, one part or one form."""

from __future__ import annotations

import pytest

from reshard import Form, LayoutError, Part, parts_of

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
