"""Which dims do not divide evenly, and what is left to each rank."""

from __future__ import annotations

import pytest

from reshard import Layout, Mesh, Replicate, SegmentedLayout, Shard, TensorSpec
from reshard.unevenness import UnevenDim, uneven_dims


def found(shape, layout):
    return [each for _, each in uneven_dims([TensorSpec("w", shape, "float32", layout)])]


@pytest.mark.parametrize(
    ("length", "num_parts", "division", "expected"),
    [
        (12, 4, "chunk", []),
        (10, 4, "chunk", [UnevenDim(0, 10, 4, 3, 1, 0, "chunk")]),
        (10, 4, "balanced", [UnevenDim(0, 10, 4, 3, 2, 0, "balanced")]),
        (5, 4, "chunk", [UnevenDim(0, 5, 4, 2, 0, 1, "chunk")]),
    ],
)
def test_one_cut(length, num_parts, division, expected):
    layout = Layout(Mesh.of(x=num_parts), (Shard(0),), division=division)
    assert found((length, 3), layout) == expected


def test_two_axes_that_cut_one_dim_count_together():
    layout = Layout(Mesh.of(y=2, x=3), (Shard(1), Shard(1)))
    assert found((4, 8), layout) == [UnevenDim(1, 8, 6, 2, 0, 2, "chunk")]


def test_replicas_cut_nothing():
    assert found((5, 5), Layout(Mesh.of(x=3), (Replicate(),))) == []


def test_segments_are_cut_by_themselves():
    part = Layout(Mesh.of(x=2), (Shard(0),))
    layout = SegmentedLayout(0, (3, 4), (part, part))
    assert found((7, 2), layout) == [UnevenDim(0, 3, 2, 2, 1, 0, "chunk")]
