"""The document of a plan: sums that agree with the plan, kinds, runs of ranks."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import tiny_model

from reshard import Parallelism, PlanError, make_plan
from reshard.loads import find_loads
from reshard.plan_summary import FORMAT, kind_of_name, ranks_as_runs, summarize
from reshard.topology import Topology


def plan_of(topology=None, **options):
    model = tiny_model()
    src = Parallelism.parse(model.trainer).specs(model)
    dst = Parallelism.parse(model.generator).specs(model, first_rank=4)
    return make_plan(src, dst, topology=topology, **options)


@pytest.mark.parametrize("topology", [None, Topology.dgx_h100(8), Topology.one_host(8)])
def test_sums_are_those_of_the_transfers(topology):
    plan = plan_of(topology)
    document = json.loads(plan.to_json())
    moved = [t for t in plan.transfers() if t.src_rank != t.dst_rank]
    assert document["format"] == FORMAT
    assert document["digest"] == plan.digest
    assert document["moved_bytes"] == sum(map(plan.nbytes, moved))
    by_kind = {kind["name"]: kind for kind in document["kinds"]}
    for name, kind in by_kind.items():
        own = [t for t in moved if kind_of_name(plan.pairs[t.pair].name) == name]
        assert kind["moved_bytes"] == sum(map(plan.nbytes, own))
        assert kind["forwarded_bytes"] == sum(plan.nbytes(t) for t in own if t.hop)
    assert sum(kind["num_tensors"] for kind in by_kind.values()) == len(plan.pairs)
    loads = document["loads"]
    for position, rank in enumerate(loads["ranks"]):
        sent = sum(plan.nbytes(t) for t in moved if t.src_rank == rank)
        found = loads["network_sent_bytes"][position] + loads["link_sent_bytes"][position]
        assert found == sent


def test_kinds_that_share_their_geometry_are_told_apart():
    names = [kind["name"] for kind in summarize(plan_of())["kinds"]]
    assert len(names) == len(set(names)) == 4


def test_equal_plans_have_equal_documents():
    assert plan_of().to_json() == plan_of().to_json()


def test_a_plan_that_cannot_run_has_no_document():
    with pytest.raises(PlanError, match="too small"):
        plan_of(staging_bytes=4096).to_json()


def test_loads_of_all_kinds_are_all_loads():
    plan = plan_of(Topology.dgx_h100(8))
    planner = plan.planner
    parts = [find_loads(planner, plan.topology, [kind]) for kind in planner.kinds]
    total = find_loads(planner, plan.topology)
    assert total.sent == tuple(map(sum, zip(*[part.sent for part in parts], strict=True)))
    assert total.received == tuple(map(sum, zip(*[part.received for part in parts], strict=True)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layers.3.mlp.experts.17.up_proj.weight", "layers.*.mlp.experts.*.up_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("conv1d.fc2.weight", "conv1d.fc2.weight"),
        ("3.w", "3.w"),
    ],
)
def test_kinds_of_names(name, kind):
    assert kind_of_name(name) == kind


@pytest.mark.parametrize(
    ("ranks", "runs"), [([], []), ([3], [[3, 3]]), ([0, 1, 4, 6, 7], [[0, 1], [4, 4], [6, 7]])]
)
def test_runs_of_ranks(ranks, runs):
    assert ranks_as_runs(ranks) == runs
