"""Placements print as what makes them and refuse nonsense."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from reshard import Layout, LayoutError, Mesh, Replicate, Shard, UnsupportedError


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


def test_whole_numbers_of_any_kind_become_plain_ones():
    placement = Shard(np.int64(1), np.uint8(2))
    assert repr(placement) == "Shard(dim=1, blocks=2)"
    assert (type(placement.dim), type(placement.blocks)) == (int, int)


def foreign(name, text):
    """Returns a placement as torch has them: named and printed like ours."""
    place = {"__module__": "torch.distributed.tensor.placement_types"}
    return type(name, (), {"__repr__": lambda _: text, **place})()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Shard", "Shard(dim=1)"),
        ("Replicate", "Replicate()"),
        ("_StridedShard", "_StridedShard(dim=0, sf=2)"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: (one,)], ids=["alone", "in a tuple"])
def test_placements_of_another_library_are_told_from_ours(name, text, wrap):
    with pytest.raises(LayoutError) as error:
        Layout(Mesh.of(tp=2), wrap(foreign(name, text)))
    assert f"torch.distributed.tensor.placement_types.{text}" in str(error.value)
    assert "reshard.Shard(dim)" in str(error.value)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: (one,)], ids=["alone", "in a tuple"])
def test_partial_sums_are_refused_with_how_to_reduce(wrap):
    with pytest.raises(UnsupportedError, match=r"Partial\(sum\).*reduce first"):
        Layout(Mesh.of(tp=2), wrap(foreign("Partial", "Partial(sum)")))
