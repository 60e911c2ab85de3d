"""How a box reaches all who want it: each domain gets it once, and nobody sends what it lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
from helpers.topologies import min_stripe_bytes
from hypothesis import given
from hypothesis import strategies as st

from reshard.delivery import Delivery, Part
from reshard.domain_delivery import group_by_domain, make_delivery
from reshard.holders import MIN_STRIPE_BYTES

KIB = 1 << 10


@dataclass(frozen=True)
class Case:
    """A delivery, with what it was made of."""

    delivery: Delivery
    takers: tuple[int, ...]
    holders: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int
    direct: tuple[int, int]
    min_stripe: int
    turn: int
    rotation: int

    @property
    def length(self) -> int:
        return max(self.shape, default=1)

    @property
    def far(self) -> list[int]:
        """Domains that want the box and have no holder, in order."""
        return [domain for domain in dict.fromkeys(self.takers) if domain not in self.holders]

    @property
    def lanes(self) -> list[tuple[range, int]]:
        """Indices, with how many far domains the holders serve with them."""
        copies = len(self.far) * Fraction(*self.direct)
        whole = math.floor(copies)
        edge = math.floor((copies - whole) * self.length)
        least = Fraction(self.min_stripe * self.length, math.prod(self.shape) * self.itemsize)
        if whole and least <= edge <= self.length - least:
            return [(range(edge), whole + 1), (range(edge, self.length), whole)]
        return [(range(self.length), max(1, math.floor(copies + Fraction(1, 2))))]

    @property
    def served(self) -> int:
        """Indices that holders send to far domains, all copies together."""
        return sum(len(lane) * num_direct for lane, num_direct in self.lanes)

    def members(self, domain: int) -> list[int]:
        return [taker for taker, own in enumerate(self.takers) if own == domain]

    def from_outside(self, domain: int) -> list[Part]:
        """Returns all parts that a domain receives from holders, or from takers elsewhere."""
        return [
            part
            for taker in self.members(domain)
            for part in self.delivery.received(taker)
            if part.hop == 0 or self.takers[part.peer] != domain
        ]


@st.composite
def cases(draw):
    def domains(most, largest):
        return tuple(draw(st.lists(st.integers(0, largest), min_size=1, max_size=most)))

    spread = draw(st.integers(0, 5))
    takers, holders = domains(10, spread), domains(10, spread + 2)
    small = st.lists(st.integers(1, 60), max_size=3).map(tuple)
    shape = draw(st.one_of(small, st.tuples(st.integers(1, 5), st.integers(1000, 100_000))))
    itemsize = draw(st.sampled_from((1, 2, 8)))
    direct = draw(st.sampled_from(((1, 1), (1, 2), (2, 3), (10, 11), (1, 5), (1, 64))))
    min_stripe = draw(st.sampled_from((KIB, 8 * KIB, 64 * KIB)))
    turn, rotation = draw(st.integers(0, 20)), draw(st.integers(0, 20))
    with min_stripe_bytes(min_stripe):
        made = make_delivery(
            shape, group_by_domain(takers), group_by_domain(holders), itemsize, direct
        )
    delivery = made.based(turn).turned(rotation)
    return Case(delivery, takers, holders, shape, itemsize, direct, min_stripe, turn, rotation)


def are_all(parts: list[Part], length: int) -> bool:
    """True if the parts are all indices, each once."""
    end = 0
    for start, stop in sorted((part.start, part.stop) for part in parts):
        if start != end or stop <= start:
            return False
        end = stop
    return end == length


def meets(part: Part, lane: range) -> bool:
    return part.start < lane.stop and lane.start < part.stop


def sends(delivery: Delivery, num_takers: int, num_holders: int) -> list[tuple[str, int, Part]]:
    """Returns (kind and number of who sends, whom to with what) of all."""
    return sorted(
        [("holder", own, part) for own in range(num_holders) for part in delivery.sent(own)]
        + [("taker", own, part) for own in range(num_takers) for part in delivery.forwarded(own)]
    )


@given(cases())
def test_everyone_receives_exactly_the_box(case):
    assert case.delivery.striping.length == case.length
    for taker in range(len(case.takers)):
        assert are_all(case.delivery.received(taker), case.length)


@given(cases())
def test_what_is_sent_is_what_is_received(case):
    received = sorted(
        ("taker" if part.hop else "holder", part.peer, part._replace(peer=taker))
        for taker in range(len(case.takers))
        for part in case.delivery.received(taker)
    )
    assert sends(case.delivery, len(case.takers), len(case.holders)) == received
    assert all(part.hop == 0 for _, _, part in received if _ == "holder")


@given(cases())
def test_each_index_enters_a_far_domain_once(case):
    for domain in case.far:
        assert are_all(case.from_outside(domain), case.length)


@given(cases())
def test_whoever_has_a_holder_in_its_domain_is_served_there(case):
    """By the holders, or by others who want it where these are more."""
    for taker, domain in enumerate(case.takers):
        if domain not in case.far:
            are_few = case.holders.count(domain) < case.takers.count(domain)
            for part in case.delivery.received(taker):
                assert part.hop <= are_few
                peers = case.takers if part.hop else case.holders
                assert peers[part.peer] == domain


@given(cases())
def test_only_what_has_arrived_is_passed_on(case):
    for taker in range(len(case.takers)):
        received = case.delivery.received(taker)
        for part in case.delivery.forwarded(taker):
            assert part.hop > 0
            assert part.peer != taker
            before = [each for each in received if each.hop < part.hop]
            overlaps = [min(part.stop, b) - max(part.start, a) for _, a, b, _ in before]
            assert sum(max(0, overlap) for overlap in overlaps) == part.stop - part.start


@given(cases())
def test_what_is_passed_on_goes_in_the_pieces_in_which_it_came(case):
    """So a piece that is cut into rounds can go on round by round."""
    for taker in range(len(case.takers)):
        came = [(part.start, part.stop, part.hop) for part in case.delivery.received(taker)]
        for part in case.delivery.forwarded(taker):
            assert (part.start, part.stop, part.hop - 1) in came


@given(cases())
def test_holders_serve_the_direct_domains_and_each_of_them_one_line_of_relays(case):
    """Domain p of the far ones gets the box from domain p - num_direct, one hop later."""
    served = [
        (case.takers[part.peer], part)
        for holder in range(len(case.holders))
        for part in case.delivery.sent(holder)
    ]
    for lane, num_direct in case.lanes:
        for place, domain in enumerate(case.far):
            parts = [part for part in case.from_outside(domain) if meets(part, lane)]
            assert {part.hop for part in parts} == {place // num_direct}
            if place >= num_direct:
                parent = case.far[place - num_direct]
                assert {case.takers[part.peer] for part in parts} == {parent}
        domains = {domain for domain, part in served if meets(part, lane)}
        assert domains - set(case.holders) == set(case.far[:num_direct])


@given(cases())
def test_holders_send_alike_to_other_domains(case):
    if not case.far:
        return
    sent = [
        sum(
            part.stop - part.start
            for part in case.delivery.sent(holder)
            if case.takers[part.peer] in case.far
        )
        for holder in range(len(case.holders))
    ]
    busy = [count for count in sent if count]
    assert sum(sent) == case.served
    assert max(busy) - min(busy) <= 1
    nbytes = math.prod(case.shape) * case.itemsize // case.length * case.served
    limits = len(case.holders), nbytes // case.min_stripe, case.served
    assert len(busy) == max(1, min(limits))


@given(cases())
def test_holders_serve_the_share_that_is_theirs(case):
    """To the index where a box is large enough for two lanes, else to half a copy."""
    if not case.far:
        return
    wanted = len(case.far) * Fraction(*case.direct) * case.length
    slack = 1 if len(case.lanes) == 2 else Fraction(case.length, 2)
    assert abs(case.served - max(wanted, case.length)) <= slack


@given(cases())
def test_members_of_a_domain_receive_alike_from_outside(case):
    """To within one index; no stripe is below the limit, unless the whole box is."""
    for domain in case.far:
        counts = [
            sum(
                part.stop - part.start
                for part in case.delivery.received(taker)
                if part.hop == 0 or case.takers[part.peer] != domain
            )
            for taker in case.members(domain)
        ]
        busy = [count for count in counts if count]
        assert max(busy) - min(busy) <= 1
        nbytes = math.prod(case.shape) * case.itemsize
        assert len(busy) == max(1, min(len(counts), nbytes // case.min_stripe, case.length))


@given(cases(), st.integers(0, 9))
def test_rotations_that_differ_by_the_period_give_the_same_parts(case, rotation):
    """`turned` counts on it, so here every rotation is worked out anew."""
    counts = len(case.takers), len(case.holders)
    made, period = case.delivery, case.delivery.period
    moved = [made._moved(0, each) for each in (rotation, rotation + period, rotation + 3 * period)]
    first, *others = [sends(each, *counts) for each in moved]
    assert others == [first, first]


@given(cases())
def test_turns_of_boxes_keep_the_period(case):
    with min_stripe_bytes(case.min_stripe):
        plain = make_delivery(
            case.shape,
            group_by_domain(case.takers),
            group_by_domain(case.holders),
            case.itemsize,
            case.direct,
        )
    assert plain.period == case.delivery.period
    assert plain.based(case.turn) is plain.based(case.turn)
    based = plain.based(case.turn)
    assert based.turned(case.rotation) is based.turned(case.rotation + plain.period)


@given(cases(), st.permutations(range(12)))
def test_numbers_of_domains_mean_nothing_but_equal_or_not(case, numbers):
    with min_stripe_bytes(case.min_stripe):
        other = make_delivery(
            case.shape,
            group_by_domain(tuple(numbers[domain] for domain in case.takers)),
            group_by_domain(tuple(numbers[domain] for domain in case.holders)),
            case.itemsize,
            case.direct,
        )
    counts = len(case.takers), len(case.holders)
    other = other.based(case.turn).turned(case.rotation)
    assert sends(other, *counts) == sends(case.delivery, *counts)


# ---- cases that can be checked by hand ---------------------------------------------------------


def deliver(shape, takers, holders, direct=(1, 1), itemsize=1):
    return make_delivery(shape, group_by_domain(takers), group_by_domain(holders), itemsize, direct)


def test_ranks_are_grouped_in_order_of_appearance():
    found = group_by_domain((7, 3, 7, 7))
    assert found.groups == ((0, 2, 3), (1,))
    assert found.domains == (7, 3)
    assert found.places == ((0, 0), (1, 0), (0, 1), (0, 2))
    assert not found.are_apart
    assert group_by_domain((7, 3)).are_apart
    assert group_by_domain((7, 3, 7, 7)) is found


def test_a_large_box_is_cut_over_the_domain_and_put_together_inside():
    size = 1 << 20
    delivery = deliver((size,), (1, 1), (0,))
    half = size // 2
    assert delivery.sent(0) == [Part(0, 0, half, 0), Part(1, half, size, 0)]
    assert delivery.received(0) == [Part(0, 0, half, 0), Part(1, half, size, 1)]
    assert delivery.received(1) == [Part(0, 0, half, 1), Part(0, half, size, 0)]
    assert delivery.forwarded(0) == [Part(1, 0, half, 1)]
    assert delivery.forwarded(1) == [Part(0, half, size, 1)]
    assert delivery.period == 1


@pytest.mark.parametrize(("itemsize", "num_stripes"), [(1, 1), (2, 2), (8, 4)])
def test_stripes_of_a_domain_are_as_large_as_a_message_should_be(itemsize, num_stripes):
    """Of a box of 1, 2 and 8 times the least size, to four ranks."""
    delivery = deliver((MIN_STRIPE_BYTES,), (1, 1, 1, 1), (0,), itemsize=itemsize)
    assert len({part.peer for part in delivery.sent(0)}) == num_stripes


def test_a_small_box_goes_to_one_of_the_domain_in_turn():
    delivery = deliver((100,), (1, 1, 1), (0,))
    assert delivery.period == 3
    for rotation in range(6):
        turned = delivery.turned(rotation)
        first = rotation % 3
        assert turned.sent(0) == [Part(first, 0, 100, 0)]
        assert {part.peer for part in turned.forwarded(first)} == {0, 1, 2} - {first}
        assert delivery.based(rotation).sent(0) == turned.sent(0)


@pytest.mark.parametrize("takers", [(4,), (4, 4)])
def test_within_one_domain_as_many_holders_as_takers_serve_each(takers):
    delivery = deliver((1 << 20,), takers, (4, 4))
    assert [delivery.forwarded(taker) for taker in range(len(takers))] == [[] for _ in takers]


def test_within_one_domain_takers_exchange_what_fewer_holders_send_once():
    size = 6 << 20
    delivery = deliver((size,), (4, 4, 4), (4, 4))
    third, half = size // 3, size // 2
    assert delivery.sent(0) == [Part(0, 0, third, 0), Part(1, third, half, 0)]
    assert delivery.sent(1) == [Part(1, half, 2 * third, 0), Part(2, 2 * third, size, 0)]
    assert delivery.forwarded(1) == [
        Part(peer, start, stop, 1)
        for start, stop in ((third, half), (half, 2 * third))
        for peer in (0, 2)
    ]


def test_ranks_that_are_domains_of_their_own_are_all_served_by_holders():
    delivery = deliver((1 << 20,), (1, 2, 3), (0, 0))
    assert [delivery.forwarded(taker) for taker in range(3)] == [[], [], []]


def test_a_relay_passes_on_what_it_received():
    delivery = deliver((100,), (1, 2, 3), (0,), (1, 3))
    assert delivery.sent(0) == [Part(0, 0, 100, 0)]
    assert delivery.forwarded(0) == [Part(1, 0, 100, 1)]
    assert delivery.forwarded(1) == [Part(2, 0, 100, 2)]
    assert delivery.received(2) == [Part(1, 0, 100, 2)]


def test_a_relay_between_domains_of_several_ranks_goes_stripe_by_stripe():
    size = 12 << 20
    delivery = deliver((size,), (1, 1, 2, 2, 2), (0,), (1, 2))
    half, third = size // 2, size // 3
    assert delivery.forwarded(0) == [
        Part(1, 0, third, 1),
        Part(1, third, half, 1),
        Part(2, 0, third, 1),
        Part(3, third, half, 1),
    ]
    assert delivery.received(3) == [
        Part(2, 0, third, 2),
        Part(0, third, half, 1),
        Part(1, half, 2 * third, 1),
        Part(4, 2 * third, size, 2),
    ]


def test_near_and_far_at_once():
    """Those next to a holder do not wait for others, and holders elsewhere do not serve them."""
    delivery = deliver((100,), (0, 1), (0, 2))
    assert delivery.period == 2
    for rotation in range(2):
        turned = delivery.turned(rotation)
        assert turned.received(0) == [Part(0, 0, 100, 0)]
        assert turned.received(1) == [Part(rotation, 0, 100, 0)]
        assert turned.forwarded(0) == turned.forwarded(1) == []


def test_holders_that_can_serve_a_domain_and_a_half_leave_half_of_the_second_to_the_first():
    size = 1 << 20
    half = size // 2
    delivery = deliver((size,), (1, 2), (0,), (3, 4))
    assert delivery.sent(0) == [Part(0, 0, half, 0), Part(0, half, size, 0), Part(1, 0, half, 0)]
    assert delivery.forwarded(0) == [Part(1, half, size, 1)]
    assert delivery.received(1) == [Part(0, 0, half, 0), Part(0, half, size, 1)]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_element_is_never_cut(shape):
    with min_stripe_bytes(1):
        delivery = deliver(shape, (1, 1, 2), (0,), itemsize=8)
    assert [part[1:3] for part in delivery.sent(0)] == [(0, 1), (0, 1)]
    assert [len(delivery.received(taker)) for taker in range(3)] == [1, 1, 1]


def test_what_is_asked_for_twice_is_one_object():
    delivery = deliver((100,), (1, 1), (0,))
    assert delivery.received(0) is delivery.received(0)
    assert delivery.sent(0) is delivery.sent(0)
    assert delivery.forwarded(0) is delivery.forwarded(0)
    assert delivery.based(0) is delivery.turned(2) is delivery
    assert delivery.turned(1) is delivery.turned(3)
