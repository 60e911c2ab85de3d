"""Sums of one rank per peer and per kind of link, against its transfers."""

from __future__ import annotations

import pytest

from reshard import Layout, Mesh, PlanError, Replicate, Shard, TensorSpec, make_plan
from reshard.peer_sums import PeerSum, Total, peer_sums, totals
from reshard.topology import Topology

ROWS = Layout(Mesh.of(x=2), (Shard(0),))
EVERYWHERE = Layout.replicated(Mesh.of(x=4))
# Rank 0 is alone; 1 shares a domain with it as a destination; 2 to 5 have one of their own.
TOPOLOGY = Topology((0, 0, 1, 1, 1, 1), (0, 0, 1, 1, 1, 1), 1, 1.0, 1.0)


def spec(name, layout, shape=(512, 512)):
    return TensorSpec(name, shape, "float32", layout)


def small_plan(**options):
    names = ("v", "w")
    src = [spec(name, ROWS) for name in names]
    dst = [spec(name, EVERYWHERE).shifted(2) for name in names]
    return make_plan(src, dst, **options)


@pytest.mark.parametrize("topology", [None, TOPOLOGY])
@pytest.mark.parametrize("name", [None, "w"])
def test_sums_are_those_of_the_transfers(topology, name):
    plan = small_plan(topology=topology)
    for rank in plan.ranks:
        for verb, transfers in (("sends", plan.sends(rank)), ("receives", plan.receives(rank))):
            mine = [t for t in transfers if name in (None, plan.pairs[t.pair].name)]
            found = [each for each in peer_sums(plan, rank, name) if each.verb == verb]
            ends = [t.dst_rank if verb == "sends" else t.src_rank for t in mine]
            assert {each.peer for each in found} == set(ends)
            for each in found:
                of_peer = [t for t, end in zip(mine, ends, strict=True) if end == each.peer]
                assert each.nbytes == sum(plan.nbytes(t) for t in of_peer)
                assert each.pairs == {t.pair for t in of_peer}


def test_links_follow_from_the_places():
    links = {each.peer: each.link for each in peer_sums(small_plan(topology=TOPOLOGY), 3)}
    assert {links[peer] for peer in (0, 1)} == {"network"}
    assert {links[peer] for peer in (2, 4, 5)} == {"inside the domain"}
    assert {each.link for each in peer_sums(small_plan(), 3)} == {None}


def test_what_stays_on_a_rank_is_no_transfer():
    plan = make_plan([spec("w", ROWS)], [spec("w", ROWS)])
    assert peer_sums(plan, 1) == [PeerSum("copies", 1, "same rank", frozenset({0}), 256 * 512 * 4)]


def test_the_most_bytes_come_first():
    src = [spec("w", Layout(Mesh.of(x=2), (Shard(0),)), shape=(3, 512))]
    dst = [spec("w", Layout(Mesh.of(x=1), (Replicate(),)), shape=(3, 512)).shifted(2)]
    assert [each.peer for each in peer_sums(make_plan(src, dst), 2)] == [0, 1]


def test_totals_count_a_tensor_once():
    sums = [
        PeerSum("receives", 1, "network", frozenset({0, 1}), 10),
        PeerSum("receives", 2, "network", frozenset({1}), 5),
        PeerSum("receives", 4, "inside the domain", frozenset({1}), 7),
        PeerSum("copies", 3, "same rank", frozenset({2}), 1),
    ]
    assert totals(sums) == [
        Total("receives", "network", 2, 2, 15),
        Total("receives", "inside the domain", 1, 1, 7),
        Total("receives", None, 3, 2, 22),
        Total("copies", "same rank", 1, 1, 1),
        Total("copies", None, 1, 1, 1),
    ]


def test_unknown_names_and_ranks():
    with pytest.raises(PlanError, match="called 'x'"):
        peer_sums(small_plan(), 0, "x")
    with pytest.raises(PlanError, match="no rank of this plan is 9"):
        peer_sums(small_plan(), 9)
