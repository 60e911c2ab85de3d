"""What one rank sends and receives, added up per peer and per kind of link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reshard.explanation import Link, check_rank, link_between, pairs_of

if TYPE_CHECKING:
    from reshard.plan import Plan
    from reshard.transfer import Transfer

__all__ = ["PeerSum", "Total", "Verb", "peer_sums", "totals"]

Verb = Literal["sends", "receives", "copies"]
"""What a rank does with bytes; `copies` is for what stays on the rank."""


@dataclass(frozen=True, slots=True)
class PeerSum:
    """What a rank sends to, or receives from, one peer.

    Attributes:
        verb: which of the two; `copies` where the peer is the rank itself.
        peer: the other end.
        link: what carries it; None between ranks whose places are not known.
        pairs: numbers of the tensors.
        nbytes: bytes on the wire.
    """

    verb: Verb
    peer: int
    link: Link | None
    pairs: frozenset[int]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Total:
    """What a rank sends or receives over one kind of link, or over all.

    Attributes:
        verb: as in `PeerSum`.
        link: which kind of link; None for all together.
        num_peers, num_tensors, nbytes: how many.
    """

    verb: Verb
    link: Link | None
    num_peers: int
    num_tensors: int
    nbytes: int


def peer_sums(plan: Plan, rank: int, name: str | None = None) -> list[PeerSum]:
    """Returns a sum per peer: what the rank sends, receives and copies, the most bytes first.

    Args:
        plan: whose tensors.
        rank: of either side.
        name: of the tensor, as for `explanations`; None means all tensors.

    Raises:
        PlanError: if no tensor has this name, or no side has this rank; if a source layout does not
            hold what the rank stores.
    """
    wanted = None if name is None else set(pairs_of(plan, name))
    check_rank(plan, rank)
    rank_plan = plan.rank_plan(rank)
    pairs: dict[tuple[Verb, int], set[int]] = {}
    nbytes: dict[tuple[Verb, int], int] = {}

    def add(verb: Verb, peer: int, transfer: Transfer) -> None:
        if wanted is None or transfer.pair in wanted:
            pairs.setdefault((verb, peer), set()).add(transfer.pair)
            nbytes[verb, peer] = nbytes.get((verb, peer), 0) + plan.nbytes(transfer)

    for transfer in rank_plan.transfers_out():
        if transfer.dst_rank != rank:
            add("sends", transfer.dst_rank, transfer)
    for transfer in rank_plan.transfers_in():
        verb: Verb = "copies" if transfer.src_rank == rank else "receives"
        add(verb, transfer.src_rank, transfer)
    sums = [
        PeerSum(verb, peer, link_between(plan, rank, peer), frozenset(found), nbytes[verb, peer])
        for (verb, peer), found in pairs.items()
    ]
    order = ("sends", "receives", "copies")
    return sorted(sums, key=lambda each: (order.index(each.verb), -each.nbytes, each.peer))


def totals(sums: Iterable[PeerSum]) -> list[Total]:
    """Returns per verb a total for each kind of link, where these are known, and one for all."""
    groups: dict[tuple[Verb, Link | None], list[PeerSum]] = {}
    for each in sums:
        for link in dict.fromkeys((each.link, None)):
            groups.setdefault((each.verb, link), []).append(each)
    found = [
        Total(
            verb,
            link,
            len(group),
            len(frozenset().union(*[each.pairs for each in group])),
            sum([each.nbytes for each in group]),
        )
        for (verb, link), group in groups.items()
    ]
    verbs = list(dict.fromkeys([each.verb for each in found]))
    return sorted(found, key=lambda each: (verbs.index(each.verb), each.link is None))
