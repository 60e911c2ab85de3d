"""What one rank does with one tensor, and why: as values, for `Plan.explain` and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
        why: why the sending rank sends it, without its number in front.
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
        rank: whose view it is.
        src, dst: what the rank stores on each side.
        moves: what it sends, then what it receives.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    wire_dtype: str
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
                rank,
                _held(pair.src.layout, pair.geometry.src, len(space.shape), rank),
                _held(pair.dst.layout, pair.geometry.dst, len(space.shape), rank),
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
            f"no rank of this plan is {rank!r}: the source has {_ranks_text(plan.src_ranks)}, the "
            f"destination {_ranks_text(plan.dst_ranks)}. Ranks of both sides are numbered in one "
            "space; TensorSpec.shifted moves one side's."
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


def _held(layout: AnyLayout, side: Side, ndim: int, rank: int) -> Held:
    return Held(layout, tuple((p.start, p.stop) for p in pieces_of_rank(side, ndim, rank)))


def _move(plan: Plan, verb: Literal["sends", "receives"], transfer: Transfer) -> Move:
    num_holders = 0
    peer = transfer.dst_rank if verb == "sends" else transfer.src_rank
    if transfer.src_rank == transfer.dst_rank:
        why = "which holds it already"
    elif transfer.hop:
        why = (
            f"which received it at hop {transfer.hop - 1} and passes it on{_reach(plan, transfer)}"
        )
    else:
        num_holders = _num_holders(plan, transfer)
        why = (
            "the only holder"
            if num_holders == 1
            else f"one of {num_holders} holders, which share out stripes and turns so that all "
            "send alike"
        )
    return Move(
        verb,
        transfer.start,
        transfer.stop,
        peer,
        link_between(plan, transfer.src_rank, transfer.dst_rank),
        transfer.hop,
        plan.nbytes(transfer),
        num_holders,
        why,
    )


def _reach(plan: Plan, transfer: Transfer) -> str:
    """Returns why it is passed on, as far as domains say."""
    if plan.topology is None:
        return ""
    if link_between(plan, transfer.src_rank, transfer.dst_rank) == "inside the domain":
        return " inside their domain, which gets each byte once from outside"
    return " to another domain, for the holders have no time for all domains"


def _num_holders(plan: Plan, transfer: Transfer) -> int:
    geometry = plan.pairs[transfer.pair].geometry
    count = 0
    for rank in geometry.src.layout.ranks:
        for piece in pieces_of_rank(geometry.src, len(geometry.space.shape), rank):
            if all(
                a <= b and c <= d
                for a, b, c, d in zip(
                    piece.start, transfer.start, transfer.stop, piece.stop, strict=True
                )
            ):
                count += 1
                break
    return count


def _ranks_text(ranks: tuple[int, ...]) -> str:
    """Returns ascending ranks in few words."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"
