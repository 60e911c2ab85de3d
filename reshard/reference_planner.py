"""The obvious planner: all pairs of boxes of all ranks. Slow, global, and the oracle of the others.

It shares with them the rules that pick holders (`places`, `delivery`, `supplies`, `fair_shares`),
those by which boxes that overlap are cut (`sweep`, `box_sets`), and the pieces of a rank.
Users can run it to check a plan of their own layouts: `set(reference_transfers(plan.pairs))` is the
set of transfers of all ranks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.box_sets import disjoint_parts
from reshard.delivery import Delivery, Part, make_plain_delivery
from reshard.domain_delivery import group_by_domain, make_delivery
from reshard.fair_shares import Ranks, fair_shares
from reshard.holders import Weights, rotation_of_box
from reshard.kinds import kinds_of
from reshard.logical_space import Side, copy_numbers, pieces_of_rank
from reshard.matching import TensorPair
from reshard.place_table import PlaceTable
from reshard.places import Places
from reshard.supplies import costs_of, unequal_ranks
from reshard.sweep import parts_of_wanted
from reshard.topology import Topology
from reshard.transfer import BoxKey, Transfer

__all__ = ["reference_transfers"]


def reference_transfers(
    pairs: Sequence[TensorPair], topology: Topology | None = None
) -> Iterator[Transfer]:
    """Yields every transfer of every rank, in no promised order.

    Args:
        pairs: what moves.
        topology: where ranks are; None means that holders serve everybody.
    """
    kinds = kinds_of(pairs)
    table = PlaceTable(topology, kinds)
    domains = None if topology is None else topology.domains
    unequal = unequal_ranks(kinds)
    regions: list[_Region] = []
    supplies: Counter[tuple[Ranks, bool]] = Counter()
    for kind in kinds:
        _, places = table.of(kind)
        for number in kind.numbers if kind.first.num_elements else ():
            regions += _regions_of_pair(number, pairs[number], domains, places)
    for region in regions:
        if region.remote and not unequal.isdisjoint(region.givers):
            supplies += region.supplies()
    shares = fair_shares(costs_of(supplies, topology))
    for region in regions:
        yield from region.transfers(shares)


@dataclass(frozen=True)
class _Region:
    """A box of a tensor with everyone who holds it and everyone who wants it.

    Attributes:
        number, pair: the tensor.
        want: the destination's whole box, of which `box` is a part.
        givers: ranks that hold it, in the order of their layout.
        takers: (rank, copy) of those who want it.
        domains: of all ranks.
        places: how its ranks lie; None without a topology.
    """

    number: int
    pair: TensorPair
    want: BoxKey
    box: BoxKey
    givers: list[int]
    takers: list[tuple[int, int]]
    domains: Sequence[int] | None
    places: Places | None

    @property
    def remote(self) -> list[tuple[int, int]]:
        """Those who do not hold it themselves."""
        return [taker for taker in self.takers if taker[0] not in self.givers]

    def supplies(self) -> Counter[tuple[Ranks, bool]]:
        """Returns how many bytes each group of givers sends together, inside its domain or not."""
        delivery = self._delivery({})
        nbytes = math.prod(b - a for a, b in zip(*self.box, strict=True))
        nbytes = nbytes // delivery.striping.length * self.pair.dtype_at(0).itemsize
        found: Counter[tuple[Ranks, bool]] = Counter()
        for holders, num_indices, is_near in delivery.supplied():
            group = tuple(sorted(self.givers[holder] for holder in holders))
            found[group, is_near] += num_indices * nbytes
        return found

    def _delivery(self, shares: dict[Ranks, Weights]) -> Delivery:
        shape = tuple(b - a for a, b in zip(*self.box, strict=True))
        itemsize, num_givers = self.pair.geometry.counted_bytes, len(self.givers)
        if self.domains is None or self.places is None:
            weights = self._weights(shares, tuple(range(num_givers)))
            return make_plain_delivery(shape, len(self.remote), num_givers, itemsize, weights)
        wanting = group_by_domain(tuple([self.domains[rank] for rank, _ in self.remote]))
        holding = group_by_domain(tuple([self.domains[rank] for rank in self.givers]))
        groups = {tuple(range(num_givers)), *holding.groups}
        weights_of = {group: self._weights(shares, group) for group in groups}
        direct = self.places.direct
        return make_delivery(shape, wanting, holding, itemsize, direct, weights_of)

    def _weights(self, shares: dict[Ranks, Weights], holders: Ranks) -> Weights:
        ranks = [self.givers[holder] for holder in holders]
        key = tuple(sorted(ranks))
        if key not in shares:
            return ()
        of_rank = dict(zip(key, shares[key], strict=True))
        return tuple(of_rank[rank] for rank in ranks)

    def transfers(self, shares: dict[Ranks, Weights]) -> Iterator[Transfer]:
        """Yields who sends which part of it to whom."""
        for rank, copy in self.takers:
            if rank in self.givers:
                yield Transfer(self.number, rank, rank, *self.box, copy)
        if not self.remote:
            return
        delivery = self._delivery(shares)
        delivery = delivery.based(rotation_of_box(*self.want)).turned(self.pair.rotation)
        for index, giver in enumerate(self.givers):
            for part in delivery.sent(index):
                yield self._transfer(delivery, giver, part, 0)
        for index, (rank, copy) in enumerate(self.remote):
            for part in delivery.forwarded(index):
                yield self._transfer(delivery, rank, part, copy)

    def _transfer(self, delivery: Delivery, src: int, part: Part, src_copy: int) -> Transfer:
        box = delivery.striping.cut(self.box, part.start, part.stop)
        dst, copy = self.remote[part.peer]
        return Transfer(self.number, src, dst, *box, copy, part.hop, src_copy)


def _regions_of_pair(
    number: int, pair: TensorPair, domains: Sequence[int] | None, places: Places | None
) -> Iterator[_Region]:
    ndim = len(pair.geometry.space.shape)
    held = _stored(pair.src_side, ndim)
    wanted = _stored(pair.dst_side, ndim)
    order = {rank: position for position, rank in enumerate(pair.src.layout.ranks)}
    dst_order = {rank: position for position, rank in enumerate(pair.dst.layout.ranks)}
    taken = list(wanted.values())
    for want, wanting in parts_of_wanted(list(wanted))[0].items():
        takers = sorted(
            (taker for box in wanting for taker in taken[box]),
            key=lambda taker: (dst_order[taker[0]], taker[1]),
        )
        regions: dict[BoxKey, set[int]] = defaultdict(set)
        for box, givers in held.items():
            common = _common(box, want)
            if common:
                regions[common].update(rank for rank, _ in givers)
        for region, numbers in disjoint_parts(list(regions))[0].items():
            ranks = {rank for n in numbers for rank in list(regions.values())[n]}
            givers_in_order = sorted(ranks, key=order.__getitem__)
            yield _Region(number, pair, want, region, givers_in_order, takers, domains, places)


def _stored(side: Side, ndim: int) -> dict[BoxKey, list[tuple[int, int]]]:
    """Returns the (rank, copy) that store each distinct box, in the order of the layout's ranks."""
    stored: dict[BoxKey, list[tuple[int, int]]] = defaultdict(list)
    for rank in side.layout.ranks:
        pieces = pieces_of_rank(side, ndim, rank)
        for piece, copy in zip(pieces, copy_numbers(pieces), strict=True):
            stored[piece.start, piece.stop].append((rank, copy))
    return stored


def _common(a: BoxKey, b: BoxKey) -> BoxKey | None:
    start = tuple(max(p, q) for p, q in zip(a[0], b[0], strict=True))
    stop = tuple(min(p, q) for p, q in zip(a[1], b[1], strict=True))
    return (start, stop) if all(p < q for p, q in zip(start, stop, strict=True)) else None
