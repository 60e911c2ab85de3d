"""`reshard simulate`: executes the plan on small tensors in this process and checks every element.

The small model is cut as the large one is, on as many ranks, with the same topology, and its boxes
into stripes as those of large tensors.
Exit code 1 if an element is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Final

from reshard.cli.arguments import (
    Request,
    Sides,
    add_json_argument,
    add_plan_arguments,
    read_request,
)
from reshard.cli.console import Steps, show_facts, show_json, show_lines, show_table
from reshard.errors import LayoutError
from reshard.loopback import numpy_dtype
from reshard.plan_text import format_bytes, format_seconds
from reshard.simulation import Simulation, simulate

__all__ = ["add_arguments", "run"]

_MAX_SHOWN: Final = 20
_MANY_ARRAYS: Final = 60_000
"""So many take ten seconds and more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_plan_arguments(parser)
    parser.add_argument(
        "--layers",
        type=int,
        metavar="N",
        help="keep only so many layers of the model; pipeline stages share them anew",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="limit for the move; default: 600",
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Moves and checks; returns 1 if an element is wrong."""
    request = read_request(arguments)
    for dtype in {parameter.dtype for parameter in request.sides.model.parameters}:
        numpy_dtype(dtype)  # raises if it is missing, before anything is planned
    _check_layers(request.sides, arguments.layers)
    small = dataclasses.replace(request, sides=request.sides.scaled_down(arguments.layers))
    times_larger = _largest(request) // _largest(small)
    plan, steps = small.plan(times_larger=times_larger), Steps()
    num_arrays = len(plan.pairs) * len(plan.dst_ranks)
    if arguments.layers is None and num_arrays > _MANY_ARRAYS:
        sys.stderr.write(
            f"reshard simulate: {len(plan.pairs)} tensors on {len(plan.dst_ranks)} destination "
            "ranks take a while. Fewer layers take less, such as --layers 16.\n"
        )
    for rank in steps.each("planning each rank", plan.ranks):
        plan.rank_plan(rank)
    with steps.step("moving and checking"):
        found = simulate(plan, timeout_s=arguments.timeout)
    if arguments.json:
        show_json(
            {
                "model": small.sides.model.name,
                "model_bytes": small.sides.model.nbytes,
                "num_ranks": len(plan.ranks),
                "digest": plan.digest,
                "num_arrays": found.num_arrays,
                "num_elements": found.num_elements,
                "num_wrong_elements": sum(each.num_wrong for each in found.wrong),
                "times_larger": times_larger,
                "moved_bytes_per_hop": list(found.volumes.moved),
                "striped_bytes": found.volumes.striped,
                "exchanged_bytes": found.volumes.exchanged,
                "relayed_bytes": found.volumes.relayed,
                "copied_bytes": found.volumes.copied,
                "move_seconds": found.move_seconds,
                "check_seconds": found.check_seconds,
                "wrong_arrays": [dataclasses.asdict(each) for each in found.wrong],
            }
        )
    else:
        sides = f"{small.sides.src} -> {small.sides.dst}"
        parameters = f"{len(small.sides.model.parameters)} parameters"
        size = format_bytes(small.sides.model.nbytes)
        show_lines(f"{small.sides.model.name}: {parameters}, {size}; {sides}", "")
        _show(found, len(plan.ranks), times_larger)
    return 1 if found.wrong else 0


def _check_layers(sides: Sides, num_layers: int | None) -> None:
    """Raises LayoutError if stages would be left without a layer."""
    for option, side in (("--from", sides.src), ("--to", sides.dst)):
        if num_layers is not None and side.pp > num_layers:
            raise LayoutError(
                f"simulate: --layers {num_layers} are fewer than the {side.pp} pipeline stages of "
                f"{side}. Give --layers {side.pp} or more, or fewer stages with {option}."
            )


def _largest(request: Request) -> int:
    """Returns the elements of the largest tensor."""
    return max([parameter.num_elements for parameter in request.sides.model.parameters], default=1)


def _show(found: Simulation, num_ranks: int, times_larger: int) -> None:
    volumes = found.volumes
    show_facts(
        [
            ("ranks", num_ranks),
            ("stand for tensors of", f"{times_larger} times their size"),
            *[
                (f"moved at hop {hop}", format_bytes(nbytes))
                for hop, nbytes in enumerate(volumes.moved)
            ],
            ("in stripes, of hop 0", format_bytes(volumes.striped)),
            ("passed on inside domains", format_bytes(volumes.exchanged)),
            ("passed on to other domains", format_bytes(volumes.relayed)),
            ("copied in place", format_bytes(volumes.copied)),
            ("time to move", format_seconds(found.move_seconds)),
            ("time to check", format_seconds(found.check_seconds)),
        ]
    )
    if not found.wrong:
        show_lines(
            "",
            f"all {found.num_elements} elements of {found.num_arrays} destination arrays are right",
        )
        return
    show_table(
        f"WRONG: {len(found.wrong)} of {found.num_arrays} destination arrays",
        ("tensor", "#rank", "first wrong index", "#wrong", "#of"),
        [
            (each.name, each.rank, list(each.index), each.num_wrong, each.num_elements)
            for each in found.wrong[:_MAX_SHOWN]
        ],
    )
    if len(found.wrong) > _MAX_SHOWN:
        show_lines(f"... and {len(found.wrong) - _MAX_SHOWN} more; --json lists all")
