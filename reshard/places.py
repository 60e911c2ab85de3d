"""Where the ranks of one geometry are: domains by position, shared by pairs that lie alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from reshard.delivery import (
    Delivery,
    Grouped,
    group_by_domain,
    make_delivery,
    make_plain_delivery,
)
from reshard.holders import Shares, Weights
from reshard.layout import AnyLayout
from reshard.matching import TensorPair
from reshard.topology import Topology

__all__ = ["DeliveryTable", "PlaceTable", "Places"]

_SLACK = 1.02
"""Holders serve all domains themselves up to this ratio of their load to that of the domains."""

_FINEST_SHARE = 256

_HOP_SECONDS = 15e-6
"""What a step from rank to rank costs besides its bytes (`timing.Platform.slot_seconds`)."""

Ranks = tuple[int, ...]


class Places(NamedTuple):
    """Domains of the ranks of both sides, by position; numbers mean nothing but equal or not.

    Attributes:
        src, dst: domain of each rank.
        direct: numerator and denominator of the share of far domains that holders serve themselves.
    """

    src: tuple[int, ...]
    dst: tuple[int, ...]
    direct: tuple[int, int] = (1, 1)


class DeliveryTable:
    """Deliveries of the boxes of one geometry; equal boxes to ranks that lie alike share one.

    Args:
        places: where ranks are; None means that holders serve everybody, wherever they are.
        itemsize: bytes per element.
        shares: of holders that do not share evenly.
    """

    def __init__(self, places: Places | None, itemsize: int, shares: Shares = ()) -> None:
        self._places = places
        self._shares = dict(shares)
        self._itemsize = itemsize
        self._direct = (1, 1) if places is None else places.direct
        self._found: dict[tuple[object, ...], tuple[Delivery, Grouped, Grouped]] = {}
        self._plain_found: dict[tuple[object, ...], Delivery] = {}

    def delivery(
        self,
        shape: tuple[int, ...],
        takers: tuple[int, ...],
        holders: tuple[int, ...],
        turn: int,
    ) -> Delivery:
        """Returns the delivery of a box.

        Args:
            shape: of the box.
            takers: positions of those who want it and do not hold it.
            holders: positions of those who hold it.
            turn: from `rotation_of_box`.
        """
        if self._places is None:
            weights = self._shares.get(holders, ())
            return self._plain(shape, len(takers), len(holders), weights).based(turn)
        wanting = _grouped(takers, self._places.dst)
        holding = _grouped(holders, self._places.src)
        shares = self._weights(holders, holding) if self._shares else ()
        key = shape, id(wanting), id(holding), shares
        found = self._found.get(key)
        if found is None:
            made = make_delivery(
                shape, wanting, holding, self._itemsize, self._direct, dict(shares)
            )
            # The groups stay, or other ones could get their ids.
            found = self._found[key] = made, wanting, holding
        return found[0].based(turn)

    def _weights(self, holders: tuple[int, ...], holding: Grouped) -> Shares:
        """Returns the weights of all holders and of those in one domain, by index."""
        groups = {tuple(range(len(holders))), *holding.groups}
        found = [(each, self._shares.get(tuple([holders[i] for i in each]))) for each in groups]
        return tuple(sorted([(group, weights) for group, weights in found if weights]))

    def _plain(
        self, shape: tuple[int, ...], num_takers: int, num_holders: int, weights: Weights
    ) -> Delivery:
        key = shape, num_takers, num_holders, weights
        found = self._plain_found.get(key)
        if found is None:
            found = make_plain_delivery(shape, num_takers, num_holders, self._itemsize, weights)
            self._plain_found[key] = found
        return found


def _grouped(positions: tuple[int, ...], domains: Ranks) -> Grouped:
    return group_by_domain(tuple([domains[position] for position in positions]))


class PlaceTable:
    """Where the two sides of each pair are.

    Args:
        topology: where all ranks are; None means that holders serve everybody.
        pairs: all tensors that move; they decide how busy the holders are.
    """

    def __init__(self, topology: Topology | None, pairs: Sequence[TensorPair]) -> None:
        self._topology = topology
        self._found: dict[tuple[int, int, bool], tuple[int, Places | None]] = {}
        self._numbers: dict[Places, int] = {}
        self._ranks: dict[int, Ranks] = {}
        self._alone: dict[tuple[Ranks, int], tuple[frozenset[int], Ranks]] = {}
        self._nbytes: dict[Ranks, int] = {}
        self._total = 0
        self._rates: dict[Ranks, float] = {}
        if self._topology is not None:
            self._add_bytes(pairs)

    def _add_bytes(self, pairs: Sequence[TensorPair]) -> None:
        """Adds up what the ranks of each layout send, of other layouts too."""
        of_sets: Counter[frozenset[int]] = Counter()
        sets: dict[Ranks, frozenset[int]] = {}
        for pair in pairs:
            ranks = self._ranks_of(pair.src.layout)
            if ranks not in sets:
                sets[ranks] = frozenset(ranks)
            of_sets[sets[ranks]] += pair.num_elements * pair.geometry.counted_bytes
        self._total = of_sets.total()
        together = dict(of_sets)
        if sum(map(len, of_sets)) > len(frozenset().union(*of_sets)):
            per_rank: Counter[int] = Counter()
            for group, nbytes in of_sets.items():
                for rank in group:
                    per_rank[rank] += nbytes // len(group)
            together = {group: sum([per_rank[rank] for rank in group]) for group in of_sets}
        self._nbytes = {ranks: together[group] for ranks, group in sets.items()}

    def of(self, pair: TensorPair) -> tuple[int, Places | None]:
        """Returns a number that pairs have in common whose ranks lie alike, and how they lie."""
        if self._topology is None:
            return 0, None
        # What is stored wider than it is sent would go on in more bytes than it came.
        is_wider = pair.dtype_at(1).itemsize > pair.dtype_at(0).itemsize
        key = id(pair.src.layout), id(pair.dst.layout), is_wider
        found = self._found.get(key)
        if found is None:
            src, dst = self._ranks_of(pair.src.layout), self._ranks_of(pair.dst.layout)
            places = self._places(self._topology, src, dst)
            places = places._replace(direct=(1, 1)) if is_wider else places
            number = self._numbers.setdefault(places, len(self._numbers))
            found = self._found[key] = number, places
        return found

    def _ranks_of(self, layout: AnyLayout) -> Ranks:
        ranks = self._ranks.get(id(layout))
        if ranks is None:
            ranks = self._ranks[id(layout)] = layout.ranks
        return ranks

    def _places(self, topology: Topology, src: Ranks, dst: Ranks) -> Places:
        direct = self._direct_share(topology, src, dst)
        src_domains, src_places = self._side(topology, src, 1)
        dst_domains, dst_places = self._side(topology, dst, -1)
        if src_domains.isdisjoint(dst_domains):
            return Places(src_places, dst_places, direct)
        numbers: dict[int, int] = {}
        both = [
            tuple([numbers.setdefault(topology.domains[rank], len(numbers)) for rank in ranks])
            for ranks in (src, dst)
        ]
        return Places(both[0], both[1], direct)

    def _side(self, topology: Topology, ranks: Ranks, sign: int) -> tuple[frozenset[int], Ranks]:
        """Returns the domains of ranks, and the same by position with numbers of their own."""
        found = self._alone.get((ranks, sign))
        if found is None:
            domains = [topology.domains[rank] for rank in ranks]
            numbers: dict[int, int] = {}
            places = tuple(
                [sign * (1 + numbers.setdefault(domain, len(numbers))) for domain in domains]
            )
            found = self._alone[ranks, sign] = frozenset(domains), places
        return found

    def _direct_share(self, topology: Topology, src: Ranks, dst: Ranks) -> tuple[int, int]:
        """Returns how many of the far domains holders serve, so that all is there soonest.

        They can serve as many as keeps them as busy as the domains. A share s of D domains takes
        s times as long as all of them, but 1 / s steps; few bytes are there sooner in fewer steps,
        and the best share by both is the root of the time of a step by the time of all domains.
        """
        nbytes, rate = self._nbytes[src], self._rate(topology, src)
        if not nbytes:
            return 1, 1
        load = nbytes / self._total * self._rate(topology, dst) / rate
        num_domains = len(self._side(topology, dst, -1)[0])
        least = math.sqrt(_HOP_SECONDS * rate / (num_domains * nbytes))
        # Ranks of both sides that pass on what they received are late with what they hold.
        most = _SLACK if frozenset(src).isdisjoint(dst) else 1 + _SLACK
        if load <= most or least * _SLACK >= 1:
            return 1, 1
        share = Fraction(max(1 / load, least)).limit_denominator(_FINEST_SHARE)
        return (share.numerator, share.denominator) if share else (1, _FINEST_SHARE)

    def _rate(self, topology: Topology, ranks: Ranks) -> float:
        rate = self._rates.get(ranks)
        if rate is None:
            rate = self._rates[ranks] = topology.network_rate(ranks)
        return rate
