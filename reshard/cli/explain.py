"""`reshard explain`: says what one rank holds, sends and receives of one tensor, and why."""

from __future__ import annotations

import argparse
from typing import Any

from reshard.cli.arguments import add_json_argument, add_plan_arguments, read_request
from reshard.cli.console import show_json, show_lines
from reshard.explanation import Explanation, Held, explanations

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_plan_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="a tensor, such as lm_head.weight")
    parser.add_argument("rank", metavar="RANK", type=int, help="a rank of either side")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows what the plan says of a tensor and a rank; returns 0."""
    plan = read_request(arguments).plan()
    if arguments.json:
        found = explanations(plan, arguments.name, arguments.rank)
        show_json(
            {
                "name": arguments.name,
                "rank": arguments.rank,
                "digest": plan.digest,
                "tensors": [_tensor(each) for each in found],
            }
        )
    else:
        show_lines(plan.explain(arguments.name, arguments.rank))
    return 0


def _tensor(found: Explanation) -> dict[str, Any]:
    moves: dict[str, list[dict[str, Any]]] = {"sends": [], "receives": []}
    for move in found.moves:
        moves[move.verb].append(
            {
                "start": list(move.start),
                "stop": list(move.stop),
                "peer": move.peer,
                "is_local": move.peer == found.rank,
                "hop": move.hop,
                "bytes": move.nbytes,
                "num_holders": move.num_holders,
                "why": f"rank {found.rank if move.verb == 'sends' else move.peer}: {move.why}",
            }
        )
    return {
        "name": found.name,
        "dims": [{"name": name, "size": size} for name, size in found.dims],
        "wire_dtype": found.wire_dtype,
        "src": _held(found.src),
        "dst": _held(found.dst),
        **moves,
    }


def _held(held: Held) -> dict[str, Any]:
    boxes = [{"start": list(start), "stop": list(stop)} for start, stop in held.boxes]
    return {"layout": str(held.layout), "holds": boxes}
