"""Where the two sides of each kind of pairs are, and how many domains holders serve themselves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from reshard.kinds import Kind
from reshard.places import Places
from reshard.topology import Topology

__all__ = ["PlaceTable"]

_SLACK = 1.02
"""Holders serve all domains themselves up to this ratio of their load to that of the domains."""

_FINEST_SHARE = 256

_HOP_SECONDS = 15e-6
"""What a step from rank to rank costs besides its bytes (`timing.Platform.slot_seconds`)."""

Ranks = tuple[int, ...]


class PlaceTable:
    """Where the two sides of each kind of pairs are.

    Args:
        topology: where all ranks are; None means that holders serve everybody.
        kinds: of all tensors that move; they decide how busy the holders are.
    """

    def __init__(self, topology: Topology | None, kinds: Sequence[Kind]) -> None:
        self._topology = topology
        self._found: dict[tuple[int, int, bool], tuple[int, Places | None]] = {}
        self._numbers: dict[Places, int] = {}
        self._kinds: list[Kind] = []
        self._domains: dict[Ranks, dict[int, int]] = {}
        self._nbytes: dict[Ranks, int] = {}
        self._total = 0
        self._rates: dict[Ranks, float] = {}
        if self._topology is not None:
            self._add_bytes(kinds)

    def _add_bytes(self, kinds: Sequence[Kind]) -> None:
        """Adds up what the ranks of each layout send, of other layouts too."""
        of_sets: Counter[frozenset[int]] = Counter()
        sets: dict[Ranks, frozenset[int]] = {}
        for kind in kinds:
            ranks, pair = kind.src_ranks, kind.first
            if ranks not in sets:
                sets[ranks] = frozenset(ranks)
            nbytes = pair.num_elements * pair.geometry.counted_bytes
            of_sets[sets[ranks]] += nbytes * len(kind.numbers)
        self._total = of_sets.total()
        together = dict(of_sets)
        if sum(map(len, of_sets)) > len(frozenset().union(*of_sets)):
            per_rank: Counter[int] = Counter()
            for group, nbytes in of_sets.items():
                for rank in group:
                    per_rank[rank] += nbytes // len(group)
            together = {group: sum([per_rank[rank] for rank in group]) for group in of_sets}
        self._nbytes = {ranks: together[group] for ranks, group in sets.items()}

    def of(self, kind: Kind) -> tuple[int, Places | None]:
        """Returns a number that kinds have in common whose ranks lie alike, and how they lie."""
        if self._topology is None:
            return 0, None
        # What is stored wider than it is sent would go on in more bytes than it came.
        is_wider = kind.itemsizes[1] > kind.itemsizes[0]
        key = id(kind.src_ranks), id(kind.dst_ranks), is_wider
        found = self._found.get(key)
        if found is None:
            self._kinds.append(kind)  # or other ranks could get the ids
            places = self._places(self._topology, kind.src_ranks, kind.dst_ranks)
            places = places._replace(direct=(1, 1)) if is_wider else places
            number = self._numbers.setdefault(places, len(self._numbers))
            found = self._found[key] = number, places
        return found

    def _places(self, topology: Topology, src: Ranks, dst: Ranks) -> Places:
        """Returns numbers of the destination's domains; holders in any other one are all far."""
        numbers = self._numbers_of_domains(topology, dst)
        domains = topology.domains
        return Places(
            tuple([numbers.get(domains[rank], 0) for rank in src]),
            tuple([numbers[domains[rank]] for rank in dst]),
            self._direct_share(topology, src, dst),
        )

    def _numbers_of_domains(self, topology: Topology, ranks: Ranks) -> dict[int, int]:
        """Returns numbers from 1 of the domains of ranks, in the order of the ranks."""
        found = self._domains.get(ranks)
        if found is None:
            found = {}
            for rank in ranks:
                found.setdefault(topology.domains[rank], len(found) + 1)
            self._domains[ranks] = found  # whole, as another thread may look
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
        load = self._load(topology, src, dst)
        num_domains = len(self._numbers_of_domains(topology, dst))
        least = math.sqrt(_HOP_SECONDS * rate / (num_domains * nbytes))
        # Ranks of both sides that pass on what they received are late with what they hold.
        most = _SLACK if frozenset(src).isdisjoint(dst) else 1 + _SLACK
        if load <= most or least * _SLACK >= 1:
            return 1, 1
        share = Fraction(max(1 / load, least)).limit_denominator(_FINEST_SHARE)
        return (share.numerator, share.denominator) if share else (1, _FINEST_SHARE)

    def _load(self, topology: Topology, src: Ranks, dst: Ranks) -> float:
        """Returns how busy holders are that serve all domains, by how busy the domains are."""
        if not self._nbytes[src]:
            return 0.0
        part = self._nbytes[src] / self._total
        return part * self._rate(topology, dst) / self._rate(topology, src)

    def _rate(self, topology: Topology, ranks: Ranks) -> float:
        rate = self._rates.get(ranks)
        if rate is None:
            rate = self._rates[ranks] = topology.network_rate(ranks)
        return rate
