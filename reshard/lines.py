"""Groups of takers that get a box from the same holders, and in which order."""

from __future__ import annotations

import math
from typing import NamedTuple

from reshard.holders import (
    MIN_STRIPE_BYTES,
    Striping,
    Weights,
    make_striping,
    period_of,
    striped_dim,
)

__all__ = ["Lane", "Line", "make_line"]


class Lane(NamedTuple):
    """Indices `start` to `stop`, of which holders serve `num_direct` groups themselves."""

    start: int
    stop: int
    num_direct: int


class Line(NamedTuple):
    """Groups of takers that get a box from the same holders, each group once, for any turn.

    A group of several takers gets it in stripes and exchanges these.

    Attributes:
        holders: those who serve the groups.
        striping: how the copies of the direct groups are shared out over the holders.
        lanes: which indices go to how many groups directly; place p of the others gets them from
            place p - num_direct.
        groups: takers of each place, all in one domain.
        num_stripes: per place, how many of its takers receive a stripe from outside.
        is_near: True if holders and takers are in one domain.
    """

    holders: tuple[int, ...]
    striping: Striping
    lanes: tuple[Lane, ...]
    groups: tuple[tuple[int, ...], ...]
    num_stripes: tuple[int, ...]
    is_near: bool = False

    @property
    def period(self) -> int:
        """Rotations that differ by it give the same parts."""
        sizes = {
            len(members)
            for members, number in zip(self.groups, self.num_stripes, strict=True)
            if number < len(members)
        }
        return math.lcm(self.striping.period, *map(period_of, sizes))

    @property
    def num_hops(self) -> int:
        """How many transfers, one after the other, bring it to the last taker."""
        fewest = min([lane.num_direct for lane in self.lanes])
        return 1 + max(
            [place // fewest + (len(members) > 1) for place, members in enumerate(self.groups)]
        )

    def stripe_edges(self, place: int) -> list[int]:
        """Returns the bounds of the stripes of a group, first and last included."""
        number, length = self.num_stripes[place], self.striping.length
        return [-(-index * length // number) for index in range(number + 1)]

    def relay_edges(self) -> list[int]:
        """Returns the indices at which a group that gets something from another one may cut it.

        Pieces are cut there on the whole way, so that all that is passed on is a whole piece.
        """
        edges = {lane.start for lane in self.lanes}
        for place in range(min([lane.num_direct for lane in self.lanes]), len(self.groups)):
            edges.update(self.stripe_edges(place))
        return sorted(edges) if len(edges) > 1 else []

    def origins(self, place: int) -> list[tuple[int, int, int | None]]:
        """Returns (start, stop, place that they come from) of the indices of a group.

        The place is None for what holders send.
        """
        parents = [None if place < n else place - n for _, _, n in self.lanes]
        if len(set(parents)) == 1:
            return [(self.lanes[0].start, self.lanes[-1].stop, parents[0])]
        return [(a, b, each) for (a, b, _), each in zip(self.lanes, parents, strict=True)]

    def children(self, place: int) -> list[int]:
        """Returns the places that get something from a group."""
        places = {place + lane.num_direct for lane in self.lanes}
        return [child for child in sorted(places) if child < len(self.groups)]


def make_line(
    shape: tuple[int, ...],
    holders: tuple[int, ...],
    groups: tuple[tuple[int, ...], ...],
    itemsize: int,
    direct: tuple[int, int],
    weights: Weights = (),
) -> Line:
    """Returns a line of turn and rotation 0.

    Args:
        shape: of the box.
        holders: those who serve it.
        groups: takers that get one copy together.
        itemsize: bytes per element.
        direct: numerator and denominator of the share of groups that holders serve themselves; at
            least one is.
        weights: of the holders.
    """
    lanes = _make_lanes(shape, len(groups), itemsize, direct)
    left_out = lanes[-1].stop - lanes[0].stop
    striping = make_striping(
        shape, lanes[0].num_direct, len(holders), itemsize, left_out=left_out, weights=weights
    )
    most = max(1, min(math.prod(shape) * itemsize // MIN_STRIPE_BYTES, striping.length))
    num_stripes = tuple([min(most, len(members)) for members in groups])
    return Line(holders, striping, lanes, groups, num_stripes)


def _make_lanes(
    shape: tuple[int, ...], num_far: int, itemsize: int, direct: tuple[int, int]
) -> tuple[Lane, ...]:
    """Returns one lane, or two of which the second serves one far domain less."""
    _, length = striped_dim(shape)
    whole, rest = divmod(num_far * direct[0], direct[1])
    per_index = math.prod(shape) // length * itemsize
    smallest = -(-MIN_STRIPE_BYTES // per_index)
    first = length * rest // direct[1]
    if whole and smallest <= first <= length - smallest:
        return Lane(0, first, whole + 1), Lane(first, length, whole)
    # What is too small for two lanes goes to the nearest number of domains.
    return (Lane(0, length, max(1, whole + (2 * rest >= direct[1]))),)
