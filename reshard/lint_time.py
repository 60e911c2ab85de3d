"""What makes a plan take longer than it might."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from reshard.errors import PlanError
from reshard.finding import Finding
from reshard.plan_text import format_bytes, format_seconds
from reshard.timing import POSTING

if TYPE_CHECKING:
    from reshard.plan import Plan

__all__ = ["MAX_TIMES_FLOOR", "far_from_floor", "staging"]

MAX_TIMES_FLOOR: Final = 1.1
"""How much longer than the floor the busiest link may be busy before that is a finding."""


def staging(plan: Plan) -> Iterator[Finding]:
    """A budget that does not suffice, or that makes messages small."""
    try:
        _ = plan.schedule if plan.topology is None else plan.view
    except PlanError as error:
        yield Finding("error", "staging", "", str(error))
        return
    if plan.topology is None or plan.view.prediction.busiest != POSTING:
        return
    num_rounds = plan.view.pace.num_rounds
    if num_rounds > 1:
        yield Finding(
            "warning",
            "staging",
            "",
            f"{format_bytes(plan.staging_bytes)} of staging take {num_rounds} rounds of messages "
            "so small that posting them takes longer than their bytes. Give more.",
        )
    else:
        yield Finding(
            "note",
            "staging",
            "",
            "all of it moves in one round, in messages so small that posting them takes longer "
            "than their bytes.",
        )


def far_from_floor(plan: Plan) -> Iterator[Finding]:
    """A link that is busy for longer than some other plan might need."""
    topology = plan.topology
    if topology is None:
        return
    try:
        view = plan.view
    except PlanError:  # `staging` has said it
        return
    floor = view.floor
    if view.busy_seconds <= MAX_TIMES_FLOOR * floor.seconds:
        return
    text = (
        f"it is busy for {format_seconds(view.busy_seconds)}, "
        f"{view.busy_seconds / floor.seconds:.2f} times the floor of "
        f"{format_seconds(floor.seconds)} ({floor.reason}). "
    )
    if view.busiest.startswith("link "):
        text += "Links inside domains carry what ranks there exchange; faster ones would help."
        yield Finding("warning", "far-from-floor", view.busiest, text)
        return
    sources, destinations = set(plan.src_ranks), set(plan.dst_ranks)
    one, other = (
        {topology.domains[rank] for rank in ranks}
        for ranks in (sources - destinations, destinations - sources)
    )
    mixed = sorted(one & other)
    remedy = "Other degrees or places of ranks may come nearer."
    if sources & destinations:
        remedy = f"Ranks are on both sides: what a domain lacks few of them may want. {remedy}"
    if mixed:
        which = f"domain{'s' * (len(mixed) > 1)} {', '.join(map(str, mixed[:8]))}"
        which += ", ..." * (len(mixed) > 8)
        remedy = f"In {which} there are ranks of both sides; give each side domains of its own."
    text += (
        "Only ranks that want a box take it in, and only those that have it send it, so that cards "
        f"and links of others stay idle. {remedy}"
    )
    yield Finding("warning", "far-from-floor", view.busiest, text)
