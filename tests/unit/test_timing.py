"""The timing model by hand: one link, one card, rounds, messages."""

from __future__ import annotations

import pytest

from reshard.loads import Loads
from reshard.timing import Platform, busiest_link, link_loads, predict, predict_gather_and_broadcast
from reshard.topology import Topology

# Rank 0 is in one domain, ranks 1 and 2 in another; cards of 10 and links of 100 bytes a second.
TOPOLOGY = Topology((0, 1, 1), (0, 1, 1), 2, 10.0, 100.0, "tiny")
PLATFORM = Platform("tiny", 0.5, 0.8, 2.0, 0.25, 40.0)


def loads(*, network_sent=(0, 0, 0), network_received=(0, 0, 0), link_sent=(0, 0, 0)):
    received = tuple(reversed(link_sent))
    nothing = (0, 0, 0)
    return Loads((0, 1, 2), network_sent, network_received, link_sent, received, nothing, nothing)


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
        loads(network_sent=(100, 0, 0)),
        TOPOLOGY,
        PLATFORM,
        num_rounds=5,
        num_hops=3,
        num_messages=1,
    )
    assert found.busy_seconds == 10.0
    assert found.num_slots == 7
    assert found.fill_seconds == 10.0 * 2 / 5
    assert found.slot_seconds == 7 * 2.0
    assert found.seconds == 10.0 + 4.0 + 14.0
    assert found.share_of(7.0) == 0.25


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


@pytest.mark.parametrize("make", [Topology.dgx_h100, Topology.gb200_nvl72, Topology.one_host])
def test_each_ready_made_topology_has_constants(make):
    assert Platform.of(make(8)).name == make(8).name


def test_an_unknown_kind_takes_the_constants_of_hosts_of_gpus():
    assert Platform.of(TOPOLOGY) == Platform("tiny", *_values(Platform.of(Topology.dgx_h100(8))))


def _values(platform):
    return [getattr(platform, name) for name in Platform.__slots__[1:]]
