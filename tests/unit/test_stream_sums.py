"""Bytes per stream, against every single transfer."""

from __future__ import annotations

from collections import Counter

import pytest

from reshard import DType, Layout, Mesh, PlanError, Replicate, Shard, TensorSpec, make_plan
from reshard.box import Box
from reshard.layout import BoxLayout
from reshard.topology import Topology

MESH = Mesh.of(dp=4, tp=2)
SRC = Layout(MESH, (Replicate(), Shard(0)))
DST = Layout(MESH, (Replicate(), Shard(1)))


def specs(layout, offset=0, dtype=DType.FLOAT32):
    """Returns tensors of two shapes, small ones of which take turns among holders."""
    shapes = [(512, 512)] * 3 + [(6, 8)] * 5
    return [
        TensorSpec(f"{n}", shape, dtype, layout).shifted(offset) for n, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("topology", [None, Topology.dgx_h100(16), Topology.one_host(16)])
@pytest.mark.parametrize("offset", [0, 3, 8])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_streams_are_the_sums_of_their_transfers(topology, offset, dtype):
    casts = [("float32", "bfloat16")]
    plan = make_plan(specs(SRC), specs(DST, offset, dtype), topology=topology, casts=casts)
    expected = Counter()
    for transfer in plan.transfers():
        if transfer.src_rank != transfer.dst_rank:
            expected[transfer.src_rank, transfer.dst_rank] += plan.nbytes(transfer)
    assert expected
    assert plan.stream_bytes() == expected
    some = plan.dst_ranks[1:3]
    assert plan.stream_bytes(some) == {k: n for k, n in expected.items() if k[1] in some}


def test_a_source_that_lacks_elements():
    half = BoxLayout({0: Box((0, 0), (256, 512))})
    src = TensorSpec("w", (512, 512), "float32", half)
    dst = TensorSpec("w", (512, 512), "float32", SRC).shifted(1)
    with pytest.raises(PlanError, match="holds only"):
        make_plan([src], [dst]).stream_bytes()
