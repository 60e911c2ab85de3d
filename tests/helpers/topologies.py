"""Hypothesis strategies for where ranks are, and stripes that are small enough for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from helpers.strategies import Problem, problems, seeded
from reshard import (
    AnyLayout,
    BoxLayout,
    DType,
    Layout,
    Mesh,
    Replicate,
    SegmentedLayout,
    holders,
    lines,
)
from reshard.topology import Topology

__all__ = ["Placed", "min_stripe_bytes", "placed_problems"]

_MAX_DOMAINS = 6


@contextmanager
def min_stripe_bytes(nbytes: int) -> Iterator[None]:
    """Lets boxes be cut into stripes of this size or more, where ranks are planned inside."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (holders, lines):
            patch.setattr(module, "MIN_STRIPE_BYTES", nbytes)
        yield


@dataclass(frozen=True)
class Placed:
    """Sides that fit each other, and where their ranks are.

    Attributes:
        problem: the sides.
        topology: has all ranks of the sides.
        stripe_bytes: for `min_stripe_bytes`.
    """

    problem: Problem
    topology: Topology
    stripe_bytes: int


@st.composite
def placed_problems(draw: DrawFn, dtype: DType | None = None) -> Placed:
    """Problems whose destination is there 1 to 4 times, with ranks in 1 to 6 domains."""
    problem = _with_engines(draw(problems(dtype=dtype)), draw(st.integers(1, 4)))
    count = _num_ranks(problem)
    num_domains = draw(st.integers(1, _MAX_DOMAINS))
    random = draw(seeded())
    domains = tuple(random.randrange(num_domains) for _ in range(count))
    # Where all sources share the cards of one host, they are slow, so that there are relays.
    sources = {rank for spec in problem.src for rank in spec.layout.ranks}
    slow = tuple(-1 if rank in sources else rank for rank in range(count))
    hosts = draw(st.sampled_from((domains, tuple(range(count)), slow)))
    # Over fast cards, what little is moved is never passed on.
    rate = draw(st.sampled_from((1.0, 1.0, 50e9)))
    # Over links slower than cards, domains do not exchange.
    link = rate * draw(st.sampled_from((9, 9, 0.1)))
    topology = Topology(hosts, domains, draw(st.integers(1, 8)), rate, link, "drawn")
    return Placed(problem, topology, draw(st.sampled_from((1, 8, 1 << 16))))


def _num_ranks(problem: Problem) -> int:
    specs = [spec for side in problem.sides for spec in side]
    return 1 + max((rank for spec in specs for rank in spec.layout.ranks), default=0)


def _with_engines(problem: Problem, count: int) -> Problem:
    """Returns the problem with so many destinations alike; all but the first are apart."""
    offset = _num_ranks(problem)
    dst = tuple(
        dataclasses.replace(spec, layout=_repeated(spec.layout, count, offset))
        for spec in problem.dst
    )
    return dataclasses.replace(problem, sides=(*problem.sides[:-1], dst))


def _repeated(layout: AnyLayout, count: int, offset: int) -> AnyLayout:
    if count == 1:
        return layout
    if isinstance(layout, SegmentedLayout):
        layouts = [_repeated(each, count, offset) for each in layout.layouts]
        return SegmentedLayout(layout.dim, layout.lengths, layouts)
    if isinstance(layout, BoxLayout):
        return BoxLayout(
            tuple(
                (rank + i * offset, boxes) for i in range(count) for rank, boxes in layout.entries
            )
        )
    mesh = Mesh(
        ("engine", *layout.mesh.axis_names),
        (count, *layout.mesh.shape),
        tuple(rank + i * offset for i in range(count) for rank in layout.mesh.ranks),
    )
    placements = (Replicate(), *layout.placements)
    return Layout(mesh, placements, ("engine", *layout.order), layout.division)
