"""Where ranks are: domains by position, shared by pairs that lie alike; deliveries between them."""

from __future__ import annotations

from typing import NamedTuple

from reshard.delivery import Delivery, make_plain_delivery
from reshard.domain_delivery import Grouped, group_by_domain, make_delivery
from reshard.holders import Shares, Weights

__all__ = ["DeliveryTable", "Places"]

Ranks = tuple[int, ...]


class Places(NamedTuple):
    """Domains of the ranks of both sides, by position; numbers mean nothing but equal or not.

    Attributes:
        src, dst: domain of each rank; 0 for holders in whose domain nobody wants anything.
        direct: numerator and denominator of the share of far domains that holders serve themselves.
    """

    src: tuple[int, ...]
    dst: tuple[int, ...]
    direct: tuple[int, int] = (1, 1)


class DeliveryTable:
    """Deliveries of boxes of one element size; equal boxes to ranks that lie alike share one.

    Args:
        places: where ranks are; None means that holders serve everybody, wherever they are.
        itemsize: bytes per element.
        shares: of holders that do not share evenly.
    """

    def __init__(self, places: Places | None, itemsize: int, shares: Shares = ()) -> None:
        self._places = places
        self._shares = dict(shares)
        self._itemsize = itemsize
        self._found: dict[tuple[object, ...], tuple[Delivery, Grouped, Grouped]] = {}
        self._groups: tuple[dict[Ranks, Grouped], dict[Ranks, Grouped]] = {}, {}
        self._plain_found: dict[tuple[object, ...], Delivery] = {}

    @property
    def has_domains(self) -> bool:
        """True if it matters where ranks are."""
        return self._places is not None

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
        wanting = self._grouped(1, takers, self._places.dst)
        holding = self._grouped(0, holders, self._places.src)
        shares = self._weights(holders, holding) if self._shares else ()
        key = shape, id(wanting), id(holding), shares
        found = self._found.get(key)
        if found is None:
            made = make_delivery(
                shape,
                wanting,
                holding,
                self._itemsize,
                self._places.direct,
                dict(shares),
            )
            # The groups stay, or other ones could get their ids.
            found = self._found[key] = made, wanting, holding
        return found[0].based(turn)

    def _grouped(self, side: int, positions: Ranks, domains: Ranks) -> Grouped:
        found = self._groups[side].get(positions)
        if found is None:
            found = group_by_domain(tuple([domains[position] for position in positions]))
            self._groups[side][positions] = found
        return found

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
