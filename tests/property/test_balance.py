"""Bytes are shared out evenly among the ranks that hold them, over whole models."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from reshard import (
    Box,
    BoxLayout,
    Layout,
    LocalBox,
    Mesh,
    Plan,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
)

R = Replicate()

SHAPES = {
    "embed": (32064, 4096),
    "q": (4096, 4096),
    "k": (1024, 4096),
    "o": (4096, 4096),
    "gate": (11008, 4096),
    "down": (4096, 11008),
    "norm": (4096,),
}

HSDP = Layout(Mesh.of(replica=2, fsdp=4), (R, Shard(0)))
FULL = Layout.replicated(Mesh.of(dp=8))

LAYOUTS = {
    "hsdp to tp": (HSDP, Layout(Mesh.of(tp=4), (Shard(0),))),
    "hsdp to tp of the other dim": (HSDP, Layout(Mesh.of(tp=4), (Shard(1),))),
    "hsdp to replicated tp": (HSDP, Layout(Mesh.of(dp=4, tp=2), (R, Shard(0)))),
    "replicated to tp": (FULL, Layout(Mesh.of(tp=4), (Shard(0),))),
    "replicated to replicated": (FULL, Layout.replicated(Mesh.of(dp=3))),
    "replicated to one": (FULL, Layout.replicated(Mesh.of(dp=1))),
    "fsdp to tp": (Layout(Mesh.of(fsdp=8), (Shard(0),)), Layout(Mesh.of(tp=4), (Shard(0),))),
    "tp with replicas to fsdp": (
        Layout(Mesh.of(dp=3, tp=2), (R, Shard(0))),
        Layout(Mesh.of(fsdp=5), (Shard(0),)),
    ),
}


def specs_of(layout: Layout, offset: int, num_layers: int) -> list[TensorSpec]:
    specs = []
    for name, shape in SHAPES.items():
        own = layout if len(shape) > 1 else Layout.replicated(layout.mesh)
        for layer in range(num_layers if name != "embed" else 1):
            specs.append(TensorSpec(f"{name}.{layer}", shape, "bfloat16", own).shifted(offset))
    return specs


def loads(plan: Plan) -> tuple[list[int], list[int]]:
    """Returns (bytes out per source rank, bytes in per destination rank)."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for (src, dst), nbytes in plan.stream_bytes().items():
        sent[src] += nbytes
        received[dst] += nbytes
    return [sent[rank] for rank in plan.src_ranks], [received[rank] for rank in plan.dst_ranks]


def spread(values: list[int]) -> float:
    return max(values) / (sum(values) / len(values))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_busiest_holder_is_within_two_percent_of_the_mean(name):
    src, dst = LAYOUTS[name]
    plan = make_plan(specs_of(src, 0, 16), specs_of(dst, 100, 16))
    sent, received = loads(plan)
    assert sum(sent) == sum(received)
    assert spread(sent) <= 1.02
    assert spread(received) <= 1.02


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_many_small_tensors_are_shared_out_too(num_ranks):
    """Each is too small to be cut into stripes, so the choice of the holder moves on."""
    src = Layout.replicated(Mesh.of(dp=num_ranks))
    dst = Layout.replicated(Mesh.of(dp=1))
    specs = [TensorSpec(f"norm.{i}", (1024,), "bfloat16", src) for i in range(20 * num_ranks)]
    wanted = [TensorSpec(spec.name, (1024,), "bfloat16", dst).shifted(100) for spec in specs]
    sent, _ = loads(make_plan(specs, wanted))
    assert max(sent) == min(sent)


def test_large_replicas_are_cut_into_stripes_and_not_dealt_whole():
    src = TensorSpec("w", (4096, 4096), "bfloat16", FULL)
    dst = TensorSpec("w", (4096, 4096), "bfloat16", Layout.replicated(Mesh.of(dp=1))).shifted(8)
    assert [t.start[0] for t in make_plan([src], [dst]).receives(8)] == [i * 512 for i in range(8)]


def test_a_rank_of_both_sides_serves_itself_and_the_rest_is_shared_evenly():
    layout = Layout.replicated(Mesh.of(dp=4))
    src = TensorSpec("w", (4096, 4096), "bfloat16", layout)
    dst = TensorSpec("w", (4096, 4096), "bfloat16", layout.shifted(2))
    plan = make_plan([src], [dst])
    sent, received = loads(plan)
    assert received == [0, 0, 4096 * 4096 * 2, 4096 * 4096 * 2]
    assert max(sent) - min(sent) <= 2 * 4096 * 2


@pytest.mark.parametrize("num_copies", [1, 2, 5])
def test_egress_is_the_same_however_many_replicas_the_destination_has(num_copies):
    dst = Layout(Mesh.of(dp=num_copies, tp=2), (R, Shard(0)))
    plan = make_plan(specs_of(FULL, 0, 4), specs_of(dst, 100, 4))
    sent, received = loads(plan)
    assert spread(sent) <= 1.02
    wanted = sum(
        2 * math.prod(pair.dst.layout.local_shape(rank, pair.dst.shape))
        for pair in plan.pairs
        for rank in pair.dst.layout.ranks
    )
    assert sum(received) == wanted


def test_a_rank_that_shares_tensors_with_all_others_sends_no_more_than_they_do():
    """Case wi: tensor i is on ranks 0 and i, so even shares would have rank 0 send half of all."""
    layouts = [Layout.replicated(Mesh(("x",), (2,), (0, other))) for other in range(1, 8)]
    dst = Layout(Mesh.of(tp=4), (Shard(0),)).shifted(100)
    for shape in [(4096, 1024), (64, 64)]:  # with stripes, and too small for them
        src = [TensorSpec(f"w{i}", shape, "bfloat16", layouts[i % 7]) for i in range(56)]
        plan = make_plan(src, [TensorSpec(each.name, shape, "bfloat16", dst) for each in src])
        sent, _ = loads(plan)
        assert spread(sent) <= 1.02


def test_pipeline_stages_that_share_an_embedding_send_the_same():
    """The first stage has a layer more, so the last one sends more of the tied embedding."""
    first, last = (Layout(Mesh.of(dp=2, tp=2), (R, Shard(0))).shifted(n) for n in (0, 4))
    both = Layout(Mesh.of(stage=2, dp=2, tp=2), (R, R, Shard(0)))
    src = [TensorSpec("embed", (32064, 1024), "bfloat16", both)]
    src += [TensorSpec(f"a{i}", (1024, 1024), "bfloat16", first) for i in range(20)]
    src += [TensorSpec(f"b{i}", (1024, 1024), "bfloat16", last) for i in range(8)]
    dst = Layout(Mesh.of(tp=4), (Shard(1),)).shifted(100)
    plan = make_plan(src, [TensorSpec(s.name, s.shape, "bfloat16", dst) for s in src])
    sent, _ = loads(plan)
    assert spread(sent) <= 1.02
    assert plan.planner.shares


def test_explicit_boxes_with_more_holders_on_some_ranks_are_balanced():
    boxes = {
        0: LocalBox(Box((0, 0), (512, 1024)), (0, 0)),
        1: LocalBox(Box((0, 0), (512, 1024)), (0, 0)),
        2: LocalBox(Box((512, 0), (512, 1024)), (0, 0)),
    }
    entries = [(rank, (box,)) for rank, box in boxes.items()]
    entries[0] = 0, (boxes[0], LocalBox(Box((512, 0), (512, 1024)), (512, 0)))
    src = TensorSpec("w", (1024, 1024), "bfloat16", BoxLayout(tuple(entries)))
    dst = TensorSpec("w", (1024, 1024), "bfloat16", FULL.shifted(100))
    sent, _ = loads(make_plan([src], [dst]))
    assert spread(sent) <= 1.02


def test_ranks_that_hold_fewer_experts_serve_more_of_what_all_hold():
    """Four experts over eight ranks: half of these hold none."""
    experts = Layout(Mesh.of(ep=8), (Shard(0),))
    src = [TensorSpec(f"e{i}", (4, 1024, 512), "bfloat16", experts) for i in range(4)]
    src += [TensorSpec(f"d{i}", (1024, 2048), "bfloat16", FULL) for i in range(8)]
    dst = Layout.replicated(Mesh.of(dp=1)).shifted(100)
    plan = make_plan(src, [TensorSpec(s.name, s.shape, "bfloat16", dst) for s in src])
    sent, _ = loads(plan)
    assert spread(sent) <= 1.02


def test_tensors_too_small_for_all_holders_leave_out_a_busy_one():
    """Rank 0 has a large tensor of its own, and shares many of 256 KiB with seven others."""
    own = TensorSpec("own", (100, 32 << 10), "bfloat16", Layout.replicated(Mesh.of(dp=1)))
    src = [TensorSpec(f"w{i}", (128, 1024), "bfloat16", FULL) for i in range(200)]
    dst = Layout.replicated(Mesh.of(dp=1)).shifted(100)
    wanted = [TensorSpec(s.name, s.shape, "bfloat16", dst) for s in (own, *src)]
    sent, _ = loads(make_plan([own, *src], wanted))
    assert spread(sent) <= 1.05
