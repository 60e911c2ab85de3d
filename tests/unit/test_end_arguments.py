"""Flags and streams as callers give them."""

from __future__ import annotations

import numpy as np
import pytest

from reshard import LayoutError
from reshard.end_arguments import NO_STREAMS, read_flag, read_streams


@pytest.mark.parametrize("given", [True, np.True_])
def test_flags(given):
    assert read_flag("verify", given) is True


@pytest.mark.parametrize("given", [1, "yes", None])
def test_what_is_no_flag(given):
    with pytest.raises(LayoutError, match=r"verify=.* is neither True nor False"):
        read_flag("verify", given)


def test_streams_are_whole_numbers_of_own_ranks():
    assert read_streams(NO_STREAMS, (0,)) == {}
    assert read_streams({3: 0, 4: np.uint64(1 << 63)}, (3, 4, 5)) == {3: 0, 4: 1 << 63}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({7: 0}, r"name rank 7, which is not one of this process: \[3, 4\]"),
        ({3: -1}, "-1 of rank 3 is no handle of a CUDA stream"),
        ({3: 1 << 64}, "is no handle"),
        ({3: None}, r"None of rank 3 is no handle.*torch\.cuda\.current_stream"),
        ({3: True}, "is no handle"),
        ({3: 0.0}, "is no handle"),
    ],
)
def test_what_are_no_streams(given, text):
    with pytest.raises(LayoutError, match=text):
        read_streams(given, (4, 3))
