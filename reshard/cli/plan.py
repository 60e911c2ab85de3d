"""`reshard plan`: says what moves, how much each rank carries, and how close to the floor that is.

With `--json` or `--output` the document of `Plan.to_json`, and what was asked for.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from reshard.cli.arguments import (
    Request,
    add_json_argument,
    add_plan_arguments,
    read_request,
)
from reshard.cli.console import Steps, show_facts, show_json, show_lines, show_table
from reshard.errors import LayoutError
from reshard.page import make_page
from reshard.plan import Plan
from reshard.plan_summary import FORMAT, summarize
from reshard.plan_text import counted, format_bytes, format_seconds

__all__ = ["add_arguments", "make_document", "ranks_text", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_plan_arguments(parser)
    add_json_argument(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the JSON document to a file as well, for 'reshard diff'",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page to look at in a browser: who holds what, who sends to whom, link loads "
        "against the floor, rounds",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plans, shows the plan and writes the files that were asked for; returns 0."""
    request = read_request(arguments)
    for option, path in (("--output", arguments.output), ("--html", arguments.html)):
        if path is not None:
            _check_writable(option, path)
    plan, steps = request.plan(), Steps()
    document = make_document(request, plan, steps)
    title = f"{request.sides.model}; {request.sides.src} -> {request.sides.dst}"
    if arguments.html is not None:
        with steps.step("drawing the page"):
            page = make_page(plan, title=title)
        _write("--html", arguments.html, page)
    if arguments.output is not None:
        _write("--output", arguments.output, json.dumps(document) + "\n")
    if arguments.json:
        show_json(document)
    else:
        _show(document, title)
        written = [str(path) for path in (arguments.output, arguments.html) if path is not None]
        if written:
            show_lines("", f"Written: {', '.join(written)}")
    return 0


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LayoutError(f"{option} {path}: {error.strerror}.") from error


def _check_writable(option: str, path: Path) -> None:
    """Raises LayoutError for a file that cannot be written, before anything is planned."""
    if path.is_dir():
        problem = "is a folder"
    elif not path.parent.is_dir():
        problem = f"its folder {path.parent} does not exist"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "you may not write there"
    else:
        return
    raise LayoutError(f"{option} {path}: {problem}. Give a file in a folder that you may write to.")


def make_document(request: Request, plan: Plan, steps: Steps) -> dict[str, Any]:
    """Returns the document of a plan with what was asked for, and shows how far it is."""
    with steps.step("adding up loads"):
        return {"format": FORMAT, "planned": request.described(), **summarize(plan)}


def _show(document: dict[str, Any], title: str) -> None:
    show_lines(title, "")
    show_facts(_facts(document))
    if document["planned"]["idle_casts"]:
        idle = ", ".join(document["planned"]["idle_casts"])
        show_lines("", f"--cast {idle} changes nothing: the destination stores no such type.")
    show_table(
        "What moves", ("kind of tensor", "#tensors", "#of", "#moved", "as"), _kinds(document)
    )
    show_table(
        "Per rank",
        ("", "#least", "#mean", "#most", "#most / mean", "#busiest rank"),
        [
            (
                name.replace("_", " "),
                format_bytes(row["min_bytes"]),
                format_bytes(row["mean_bytes"]),
                format_bytes(row["max_bytes"]),
                f"{row['max_over_mean']:.3f}",
                row["busiest_rank"],
            )
            for name, row in document["sums"].items()
            if row["total_bytes"]
        ],
    )
    _show_links(document["links"])
    _show_floor(document["floor"])
    _show_prediction(document["prediction"])


def _kinds(document: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            kind["name"],
            kind["num_tensors"],
            format_bytes(kind["tensor_bytes"]),
            format_bytes(kind["moved_bytes"]),
            ", ".join([src if src == dst else f"{src} -> {dst}" for src, dst in kind["dtypes"]]),
        )
        for kind in document["kinds"]
    ]


def _facts(document: dict[str, Any]) -> list[tuple[str, object]]:
    schedule, topology = document["schedule"], document["topology"]
    facts: list[tuple[str, object]] = [
        ("source ranks", ranks_text(document["src_ranks"])),
        ("destination ranks", ranks_text(document["dst_ranks"])),
        ("moved between ranks", format_bytes(document["moved_bytes"])),
    ]
    if topology is not None:
        floor = document["floor"]
        crossing = document["crossing_bytes"]
        facts += [
            ("topology", f"{topology['name']}, {counted(topology['num_domains'], 'domain')}"),
            ("moved between domains", format_bytes(crossing)),
            ("at least between domains", format_bytes(floor["crossing_bytes"])),
        ]
    facts.append(("hops", document["num_hops"]))
    budget = format_bytes(schedule["budget_bytes"])
    if schedule["chunk_bytes"] is None:
        facts.append(("rounds", f"{schedule['num_rounds']} in {budget} per rank"))
    else:
        staging = format_bytes(schedule["staging_bytes"])
        facts += [
            ("rounds", f"{schedule['num_rounds']} of {format_bytes(schedule['chunk_bytes'])}"),
            ("staging on the busiest rank", f"{staging} of {budget}"),
        ]
    return [*facts, ("digest", document["digest"][:16])]


def ranks_text(runs: list[list[int]]) -> str:
    """Returns how many ranks there are and which, from the first and last of each run of them."""
    number = sum(last - first + 1 for first, last in runs)
    listed = ", ".join(f"{first} to {last}" for first, last in runs[:4])
    return f"{number} ({listed}{', ...' if len(runs) > 4 else ''})"


def _show_links(links: dict[str, Any] | None) -> None:
    if links is None:
        return
    show_table(
        "Per kind of link",
        ("", "#in all", "busiest", "#bytes", "#per second", "#time", "#time / floor"),
        [
            (
                name.replace("_", " "),
                format_bytes(row["total_bytes"]),
                row["busiest"],
                format_bytes(row["busiest_bytes"]),
                f"{format_bytes(row['bytes_per_second'])}/s",
                format_seconds(row["busy_seconds"]),
                None if row["time_over_floor"] is None else f"{row['time_over_floor']:.3f}",
            )
            for name, row in links.items()
        ],
    )


def _show_floor(floor: dict[str, Any] | None) -> None:
    if floor is None:
        show_lines("", "No topology was given, so there is no floor; see --topology.")
        return
    show_lines(
        "", f"Floor: {format_seconds(floor['seconds'])}, {floor['reason']}. No plan is faster."
    )
    show_table(
        "What has to pass at least",
        ("cut", "#bytes", "#per second", "#time"),
        [
            (
                cut["name"],
                format_bytes(cut["bytes"]),
                f"{format_bytes(cut['bytes_per_second'])}/s",
                format_seconds(cut["seconds"]),
            )
            for cut in floor["cuts"]
        ],
    )


def _show_prediction(prediction: dict[str, Any] | None) -> None:
    if prediction is None:
        return
    show_lines("", "Predicted time", "")
    facts = [
        (
            "this plan",
            f"{format_seconds(prediction['seconds'])}, of which the floor is "
            f"{prediction['share_of_floor']:.1%}; busiest: {prediction['busiest']}",
        ),
        ("holders alone", format_seconds(prediction["direct_seconds"])),
    ]
    conventional = prediction["gather_and_broadcast_seconds"]
    if conventional is not None:  # it is known for some kinds of machines only
        facts.append(("gather and broadcast", format_seconds(conventional)))
    show_facts(facts)
