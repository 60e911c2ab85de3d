"""Explanations as values; their text is tested in test_plan.py."""

from __future__ import annotations

import pytest
from helpers.command_line import tiny_model

from reshard import (
    Elementwise,
    Form,
    Layout,
    Mesh,
    Parallelism,
    Part,
    PlanError,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
)
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


@pytest.mark.parametrize(("first", "second"), [("pp2,tp2", "tp4,dp2"), ("tp2,dp2", "pp2,tp2")])
def test_ranks_of_all_stages_hold_what_their_layouts_say(first, second):
    model, trainer, generator = tiny_model(), Parallelism.parse(first), Parallelism.parse(second)
    sides = trainer.specs(model), generator.specs(model, trainer.num_ranks)
    plan = make_plan(*sides)
    for src, dst in zip(*sides, strict=True):
        for rank in plan.ranks:
            (found,) = explanations(plan, src.name, rank)
            for held, spec in ((found.src, src), (found.dst, dst)):
                boxes = [box for box, _ in spec.layout.local_boxes(rank, spec.shape)]
                assert held.boxes == tuple((box.offset, box.stop) for box in boxes)


def test_holders_are_those_of_the_tensors_own_stage():
    model, trainer = tiny_model(), Parallelism.parse("pp2,dp2")
    plan = make_plan(trainer.specs(model), Parallelism.parse("tp1").specs(model, 4))
    (found,) = explanations(plan, "model.layers.1.self_attn.o_proj.weight", 4)
    assert {move.why for move in found.moves} == {
        "is one of 2 holders (ranks 2 to 3), which share it out"
    }


WHOLE = TensorSpec("w", (1024, 64), "float32", Layout.replicated(Mesh.of(x=1)))
EVERYWHERE = TensorSpec("w", (1024, 64), "float32", Layout.replicated(Mesh.of(x=4))).shifted(1)


def whys(domains, rank):
    plan = make_plan([WHOLE], [EVERYWHERE], topology=Topology(domains, domains, 1, 1.0, 1.0))
    (found,) = explanations(plan, "w", rank)
    return {move.hop: move.why for move in found.moves if move.verb == "receives"}


def test_what_is_passed_on_says_so():
    why = whys((0, 1, 1, 1, 1), 1)
    assert why[0] == "is the only holder"
    assert why[1] == (
        "received it at hop 0 and passes it on inside domain 1, which gets each byte once from "
        "outside"
    )


def test_what_is_passed_on_in_the_domain_of_the_source_comes_from_there():
    assert whys((7, 7, 7, 7, 7), 1)[1] == (
        "received it at hop 0 and passes it on inside domain 7, where rank 0 sends each byte once"
    )


def test_holders_of_the_own_domain_serve_it():
    places = (0, 1, 0, 0, 1, 1)
    src = TensorSpec("w", (512, 64), "float32", Layout.replicated(Mesh.of(x=3)))
    dst = TensorSpec("w", (512, 64), "float32", Layout.replicated(Mesh.of(x=3))).shifted(3)
    plan = make_plan([src], [dst], topology=Topology(places, places, 1, 1.0, 1.0))
    texts = [plan.explain("w", rank) for rank in (3, 4)]
    assert "is one of 2 holders of domain 0 (ranks 0, 2), which share it out" in texts[0]
    assert "rank 1 is the only holder of domain 1, one of 3 in all" in texts[1]


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


def test_what_becomes_of_a_value_is_said():
    assert explanations(make_plan([SRC], [DST]), "w", 1)[0].elementwise is None
    part = Part("w", elementwise=Elementwise(offset=-1))
    src = TensorSpec("w", (4, 6), "float32", SRC.layout, part)
    plan = make_plan([src], [DST])
    assert explanations(plan, "w", 1)[0].elementwise == "x - 1"
    assert "float32 on the wire, changed: x - 1\n" in plan.explain("w", 1)
    assert ", x - 1, " in plan.describe()
