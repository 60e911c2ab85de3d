"""Where the sides of pairs are: which pairs lie alike, and how many domains holders serve."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from reshard import Layout, Mesh, Replicate, Shard, TensorSpec, match
from reshard.kinds import kinds_of
from reshard.place_table import PlaceTable
from reshard.places import DeliveryTable, Places
from reshard.topology import Topology

R = Replicate()


def replicated(*ranks):
    return Layout(Mesh(("x",), (len(ranks),), ranks), (R,))


def pairs_of(*sides, shape=(64,)):
    """Returns one pair per (source layout, destination layout)."""
    src = [TensorSpec(f"w{i}", shape, "uint8", own) for i, (own, _) in enumerate(sides)]
    dst = [TensorSpec(f"w{i}", shape, "uint8", own) for i, (_, own) in enumerate(sides)]
    return match(src, dst)


def in_domains(*domains, hosts=None):
    return Topology(hosts or tuple(range(len(domains))), domains, 1, 1.0, 1.0)


def look_up(topology, *sides):
    return places_of(topology, pairs_of(*sides))


def places_of(topology, pairs):
    """Returns what a table says of each pair."""
    kinds = kinds_of(pairs)
    table = PlaceTable(topology, kinds)
    found = {number: table.of(kind) for kind in kinds for number in kind.numbers}
    return [found[number] for number in range(len(pairs))]


def test_without_a_topology_there_is_nothing_to_know():
    sides = (replicated(0, 1), replicated(2, 3)), (replicated(4), replicated(5, 6))
    assert look_up(None, *sides) == [(0, None), (0, None)]


@pytest.mark.parametrize("topology", [in_domains(*(3,) * 8), Topology.one_host(8)])
def test_in_one_domain_all_places_are_the_same(topology):
    (_, places), _ = look_up(
        topology, (replicated(0, 1), replicated(2, 3)), (replicated(4), replicated(5, 6))
    )
    assert len({*places.src, *places.dst}) == 1


def test_domains_are_by_position_and_not_by_rank():
    topology = in_domains(5, 5, 9, 9)
    (first, _), (second, _) = look_up(
        topology, (replicated(0), replicated(1, 2, 3)), (replicated(0), replicated(3, 2, 1))
    )
    assert first != second


def test_pairs_that_lie_alike_share_a_number():
    """Pipeline stages in racks of their own, each with an engine in a rack of its own."""
    topology = in_domains(0, 0, 1, 1, 2, 2, 3, 3)
    sides = [
        (replicated(0, 1), replicated(4, 5)),
        (replicated(2, 3), replicated(6, 7)),
        (replicated(4, 5), replicated(0, 1)),
    ]
    (first, places), *others = look_up(topology, *sides)
    assert [number for number, _ in others] == [first, first]
    assert all(found is not None and found == places for _, found in others)


def test_pairs_that_lie_differently_do_not():
    topology = in_domains(0, 0, 1, 1, 2, 2)
    ways = {
        "both of one domain to both of another": (replicated(0, 1), replicated(2, 3)),
        "to two domains": (replicated(0, 1), replicated(2, 4)),
        "to a domain that has it": (replicated(0, 1), replicated(0, 2)),
        "to a domain that has it, and in another order": (replicated(0, 1), replicated(2, 0)),
        "within one domain": (replicated(0), replicated(1, 0)),
        "fewer ranks": (replicated(0), replicated(2, 3)),
    }
    numbers = [number for number, _ in look_up(topology, *ways.values())]
    assert len(set(numbers)) == len(ways)


def test_it_does_not_matter_in_which_other_domains_holders_are():
    topology = in_domains(0, 0, 1, 1, 2, 2)
    (one, _), (two, _) = look_up(
        topology, (replicated(0, 1), replicated(4, 5)), (replicated(0, 2), replicated(4, 5))
    )
    assert one == two


def test_domains_of_both_sides_have_one_numbering_where_they_meet():
    ((_, places),) = look_up(in_domains(7, 7, 8, 9), (replicated(0, 2), replicated(1, 2, 3)))
    assert places.src[0] == places.dst[0]
    assert places.src[1] == places.dst[1]
    assert len({*places.src, *places.dst}) == 3


def test_domains_of_sides_that_do_not_meet_are_all_different():
    ((_, places),) = look_up(in_domains(7, 7, 8, 9), (replicated(0, 1), replicated(2, 3)))
    assert places.src[0] == places.src[1]
    assert len({*places.src, *places.dst}) == 3


# ---- how many domains holders serve themselves ---------------------------------------------------


def share_of(num_holders, num_wanting, count=1):
    """Returns the share where every rank is a host and a domain of its own.

    Args:
        num_holders: ranks that hold one tensor.
        num_wanting: ranks that want it.
        count: how many such tensors there are, each with holders of its own.
    """
    sides = [
        (
            replicated(*range(i * num_holders, (i + 1) * num_holders)),
            replicated(*range(1000, 1000 + num_wanting)),
        )
        for i in range(count)
    ]
    found = look_up(in_domains(*range(1000 + num_wanting)), *sides)
    shares = {places.direct for _, places in found}
    assert len(shares) == 1
    return Fraction(*shares.pop())


@pytest.mark.parametrize(
    ("num_holders", "num_wanting", "share"),
    [
        (4, 4, 1),
        (8, 4, 1),
        (50, 51, 1),
        (20, 22, Fraction(10, 11)),
        (2, 4, Fraction(1, 2)),
        (6, 9, Fraction(2, 3)),
        (1, 64, Fraction(1, 64)),
    ],
)
def test_few_holders_serve_as_many_domains_as_keep_all_busy(num_holders, num_wanting, share):
    assert share_of(num_holders, num_wanting) == share


@pytest.mark.parametrize("num_wanting", [400, 511])
def test_the_share_of_very_few_holders_is_the_finest_there_is(num_wanting):
    assert share_of(1, num_wanting) == Fraction(1, 256)


@pytest.mark.parametrize("num_wanting", [513, 1200])
def test_the_fewest_holders_do_not_serve_everybody(num_wanting):
    assert share_of(1, num_wanting) == Fraction(1, 256)


@pytest.mark.parametrize(
    ("nbytes", "share"),
    [
        (10_000, Fraction(1)),  # all are served in 12 us; one step more takes 15
        (100_000, Fraction(25, 73)),  # 128 us, the root of 15 / 128
        (1_000_000, Fraction(1, 9)),
        (100_000_000, Fraction(1, 64)),
    ],
)
def test_few_bytes_are_passed_on_in_few_steps(nbytes, share):
    """A box for 64 domains by one card of 50 GB/s."""
    topology = Topology(tuple(range(65)), tuple(range(65)), 1, 50e9, 450e9)
    pairs = pairs_of((replicated(0), replicated(*range(1, 65))), shape=(nbytes,))
    ((_, places),) = places_of(topology, pairs)
    assert abs(Fraction(*places.direct) / share - 1) < Fraction(1, 30)


def test_holders_that_have_a_part_of_the_bytes_are_less_busy():
    """Four stages of one rank each send a quarter each, so they keep up with four engines."""
    assert share_of(1, 4) == Fraction(1, 4)
    assert share_of(1, 4, count=4) == 1
    assert share_of(1, 8, count=4) == Fraction(1, 2)


@pytest.mark.parametrize(
    "tensors",
    [
        [("large", 3000, "uint8", 0), ("small", 1000, "uint8", 1)],
        [("wide", 1000, "float32", 0), ("a", 1000, "uint8", 1), ("b", 333, "uint8", 1)],
        [("a", 1000, "uint8", 0), ("b", 2000, "uint8", 0), ("small", 1000, "uint8", 1)],
    ],
    ids=["elements", "bytes of one", "several"],
)
def test_all_bytes_of_a_holder_are_counted(tensors):
    """Rank 0 holds three quarters of four engines' bytes, so it can serve a third of them."""
    src = [TensorSpec(name, (n,), dtype, replicated(rank)) for name, n, dtype, rank in tensors]
    dst = [dataclasses.replace(spec, layout=replicated(2, 3, 4, 5)) for spec in src]
    pairs = match(src, dst)
    for pair, (_, places) in zip(pairs, places_of(in_domains(*range(6)), pairs), strict=True):
        is_busy = pair.src.layout.ranks == (0,)
        assert places.direct == ((1, 3) if is_busy else (1, 1))


def test_cards_of_a_host_count_once():
    """One host of holders against two of engines, with two ranks each."""
    topology = in_domains(0, 0, 1, 1, 2, 2, hosts=(0, 0, 1, 1, 2, 2))
    ((_, places),) = look_up(topology, (replicated(0, 1), replicated(2, 3, 4, 5)))
    assert places.direct == (1, 2)


def test_what_is_stored_wider_than_it_is_sent_is_not_passed_on():
    """Of two tensors between the same ranks, the one that is cast goes straight to all domains."""
    topology = in_domains(*range(6))
    layouts = replicated(0), replicated(1, 2, 3, 4, 5)
    sides = [
        [
            TensorSpec(name, (1 << 20,), dtype, layout)
            for name, dtype in zip("ab", dtypes, strict=True)
        ]
        for layout, dtypes in zip(layouts, (("float16",) * 2, ("float16", "float32")), strict=True)
    ]
    pairs = match(*sides, casts=[("float16", "float32")])
    for order in (pairs, pairs[::-1]):
        found = dict(zip([pair.name for pair in order], places_of(topology, order), strict=True))
        assert Fraction(*found["a"][1].direct) < 1
        assert found["b"][1].direct == (1, 1)
        assert found["a"][0] != found["b"][0]


def test_tensors_without_elements_have_places_too():
    pairs = pairs_of((replicated(0), replicated(1, 2)), shape=(0,))
    ((_, places),) = places_of(in_domains(0, 1, 2), pairs)
    assert places.direct == (1, 1)


# ---- deliveries of one geometry ------------------------------------------------------------------


def test_equal_boxes_to_ranks_that_lie_alike_share_a_delivery():
    table = DeliveryTable(Places((0, 0), (1, 1, 2, 2, 1, 2)), 1)
    first = table.delivery((8, 4), (0, 1), (0,), 0)
    assert table.delivery((8, 4), (2, 3), (1,), 0) is not first
    assert table.delivery((8, 4), (0, 4), (1,), 0) is first
    assert table.delivery((8, 4), (0, 2), (0,), 0) is not first
    assert table.delivery((4, 8), (0, 1), (0,), 0) is not first


def test_a_delivery_of_a_turn_is_that_of_the_same_box_turned():
    table = DeliveryTable(None, 1)
    first = table.delivery((8, 4), (0,), (0, 1), 0)
    turned = table.delivery((8, 4), (0,), (0, 1), 1)
    assert turned is first.based(1)
    assert turned.received(0)[0].peer != first.received(0)[0].peer


def test_without_places_holders_serve_everybody():
    table = DeliveryTable(None, 1)
    delivery = table.delivery((1 << 20,), (0, 1, 2), (0,), 0)
    assert [delivery.forwarded(taker) for taker in range(3)] == [[], [], []]
    assert len(delivery.sent(0)) == 3


def test_shards_of_one_tensor_are_places_of_their_own():
    """Sides are looked up by layout: two layouts over the same ranks lie alike."""
    topology = in_domains(0, 0, 1, 1)
    rows = Layout(Mesh(("x",), (2,), (0, 1)), (Shard(0),))
    found = look_up(topology, (rows, replicated(2, 3)), (replicated(0, 1), replicated(2, 3)))
    assert found[0] == found[1]


def test_a_tiny_tensor_on_all_ranks_does_not_hide_a_busy_stage():
    """Stage 0 holds nine tenths of the bytes; a step counter is on both stages."""
    topology = in_domains(*range(6))
    sides = [(replicated(0), replicated(2, 3, 4, 5)), (replicated(1), replicated(2, 3, 4, 5))]
    pairs = [*pairs_of(sides[0], shape=(9000,)), *pairs_of(sides[1], shape=(1000,))]
    alone = places_of(topology, pairs)[0][1].direct
    counter = pairs_of((replicated(0, 1), replicated(2, 3, 4, 5)), shape=(4,))
    together = places_of(topology, [*pairs, *counter])[0][1].direct
    assert abs(Fraction(*together) / Fraction(*alone) - 1) < 0.01


@pytest.mark.parametrize(
    ("wanting", "share"),
    [(range(8), (1, 1)), (range(12), (1, 3)), (range(4, 12), (1, 2))],
    ids=["twice as long", "three times as long", "twice as long, apart"],
)
def test_ranks_of_both_sides_pass_on_only_where_that_saves_half_of_the_time(wanting, share):
    """They send what they hold besides, so it takes a while until they get to it."""
    sides = replicated(0, 1, 2, 3), replicated(*wanting)
    ((_, places),) = look_up(in_domains(*range(12)), sides)
    assert places.direct == share
