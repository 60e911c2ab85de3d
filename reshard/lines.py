"""Groups of takers that get a box from the same holders, and in which order."""

from __future__ import annotations

import math
from typing import NamedTuple

from reshard.holders import MIN_STRIPE_BYTES, Striping, make_striping, period_of, striped_dim

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
    """

    holders: tuple[int, ...]
    striping: Striping
    lanes: tuple[Lane, ...]
    groups: tuple[tuple[int, ...], ...]
    num_stripes: tuple[int, ...]

    @property
    def period(self) -> int:
        """Rotations that differ by it give the same parts."""
        periods = {self.striping.period}
        for members, number in zip(self.groups, self.num_stripes, strict=True):
            periods.add(period_of(len(members)) if number < len(members) else 1)
        return math.lcm(*periods)


def make_line(
    shape: tuple[int, ...],
    holders: tuple[int, ...],
    groups: tuple[tuple[int, ...], ...],
    itemsize: int,
    direct: tuple[int, int],
) -> Line:
    """Returns a line of turn and rotation 0.

    Args:
        shape: of the box.
        holders: those who serve it.
        groups: takers that get one copy together.
        itemsize: bytes per element.
        direct: numerator and denominator of the share of groups that holders serve themselves; at
            least one is.
    """
    lanes = _make_lanes(shape, len(groups), itemsize, direct)
    left_out = lanes[-1].stop - lanes[0].stop
    striping = make_striping(shape, lanes[0].num_direct, len(holders), itemsize, left_out=left_out)
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
