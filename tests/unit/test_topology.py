"""Where ranks are: ready-made clusters, what hosts can send, and texts that give them back."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard import LayoutError
from reshard.topology import Topology

RATES = st.floats(min_value=1e-3, max_value=1e15)


@st.composite
def topologies(draw):
    count = draw(st.integers(1, 12))
    numbers = st.lists(st.integers(0, 5), min_size=count, max_size=count).map(tuple)
    return Topology(
        draw(numbers),
        draw(numbers),
        draw(st.integers(1, 8)),
        draw(RATES),
        draw(RATES),
        draw(st.text(max_size=8)),
    )


def places_of(topology, *ranks):
    return [(topology.hosts[rank], topology.domains[rank]) for rank in ranks]


def test_hosts_of_eight_are_domains():
    topology = Topology.dgx_h100(20)
    assert (topology.num_ranks, topology.num_domains) == (20, 3)
    assert places_of(topology, 0, 7, 8, 19) == [(0, 0), (0, 0), (1, 1), (2, 2)]
    assert topology.network_rate(range(8)) == 8 * 50e9


def test_a_rack_of_trays_of_four_is_a_domain():
    topology = Topology.gb200_nvl72(144)
    assert topology.num_domains == 2
    assert places_of(topology, 3, 4, 71, 72) == [(0, 0), (1, 0), (17, 0), (18, 1)]
    assert set(topology.hosts) == set(range(36))
    assert topology.network_rate(range(72)) == pytest.approx(72 * 50e9)


def test_of_a_rack_only_some_may_be_used():
    topology = Topology.gb200_nvl72(128, ranks_per_domain=64)
    assert topology.domains == (0,) * 64 + (1,) * 64
    assert len(set(topology.hosts[:64])) == 16
    assert set(topology.hosts[:64]).isdisjoint(topology.hosts[64:])


def test_racks_share_no_host_however_few_of_their_gpus_are_used():
    topology = Topology.gb200_nvl72(12, ranks_per_domain=6)
    assert topology.domains == (0,) * 6 + (1,) * 6
    assert topology.hosts == (0, 0, 0, 0, 1, 1, 18, 18, 18, 18, 19, 19)


def test_one_host_is_one_domain():
    topology = Topology.one_host(5, bytes_per_second=3e9)
    assert topology.num_domains == 1
    assert topology.link_bytes_per_second == 3e9


def test_a_domain_may_span_hosts_and_a_host_may_have_several():
    assert Topology((0, 1), (0, 0), 1, 1.0, 1.0).num_domains == 1
    assert Topology((0, 0), (0, 7), 1, 1.0, 1.0).num_domains == 2


def test_places_with_equal_names_are_the_same():
    places = [("b", "rack"), ("a", "rack"), ("b", "rack"), ("c", "other")]
    topology = Topology.of_places(
        places, nics_per_host=2, nic_bytes_per_second=3.0, link_bytes_per_second=4.0
    )
    assert topology == Topology((0, 1, 0, 2), (0, 0, 0, 1), 2, 3.0, 4.0, "discovered")


def test_names_of_hosts_and_domains_do_not_mix():
    """A host that is its own domain may use one name for both."""
    topology = Topology.of_places(
        [("x", "y"), ("y", "x"), ("y", "y")],
        nics_per_host=1,
        nic_bytes_per_second=1.0,
        link_bytes_per_second=1.0,
    )
    assert topology.hosts == (0, 1, 1)
    assert topology.domains == (0, 1, 0)


@given(topologies(), st.data())
def test_all_ranks_together_send_at_the_rate_of_all_cards(topology, data):
    """And parts of them in proportion, whatever order they are asked in."""
    ranks = list(range(topology.num_ranks))
    own = topology.nics_per_host * topology.nic_bytes_per_second
    assert topology.network_rate(ranks) == pytest.approx(own * len(set(topology.hosts)))
    chosen = data.draw(st.permutations(ranks))
    cut = data.draw(st.integers(0, len(ranks)))
    parts = topology.network_rate(chosen[:cut]) + topology.network_rate(chosen[cut:])
    assert parts == pytest.approx(topology.network_rate(ranks))
    assert topology.network_rate(()) == 0.0


def test_cards_of_a_host_are_shared_by_its_ranks():
    topology = Topology((0, 0, 0, 0, 1), (0, 0, 1, 1, 2), 2, 10.0, 1.0)
    assert topology.network_rate([0]) == 5.0
    assert topology.network_rate([0, 3]) == 10.0
    assert topology.network_rate([4]) == 20.0


@given(topologies())
def test_text_gives_the_same_topology(topology):
    assert eval(repr(topology), {"Topology": Topology}) == topology
    text = topology.to_json()
    assert "\n" not in text
    assert Topology.from_json(text) == topology
    assert hash(Topology.from_json(text)) == hash(topology)
    assert Topology.from_json(text).to_json() == text


def test_a_text_may_leave_out_the_name():
    text = json.dumps(
        {
            "hosts": [0, 1],
            "domains": [0, 0],
            "nics_per_host": 1,
            "nic_bytes_per_second": 2.5,
            "link_bytes_per_second": 1,
        }
    )
    assert Topology.from_json(text) == Topology((0, 1), (0, 0), 1, 2.5, 1, "custom")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not an object with the fields domains, hosts"),
        ('{"racks": []}', "not an object with the fields domains, hosts"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(LayoutError, match=message):
        Topology.from_json(text)


GOOD = Topology((0, 1), (0, 1), 1, 1.0, 1.0, "lab")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 3}, "hosts is 3. Give a list"),
        ({"domains": None}, "domains is None. Give a list"),
        ({"nics_per_host": "8"}, "nics_per_host='8' is text. Give a whole number"),
        ({"nics_per_host": 1.5}, "nics_per_host=1.5 is not a whole number. Give"),
        ({"nics_per_host": True}, "nics_per_host=True is not a whole number. Give"),
        ({"nics_per_host": 0}, "nics_per_host=0 is not above 0. Give a whole number above 0"),
        ({"nic_bytes_per_second": None}, "nic_bytes_per_second=None is not a finite number"),
        ({"link_bytes_per_second": "9e11"}, "link_bytes_per_second='9e11' is text. Give a finite"),
        ({"hosts": "ab"}, "hosts has 'a' for rank 0. Give a whole number per rank"),
        ({"hosts": [[0], [1]]}, r"hosts has \[0\] for rank 0. Give"),
        ({"hosts": [0, 0.5]}, "hosts has 0.5 for rank 1. Give"),
        ({"racks": 3}, "with the fields domains, .*; it has 'racks'. Write it"),
    ],
    ids=str,
)
def test_texts_with_wrong_values_are_refused(changes, message):
    with pytest.raises(LayoutError, match=message):
        Topology.from_json(json.dumps({**json.loads(GOOD.to_json()), **changes}))


@pytest.mark.parametrize("name", ["hosts", "domains", "nics_per_host", "link_bytes_per_second"])
def test_texts_that_lack_a_field_are_refused(name):
    given_ = json.loads(GOOD.to_json())
    del given_[name]
    with pytest.raises(LayoutError, match=f"; it lacks {name}\\. Write it"):
        Topology.from_json(json.dumps(given_))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domains": (0,)}, "has hosts of 2 and domains of 1 ranks. Give one of each per rank"),
        ({"hosts": (), "domains": ()}, "has hosts of 0 and domains of 0 ranks"),
        ({"nics_per_host": 0}, "nics_per_host=0 is not above 0"),
        ({"nic_bytes_per_second": -1.0}, r"nic_bytes_per_second=-1\.0 is not above 0"),
        (
            {"link_bytes_per_second": float("nan")},
            "link_bytes_per_second=nan is not a finite number",
        ),
    ],
)
def test_what_is_no_cluster_is_refused(changes, message):
    with pytest.raises(LayoutError, match=message):
        dataclasses.replace(GOOD, **changes)
