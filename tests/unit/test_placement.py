"""Placements print as what makes them and refuse nonsense."""

from __future__ import annotations

import pickle

import pytest

from reshard import LayoutError, Replicate, Shard


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(3, blocks=2)])
def test_values(placement):
    assert eval(repr(placement)) == placement
    assert pickle.loads(pickle.dumps(placement)) == placement
    assert hash(eval(repr(placement))) == hash(placement)


def test_short_names():
    assert [str(p) for p in (Replicate(), Shard(1), Shard(0, 2))] == ["R", "S(1)", "S(0, blocks=2)"]


@pytest.mark.parametrize(
    ("dim", "blocks"),
    [(-1, 1), (0, 0), (0, -2), ("0", 1), (0.0, 1), (None, 1), (True, 1), (0, "2")],
)
def test_nonsense_is_refused(dim, blocks):
    with pytest.raises(LayoutError, match=rf"dim={dim!r}, blocks={blocks!r}.*not a whole number"):
        Shard(dim, blocks)
