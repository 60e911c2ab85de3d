"""`reshard explain`: says what one rank holds, sends and receives, and why.

With a tensor's name: which boxes of it, from whom and why. Without: sums over all tensors.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any, Final

from reshard.cli.arguments import add_json_argument, add_plan_arguments, read_request
from reshard.cli.console import show_json, show_lines, show_table
from reshard.errors import LayoutError
from reshard.explanation import Explanation, Held, explanations
from reshard.peer_sums import PeerSum, Total, peer_sums, totals
from reshard.plan import Plan
from reshard.plan_summary import ranks_as_runs
from reshard.plan_text import format_bytes

__all__ = ["add_arguments", "run"]

_MAX_SHOWN: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_plan_arguments(parser)
    parser.add_argument(
        "name",
        metavar="NAME_OR_RANK",
        help="a tensor, such as lm_head.weight; or a rank alone, for its sums over all tensors",
    )
    parser.add_argument(
        "rank", metavar="RANK", type=int, nargs="?", help="after a name: a rank of either side"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows what the plan says of a rank, and of a tensor if one is named; returns 0."""
    name, rank = _name_and_rank(arguments)
    plan = read_request(arguments).plan()
    sums = peer_sums(plan, rank, name)
    if arguments.json:
        found = [] if name is None else explanations(plan, name, rank)
        show_json(
            {
                "name": name,
                "rank": rank,
                **_place(plan, rank),
                "digest": plan.digest,
                "tensors": [_tensor(each) for each in found],
                "peers": [_peer(each) for each in sums],
                "totals": [_total(each) for each in totals(sums)],
            }
        )
        return 0
    if name is not None:
        show_lines(plan.explain(name, rank))
    else:
        show_lines(_place_text(plan, rank))
    if sums:
        _show(sums, rank)
    elif name is None:
        show_lines(f"rank {rank} neither sends nor receives")
    return 0


def _name_and_rank(arguments: argparse.Namespace) -> tuple[str | None, int]:
    """Returns what was given: a name and a rank, or a rank alone."""
    if arguments.rank is not None:
        return arguments.name, arguments.rank
    if not arguments.name.isdecimal():
        raise LayoutError(
            f"explain: no rank was given, and {arguments.name!r} is none. Give a tensor's name and "
            "a rank, or a rank alone."
        )
    return None, int(arguments.name)


def _place(plan: Plan, rank: int) -> dict[str, Any]:
    """Returns the sides that a rank is of, and where it is; null without a topology."""
    sides = ("source", plan.src_ranks), ("destination", plan.dst_ranks)
    topology = plan.topology
    return {
        "sides": [name for name, ranks in sides if rank in ranks],
        "host": topology and topology.hosts[rank],
        "domain": topology and topology.domains[rank],
    }


def _place_text(plan: Plan, rank: int) -> str:
    place = _place(plan, rank)
    text = f"rank {rank} is of the {' and the '.join(place['sides'])}"
    if plan.topology is None:
        return text
    return f"{text}, on host {place['host']} in domain {place['domain']} of {plan.topology.name}"


def _show(sums: list[PeerSum], rank: int) -> None:
    found = totals(sums)
    num_rows = Counter(each.verb for each in found)
    known = any(each.link for each in sums if each.verb != "copies")
    show_table(
        f"Rank {rank} by peer",
        ("", "peer", "link", "#tensors", "#bytes"),
        [
            (each.verb, each.peer, each.link, len(each.pairs), format_bytes(each.nbytes))
            for each in sums[:_MAX_SHOWN]
        ],
    )
    if len(sums) > _MAX_SHOWN:
        show_lines(f"... and {len(sums) - _MAX_SHOWN} more; --json lists all")
    show_table(
        "In all",
        ("", "link", "#peers", "#tensors", "#bytes"),
        [
            (
                each.verb,
                each.link or ("all" if known else None),
                each.num_peers,
                each.num_tensors,
                format_bytes(each.nbytes),
            )
            for each in found
            # Where all went over one kind of link, its total says it all.
            if each.link or num_rows[each.verb] != 2
        ],
    )


def _peer(each: PeerSum) -> dict[str, Any]:
    return {
        "verb": each.verb,
        "peer": each.peer,
        "link": each.link,
        "num_tensors": len(each.pairs),
        "bytes": each.nbytes,
    }


def _total(each: Total) -> dict[str, Any]:
    return {
        "verb": each.verb,
        "link": each.link,
        "num_peers": each.num_peers,
        "num_tensors": each.num_tensors,
        "bytes": each.nbytes,
    }


def _tensor(found: Explanation) -> dict[str, Any]:
    moves: dict[str, list[dict[str, Any]]] = {"sends": [], "receives": []}
    for move in found.moves:
        moves[move.verb].append(
            {
                "start": list(move.start),
                "stop": list(move.stop),
                "peer": move.peer,
                "is_local": move.peer == found.rank,
                "link": move.link,
                "hop": move.hop,
                "bytes": move.nbytes,
                "num_holders": move.num_holders,
                "why": f"rank {found.rank if move.verb == 'sends' else move.peer} {move.why}",
            }
        )
    return {
        "name": found.name,
        "dims": [{"name": name, "size": size} for name, size in found.dims],
        "wire_dtype": found.wire_dtype,
        "elementwise": found.elementwise,
        "src": _held(found.src),
        "dst": _held(found.dst),
        **moves,
    }


def _held(held: Held) -> dict[str, Any]:
    boxes = [{"start": list(start), "stop": list(stop)} for start, stop in held.boxes]
    ranks = ranks_as_runs(sorted(held.layout.ranks))
    return {"layout": str(held.layout), "ranks": ranks, "holds": boxes}
