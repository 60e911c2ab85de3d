"""The timing model by hand: one link, one card, rounds, messages."""

from __future__ import annotations

import dataclasses

import pytest

from reshard.loads import Loads
from reshard.timing import Platform, busiest_link, link_loads, predict, predict_gather_and_broadcast
from reshard.topology import Topology

# Rank 0 is in one domain, ranks 1 and 2 in another; cards of 10 and links of 100 bytes a second.
TOPOLOGY = Topology((0, 1, 1), (0, 1, 1), 2, 10.0, 100.0, "tiny")
PLATFORM = Platform("tiny", 0.5, 0.8, 2.0, 0.25, 40.0)


NOTHING = (0, 0, 0)


def loads(
    *,
    network_sent=NOTHING,
    network_received=NOTHING,
    link_sent=NOTHING,
    forwarded=NOTHING,
    network_forwarded=NOTHING,
):
    received = tuple(reversed(link_sent))
    sent = network_sent, network_received, link_sent, received
    return Loads((0, 1, 2), *sent, forwarded, network_forwarded, NOTHING)


def test_a_rank_has_its_share_of_the_cards_of_its_host():
    """Host 0 has two cards for one rank, host 1 two for two."""
    assert busiest_link(loads(network_sent=(100, 0, 0)), TOPOLOGY) == (5.0, "card out of rank 0")
    assert busiest_link(loads(network_received=(0, 100, 0)), TOPOLOGY) == (
        10.0,
        "card into rank 1",
    )


def test_links_and_cards_work_side_by_side():
    both = loads(network_sent=(100, 0, 0), link_sent=(0, 0, 900))
    assert busiest_link(both, TOPOLOGY) == (9.0, "link into rank 0")


def test_a_platform_reaches_a_part_of_the_rates():
    both = loads(network_sent=(100, 0, 0), link_sent=(0, 0, 720))
    assert busiest_link(both, TOPOLOGY, PLATFORM)[0] == 10.0
    assert busiest_link(loads(link_sent=(0, 0, 720)), TOPOLOGY, PLATFORM)[0] == 9.0


def test_every_rank_has_links_and_cards_both_ways():
    each = list(link_loads(loads(network_received=(0, 100, 0), link_sent=(0, 0, 7)), TOPOLOGY))
    assert len(each) == 4 * 3
    moving = [(load.is_network, load.name, load.nbytes) for load in each if load.nbytes]
    assert moving == [
        (False, "link into rank 0", 7),
        (True, "card into rank 1", 100),
        (False, "link out of rank 2", 7),
    ]


def test_nothing_takes_no_time():
    assert busiest_link(loads(), TOPOLOGY) == (0.0, "nothing moves between ranks")


def test_slots_and_hops_add_to_the_bytes():
    found = predict(
        loads(network_sent=(100, 50, 0), forwarded=(0, 50, 0), network_forwarded=(0, 50, 0)),
        TOPOLOGY,
        PLATFORM,
        num_rounds=5,
        num_hops=3,
        num_messages=1,
    )
    assert found.busy_seconds == 10.0
    assert found.num_slots == 7
    passing = 50 / topology_rate(1)
    assert found.fill_seconds == pytest.approx(passing * 2 / 5)
    assert found.slot_seconds == 7 * 2.0
    assert found.seconds == pytest.approx(10.0 + passing * 2 / 5 + 14.0)
    assert found.share_of(found.seconds / 4) == 0.25


def topology_rate(rank):
    return TOPOLOGY.network_rate((rank,)) * PLATFORM.network_share


def test_what_is_passed_on_inside_a_domain_goes_over_its_links():
    """The card is busy for 10 s, but the last round waits for a link that is busy for 1."""
    found = predict(
        loads(network_sent=(100, 0, 0), link_sent=(0, 80, 0), forwarded=(0, 80, 0)),
        TOPOLOGY,
        PLATFORM,
        num_rounds=5,
        num_hops=2,
        num_messages=1,
    )
    assert found.busy_seconds == 10.0
    assert found.fill_seconds == pytest.approx(80 / (100 * PLATFORM.link_share) / 5)


def test_many_messages_take_longer_than_few_bytes():
    found = predict(
        loads(network_sent=(100, 0, 0)),
        TOPOLOGY,
        PLATFORM,
        num_rounds=5,
        num_hops=1,
        num_messages=100,
    )
    assert (found.busy_seconds, found.busiest) == (125.0, "posting messages")


def test_the_conventional_way_goes_through_all_bytes():
    assert predict_gather_and_broadcast(80, PLATFORM) == 2.0
    assert predict_gather_and_broadcast(80, Platform.of(TOPOLOGY)) is None


@pytest.mark.parametrize("make", [Topology.dgx_h100, Topology.gb200_nvl72, Topology.one_host])
def test_each_ready_made_topology_has_constants(make):
    assert Platform.of(make(8)).name == make(8).name


def test_an_unknown_kind_takes_the_constants_of_hosts_of_gpus():
    known = Platform.of(Topology.dgx_h100(8))
    assert Platform.of(TOPOLOGY) == dataclasses.replace(
        known, name="tiny", gathered_bytes_per_second=None
    )
