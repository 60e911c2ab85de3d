"""What one rank does with one tensor, and why: as values, for `Plan.explain` and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reshard.box import Box
from reshard.errors import PlanError
from reshard.layout import AnyLayout
from reshard.logical_space import Side, pieces_of_rank
from reshard.matching import TensorPair
from reshard.suggestion import did_you_mean
from reshard.transfer import BoxKey, Transfer

if TYPE_CHECKING:
    from reshard.plan import Plan

__all__ = [
    "Explanation",
    "Held",
    "Link",
    "Move",
    "check_rank",
    "explanations",
    "link_between",
    "pairs_of",
    "ranks_text",
]

Link = Literal["same rank", "inside the domain", "network"]
"""What carries bytes from one rank to another."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank stores of a tensor on one side.

    Attributes:
        layout: of the tensor on this side.
        boxes: logical boxes that the rank stores.
    """

    layout: AnyLayout
    boxes: tuple[BoxKey, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A box that a rank sends or receives.

    Attributes:
        verb: which of the two.
        start, stop: bounds per logical dim.
        peer: the other end; the rank itself for a copy in place.
        link: what carries it; None between ranks whose places are not known.
        hop: 0 for what is read from a source's memory.
        nbytes: bytes on the wire.
        num_holders: how many source ranks hold the box; 0 for a copy in place and at later hops.
        why: why the sending rank sends it; a sentence without its start, which is the rank.
    """

    verb: Literal["sends", "receives"]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    peer: int
    link: Link | None
    hop: int
    nbytes: int
    num_holders: int
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One canonical tensor as one rank sees it.

    Attributes:
        name: canonical name.
        dims: name and size of each logical dim.
        wire_dtype: what is sent.
        elementwise: what becomes of a value x that the source stores; None if nothing.
        rank: whose view it is.
        src, dst: what the rank stores on each side.
        moves: what it sends, then what it receives.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    wire_dtype: str
    elementwise: str | None
    rank: int
    src: Held
    dst: Held
    moves: tuple[Move, ...]


def explanations(plan: Plan, name: str, rank: int) -> list[Explanation]:
    """Returns one explanation per canonical tensor that a name stands for.

    Args:
        plan: whose tensors.
        name: canonical, or as a side stores it; a stored tensor may hold several canonical ones.
        rank: of either side.

    Raises:
        PlanError: if no tensor of the plan has this name, or no side has this rank; if a source
            layout does not hold what the rank stores.
    """
    numbers = pairs_of(plan, name)
    check_rank(plan, rank)
    rank_plan = plan.rank_plan(rank)
    outgoing = list(rank_plan.transfers_out())
    incoming = list(rank_plan.transfers_in())
    found = []
    for number in numbers:
        pair = plan.pairs[number]
        space = pair.geometry.space
        moves = [_move(plan, "sends", t) for t in outgoing if t.pair == number]
        moves += [_move(plan, "receives", t) for t in incoming if t.pair == number]
        found.append(
            Explanation(
                pair.name,
                tuple(zip(space.names, space.shape, strict=True)),
                str(pair.wire_dtype),
                None if pair.change is None else str(pair.change),
                rank,
                _held(pair.src_side, len(space.shape), rank),
                _held(pair.dst_side, len(space.shape), rank),
                tuple(moves),
            )
        )
    return found


def pairs_of(plan: Plan, name: str) -> list[int]:
    """Returns the numbers of the pairs that a name stands for.

    Raises:
        PlanError: if there is none.
    """
    numbers = [i for i, pair in enumerate(plan.pairs) if name in _names(pair)]
    if not numbers:
        known = sorted({each for pair in plan.pairs for each in _names(pair)})
        raise PlanError(
            f"no tensor of this plan is called {name!r}; it has {len(plan.pairs)}, such as "
            f"{[pair.name for pair in plan.pairs[:3]]}.{did_you_mean(name, known)}"
        )
    return numbers


def check_rank(plan: Plan, rank: int) -> None:
    """Raises PlanError for a rank that is on no side of a plan."""
    if rank not in plan.ranks:
        raise PlanError(
            f"no rank of this plan is {rank!r}: the source has {_numbers(plan.src_ranks)}, the "
            f"destination {_numbers(plan.dst_ranks)}. Ranks of both sides are numbered in one "
            "space."
        )


def link_between(plan: Plan, src: int, dst: int) -> Link | None:
    """Returns what carries bytes from a rank to a rank; None where the plan has no topology."""
    if src == dst:
        return "same rank"
    if plan.topology is None:
        return None
    domains = plan.topology.domains
    return "inside the domain" if domains[src] == domains[dst] else "network"


def _names(pair: TensorPair) -> set[str]:
    return {pair.name, pair.src.name, pair.dst.name}


def _held(side: Side, ndim: int, rank: int) -> Held:
    return Held(side.layout, tuple((p.start, p.stop) for p in pieces_of_rank(side, ndim, rank)))


def _move(plan: Plan, verb: Literal["sends", "receives"], transfer: Transfer) -> Move:
    is_copy = transfer.src_rank == transfer.dst_rank
    holders = () if is_copy else _holders(plan, transfer)
    if is_copy:
        why = "holds it already"
    elif transfer.hop:
        why = f"received it at hop {transfer.hop - 1} and {_passing(plan, transfer, holders)}"
    else:
        why = _serving(plan, transfer, holders)
    return Move(
        verb,
        transfer.start,
        transfer.stop,
        transfer.dst_rank if verb == "sends" else transfer.src_rank,
        link_between(plan, transfer.src_rank, transfer.dst_rank),
        transfer.hop,
        plan.nbytes(transfer),
        0 if transfer.hop else len(holders),
        why,
    )


def _serving(plan: Plan, transfer: Transfer, holders: tuple[int, ...]) -> str:
    """Returns why a holder sends it: those of the taker's own domain do, if there are any."""
    if len(holders) == 1:
        return "is the only holder"
    near = _within(plan, transfer.dst_rank, holders)
    if near:
        of_domain = f"of domain {_domain(plan, transfer.dst_rank)}"
        if len(near) == 1:
            return f"is the only holder {of_domain}, one of {len(holders)} in all"
        listed = ranks_text(near)
        return f"is one of {len(near)} holders {of_domain} ({listed}), {_sharing(plan, near)}"
    text = f"is one of {len(holders)} holders ({ranks_text(holders)}), {_sharing(plan, holders)}"
    if plan.topology is None:
        return text
    return f"{text}; none is in domain {_domain(plan, transfer.dst_rank)}"


def _sharing(plan: Plan, holders: tuple[int, ...]) -> str:
    if tuple(sorted(holders)) in plan.planner.shares:
        return "which share it out unevenly, as some of them have more to send besides"
    return "which share it out"


def _passing(plan: Plan, transfer: Transfer, holders: tuple[int, ...]) -> str:
    """Returns to where a rank passes it on, and why the holders do not send it there."""
    if plan.topology is None:
        return "passes it on"
    domain = _domain(plan, transfer.dst_rank)
    if link_between(plan, transfer.src_rank, transfer.dst_rank) != "inside the domain":
        return f"passes it on to domain {domain}, as the holders have no time for all domains"
    near = _within(plan, transfer.dst_rank, holders)
    reason = "which gets each byte once from outside"
    if near:
        reason = f"where {ranks_text(near)} send{'s' if len(near) == 1 else ''} each byte once"
    return f"passes it on inside domain {domain}, {reason}"


def _domain(plan: Plan, rank: int) -> int:
    return -1 if plan.topology is None else plan.topology.domains[rank]


def _within(plan: Plan, rank: int, others: tuple[int, ...]) -> tuple[int, ...]:
    """Returns those of other ranks that are in a rank's domain; none without a topology."""
    return tuple([each for each in others if link_between(plan, each, rank) == "inside the domain"])


def _holders(plan: Plan, transfer: Transfer) -> tuple[int, ...]:
    """Returns the source ranks that hold all of it, ascending."""
    pair = plan.pairs[transfer.pair]
    side, ndim = pair.src_side, len(pair.geometry.space.shape)
    wanted = Box.from_bounds(transfer.start, transfer.stop)
    return tuple(
        sorted(
            rank
            for rank in side.layout.ranks
            if any(
                Box.from_bounds(piece.start, piece.stop).contains(wanted)
                for piece in pieces_of_rank(side, ndim, rank)
            )
        )
    )


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Returns ascending ranks in few words.

    Example:
        >>> ranks_text((7,)), ranks_text((4, 5, 6)), ranks_text(tuple(range(3, 64, 4)))
        ('rank 7', 'ranks 4 to 6', 'ranks 3 to 63 in steps of 4')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_numbers(ranks)}"


def _numbers(ranks: tuple[int, ...]) -> str:
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    is_even = ranks == tuple(range(ranks[0], ranks[-1] + 1, step)) if ranks else False
    if is_even and len(ranks) > 1 and (step == 1 or len(ranks) > 8):
        return f"{ranks[0]} to {ranks[-1]}" + (f" in steps of {step}" if step > 1 else "")
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"
