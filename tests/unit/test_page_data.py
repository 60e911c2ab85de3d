"""The data of a page: its sums are those of the plan, its names and boxes too."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from helpers.page_sums import expand_runs, names_in, streams_of_tensors, sums_of
from helpers.topologies import min_stripe_bytes, placed_problems
from hypothesis import given

from reshard import (
    Layout,
    Mesh,
    Model,
    Parallelism,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
)
from reshard.loads import find_loads
from reshard.logical_space import pieces_of_rank
from reshard.page import make_page
from reshard.page.name_groups import split_name
from reshard.page.page_data import make_page_data
from reshard.topology import Topology


def plan_of(model="qwen3-235b", trainer="pp2,ep16", generator="tp8,dp4", topology=True):
    model = Model.load(model)
    sides = Parallelism.parse(trainer), Parallelism.parse(generator)
    first = sides[0].num_ranks
    where = Topology.dgx_h100(first + sides[1].num_ranks) if topology else None
    return make_plan(sides[0].specs(model), sides[1].specs(model, first), topology=where)


@given(placed_problems())
def test_sums_are_those_of_the_transfers(placed):
    with min_stripe_bytes(placed.stripe_bytes):
        problem = placed.problem
        plan = make_plan(problem.src, problem.dst, topology=placed.topology)
        data = make_page_data(plan, title="drawn")
        transfers: Counter[tuple[str, int, int, int]] = Counter()
        for each in plan.transfers():
            name = plan.pairs[each.pair].name
            transfers[name, each.hop, each.src_rank, each.dst_rank] += plan.nbytes(each)
    found: Counter[tuple[str, int, int, int]] = Counter()
    for name, hop, src, dst, nbytes in streams_of_tensors(data):
        # A tensor with its own elements at later hops counts them where they are read from.
        found[name, hop, src, dst] += nbytes
    assert +found == +transfers
    assert data["figures"]["numHops"] == plan.num_hops


@given(placed_problems())
def test_boxes_are_those_that_ranks_hold(placed):
    problem = placed.problem
    plan = make_plan(problem.src, problem.dst, topology=placed.topology)
    data = make_page_data(plan, title="drawn")
    ranks = [expand_runs(flat) for flat in data["rankLists"]]
    pairs = {pair.name: pair for pair in plan.pairs}
    for name, kind, _, _ in names_in(data):
        geometry, pair = data["geometries"][kind["geometry"]], pairs[name]
        for role, spec, side in (
            ("src", pair.src, pair.geometry.src),
            ("dst", pair.dst, pair.geometry.dst),
        ):
            assert ranks[kind[role]] == list(spec.layout.ranks)
            for position, region in enumerate(geometry[role]["held"]):
                rank = side.layout.ranks[position]
                pieces = pieces_of_rank(side, len(geometry["shape"]), rank)
                flat = [bound for piece in pieces for bound in (*piece.start, *piece.stop)]
                assert geometry[role]["regions"][region] == flat


@pytest.mark.parametrize("topology", [True, False])
def test_sums_of_a_model_are_its_streams_and_loads(topology):
    plan = plan_of(topology=topology)
    data = make_page_data(plan, title="qwen3")
    streams: Counter[tuple[int, int]] = Counter()
    for (_, src, dst), nbytes in sums_of(data).items():
        if src != dst:
            streams[src, dst] += nbytes
    assert streams == plan.stream_bytes()
    loads = find_loads(plan.planner, plan.topology)
    figures = data["figures"]
    assert expand_runs(figures["ranks"]) == list(plan.ranks)
    busiest = (plan.view.busiest, plan.view.busy_seconds) if topology else ("", None)
    assert (figures["busiestLink"], figures["busySeconds"]) == busiest
    assert figures["networkSent"] == list(loads.network_sent)
    assert figures["linkReceived"] == list(loads.link_received)
    rounds = plan.view.pace if topology else plan.schedule
    assert figures["numRounds"] == rounds.num_rounds
    assert data["numTensors"] == len(plan.pairs)
    assert {name for name, *_ in names_in(data)} == {pair.name for pair in plan.pairs}


def test_a_rank_on_both_sides_copies_in_place():
    mesh = Mesh.of(tp=2)
    src = TensorSpec("w", (4, 6), "float32", Layout(mesh, Shard(0)))
    dst = TensorSpec("w", (4, 6), "float32", Layout(mesh, Shard(1)))
    data = make_page_data(make_plan([src], [dst]), title="both")
    assert sums_of(data) == {(0, 0, 0): 24, (0, 0, 1): 24, (0, 1, 0): 24, (0, 1, 1): 24}
    assert data["figures"]["copied"] == [24, 24]
    assert data["topology"] is None
    assert data["figures"]["floor"] is None


def test_tensors_without_dims_and_without_elements():
    mesh = Mesh.of(dp=2)
    specs = [
        TensorSpec("scale", (), "float32", Layout(mesh, Replicate())),
        TensorSpec("none", (0, 3), "float32", Layout(mesh, Shard(0))),
    ]
    plan = make_plan(specs, [spec.shifted(2) for spec in specs], topology=Topology.dgx_h100(4))
    data = make_page_data(plan, title="small")
    assert sum(sums_of(data).values()) == 8
    assert [geometry["shape"] for geometry in data["geometries"]] == [[], [0, 3]]
    assert "<title>small</title>" in make_page(plan, title="small")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.11.up_proj.weight", ("model.layers.*.up_proj.weight", (11,))),
        ("3.weight", ("*.weight", (3,))),
        ("a.0.b.12", ("a.*.b.*", (0, 12))),
        ("w1.weight", ("w1.weight", ())),
        ("layers.07.w", ("layers.07.w", ())),
        ("odd*.3.w", ("odd*.3.w", ())),
    ],
)
def test_names_that_differ_in_numbers_share_a_template(name, expected):
    assert split_name(name) == expected


class _Reader(HTMLParser):
    """Collects what a page refers to, and its data."""

    def __init__(self):
        super().__init__()
        self.addresses, self.data, self.policy, self.num_scripts = [], "", "", 0
        self._is_data = False

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.addresses += [attributes[key] for key in ("src", "href") if key in attributes]
        self._is_data = attributes.get("id") == "plan-data"
        self.num_scripts += tag == "script"
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]

    def handle_data(self, data):
        if self._is_data:
            self.data += data

    def handle_endtag(self, tag):
        self._is_data = False


def test_the_page_refers_to_nothing_and_no_name_ends_its_data():
    evil = "</script><script>alert(1)</script><!--"
    mesh = Mesh.of(tp=2)
    src = TensorSpec(evil, (4, 6), "float32", Layout(mesh, Shard(0)))
    dst = TensorSpec(evil, (4, 6), "float32", Layout(mesh, Shard(1)))
    plan = make_plan([src], [dst.shifted(2)])
    page = make_page(plan, title=f"{{{{data}}}} & {evil}")
    reader = _Reader()
    reader.feed(page)
    assert reader.num_scripts == 2
    assert [address for address in reader.addresses if not address.startswith("#")] == []
    assert reader.policy.startswith("default-src 'none'; style-src 'sha256-")
    data = json.loads(reader.data)
    assert data == make_page_data(plan, title=data["title"])
    assert data["templates"] == [evil]
    assert not re.search(r"@import|url\(", page.split("</style>")[0])


def test_equal_plans_give_equal_pages():
    assert make_page(plan_of(), title="x") == make_page(plan_of(), title="x")
