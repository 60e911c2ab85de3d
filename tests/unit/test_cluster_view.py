"""What a plan says about a whole cluster."""

from __future__ import annotations

import pytest

from reshard import Layout, Mesh, PlanError, Replicate, Shard, TensorSpec, Topology, make_plan

R = Replicate()
NUM_LAYERS = 8


def plan_of(topology, dtype="bfloat16", staging_bytes=64 << 20, **options):
    src = Layout(Mesh.of(fsdp=8), (Shard(0),))
    dst = Layout(Mesh.of(dp=2, tp=8), (R, Shard(1))).shifted(8)
    sides = [
        [TensorSpec(f"w{i}", (4096, 4096), dtype, layout) for i in range(NUM_LAYERS)]
        for layout in (src, dst)
    ]
    return make_plan(*sides, topology=topology, staging_bytes=staging_bytes, **options)


def test_each_byte_enters_each_domain_once_and_cards_of_all_hosts_share_the_sending():
    view = plan_of(Topology.dgx_h100(24)).view
    nbytes = NUM_LAYERS * 4096 * 4096 * 2
    assert view.floor.crossing == view.loads.crossing == 2 * nbytes
    assert view.floor.seconds == nbytes / 400e9
    # The trainer's domain would be busy twice as long if it served both domains itself.
    assert view.busy_seconds <= 1.01 * view.floor.seconds
    assert view.direct.busy_seconds > 1.9 * view.prediction.busy_seconds


def test_what_tensors_stand_for_does_not_move():
    plain, larger = (plan_of(Topology.dgx_h100(24), times_larger=n).view for n in (1, 5))
    assert plain.floor == larger.floor
    assert plain.loads.delivered == larger.loads.delivered


def test_a_prediction_is_never_below_the_floor():
    view = plan_of(Topology.dgx_h100(24)).view
    assert view.floor.seconds <= view.busy_seconds <= view.prediction.seconds
    assert 0 < view.share_of_floor <= view.busy_share_of_floor <= 1


def test_less_memory_for_chunks_takes_more_rounds():
    few, many = (plan_of(Topology.dgx_h100(24), staging_bytes=n).view for n in (1 << 30, 1 << 20))
    assert few.pace.num_rounds < many.pace.num_rounds
    assert few.prediction.seconds < many.prediction.seconds


def test_without_a_topology_there_is_no_time():
    with pytest.raises(PlanError, match=r"Give make_plan\(..., topology=\)"):
        _ = plan_of(None).view


def test_a_plan_prints_its_floor_and_its_share():
    text = plan_of(Topology.dgx_h100(24)).describe()
    assert "dgx-h100: 512 MiB into domains (512 MiB at least), 2 hops" in text
    assert "of which the floor is " in text
    assert "dgx-h100" not in plan_of(None).describe()


def slow_links(num_ranks, link, per_host=8):
    hosts = tuple(rank // per_host for rank in range(num_ranks))
    return Topology(hosts, hosts, per_host, 50e9, link, "dgx-h100")


@pytest.mark.parametrize("link", [450e9, 64e9, 50e9, 40e9, 25e9, 12e9, 1e9])
@pytest.mark.parametrize("num_holders", [1, 8], ids=["busy holders", "many holders"])
def test_no_plan_is_much_slower_than_holders_alone(link, num_holders):
    """Ranks exchange stripes where that is sooner than to get all of it over the cards."""
    src = Layout(Mesh.of(dp=num_holders), (R,))
    dst = Layout(Mesh.of(dp=8, tp=2), (R, Shard(0))).shifted(8)
    sides = [[TensorSpec("w", (1 << 15, 1 << 15), "uint8", each)] for each in (src, dst)]
    plan = make_plan(*sides, topology=slow_links(24, link))
    assert plan.view.prediction.seconds <= 1.05 * plan.view.direct.seconds
    # Four ranks of a domain want each half, so three quarters of it would come over the links;
    # and holders that serve two domains are so many times as busy as the cards of those.
    load = 2 * 8 / num_holders
    assert (plan.num_hops > 1) == (link * load >= 50e9 * 3 / 4)


@pytest.mark.parametrize("link", [0.01, 0.1, 0.5, 1.0, 1.9])
@pytest.mark.parametrize("case", ["a holder nearby", "widened", "uneven"])
def test_slow_links_are_not_relied_on(case, link):
    """One of many holders shares a domain; what is exchanged is wider; few ranks want much."""
    dtypes = ("float8_e4m3fn", "float32") if case == "widened" else ("bfloat16",) * 2
    shape = (2, 1 << 26) if case == "uneven" else (1 << 12, 1 << 12)
    if case == "a holder nearby":
        src, dst = Layout.replicated(Mesh.of(x=65)), Layout.replicated(Mesh.of(x=1)).shifted(65)
        domains = (0,) * 64 + (1, 1)
    elif case == "widened":
        src, dst = Layout.replicated(Mesh.of(x=4)), Layout.replicated(Mesh.of(x=2)).shifted(4)
        domains = (0, 0, 0, 0, 1, 1)
    else:
        src = Layout.replicated(Mesh.of(x=4))
        dst = Layout(Mesh.of(tp=64, dp=2), (Shard(0), R)).shifted(4)
        domains = (500, 501, 502, 503, *[rank // 8 for rank in range(128)])
    topology = Topology(tuple(range(len(domains))), domains, 1, 50e9, link * 50e9, "dgx-h100")
    plan = make_plan(
        [TensorSpec("w", shape, dtypes[0], src)],
        [TensorSpec("w", shape, dtypes[1], dst)],
        casts=[dtypes] if case == "widened" else (),
        topology=topology,
    )
    assert plan.view.prediction.seconds <= 1.05 * plan.view.direct.seconds


def test_what_a_plan_is_compared_with_may_need_more_memory():
    """One holder serves all by itself in the plan that nobody carries out."""
    src = [
        TensorSpec(f"w{i}", (1 << 20,), "bfloat16", Layout.replicated(Mesh.of(x=1))) for i in "ab"
    ]
    everyone = Layout.replicated(Mesh.of(x=255)).shifted(1)
    dst = [TensorSpec(spec.name, spec.shape, "bfloat16", everyone) for spec in src]
    topology = Topology.dgx_h100(256)
    with pytest.raises(PlanError, match="give at least") as caught:
        _ = make_plan(src, dst, topology=topology, staging_bytes=8).view
    least = int(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    view = make_plan(src, dst, topology=topology, staging_bytes=least).view
    assert view.pace.num_rounds > 1
    assert view.direct.seconds > view.prediction.busy_seconds


def test_numbers_of_domains_and_hosts_are_any_whole_numbers():
    sides = [
        [TensorSpec("w", (64, 64), "uint8", Layout.replicated(Mesh.of(x=1)).shifted(first))]
        for first in (0, 1)
    ]
    seconds = {
        make_plan(*sides, topology=Topology(places, places, 1, 1.0, 1.0)).view.floor.seconds
        for places in ((0, 1), (-1, 0), (10**12, -(10**12)))
    }
    assert seconds == {64 * 64.0}
