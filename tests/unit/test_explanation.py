"""Explanations as values; their text is tested in test_plan.py."""

from __future__ import annotations

import pytest

from reshard import Form, Layout, Mesh, Part, PlanError, Replicate, Shard, TensorSpec, make_plan
from reshard.explanation import explanations
from reshard.topology import Topology

SRC = TensorSpec("w", (4, 6), "float32", Layout(Mesh.of(dp=2, x=2), (Replicate(), Shard(0))))
DST = TensorSpec("w", (4, 6), "float32", Layout(Mesh.of(x=2), (Shard(1),)))


def test_what_a_source_rank_does():
    (found,) = explanations(make_plan([SRC], [DST.shifted(4)]), "w", 1)
    assert (found.name, found.rank, found.wire_dtype) == ("w", 1, "float32")
    assert found.dims == (("d0", 4), ("d1", 6))
    assert found.src.boxes == (((2, 0), (4, 6)),)
    assert found.dst.boxes == ()
    assert {move.verb for move in found.moves} == {"sends"}
    assert {move.num_holders for move in found.moves} == {2}
    for move in found.moves:
        rows = move.stop[0] - move.start[0]
        assert move.nbytes == 4 * rows * (move.stop[1] - move.start[1])


def test_a_copy_in_place_has_no_holders():
    (found,) = explanations(make_plan([SRC], [SRC]), "w", 3)
    assert [(m.verb, m.peer, m.num_holders) for m in found.moves] == [
        ("sends", 3, 0),
        ("receives", 3, 0),
    ]


def test_what_is_passed_on_says_so():
    whole = TensorSpec("w", (64, 64), "float32", Layout.replicated(Mesh.of(x=1)))
    everywhere = TensorSpec("w", (64, 64), "float32", Layout.replicated(Mesh.of(x=4))).shifted(1)
    topology = Topology((0, 1, 1, 1, 1), (0, 1, 1, 1, 1), 1, 1.0, 1.0)
    (found,) = explanations(make_plan([whole], [everywhere], topology=topology), "w", 1)
    later = [move for move in found.moves if move.hop]
    assert later
    assert all("which received it at hop 0 and passes it on" in move.why for move in later)


def test_a_stored_name_stands_for_all_its_parts():
    fused = TensorSpec(
        "qk",
        (4, 6),
        "float32",
        DST.layout,
        [
            Part(name, Form("a b -> a b", {"a": 2}, start={0: row}))
            for name, row in (("q", 0), ("k", 2))
        ],
    )
    parts = [TensorSpec(n, (2, 6), "float32", Layout(Mesh.of(x=2), (Shard(1),))) for n in "qk"]
    plan = make_plan(parts, [fused.shifted(2)])
    assert [each.name for each in explanations(plan, "qk", 2)] == ["q", "k"]


def test_unknown_names_and_ranks():
    plan = make_plan([SRC], [DST.shifted(4)])
    with pytest.raises(PlanError, match="called 'v'"):
        explanations(plan, "v", 0)
    with pytest.raises(PlanError, match="no rank of this plan is 9"):
        explanations(plan, "w", 9)
