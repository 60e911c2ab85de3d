"""`reshard diff`: shows in which bytes, loads, hops and kinds of tensors two plans differ.

The plans are of one model with other degrees or topology, or two files that
`reshard plan --output` wrote. Exit code 0 if they are equal, 1 if not.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reshard.cli.arguments import add_json_argument, add_plan_arguments, read_request
from reshard.cli.console import Steps, show_json, show_lines, show_table
from reshard.cli.field_words import words_of
from reshard.cli.plan import make_document, ranks_text
from reshard.errors import LayoutError, PlanError
from reshard.json_file import read_json
from reshard.plan_summary import FORMAT
from reshard.plan_text import format_bytes, format_seconds

__all__ = ["Difference", "add_arguments", "differences", "run"]

_OTHERS = {"src": "--from", "dst": "--to", "topology": "--topology", "staging": "--staging"}
# Said by `schedule.budget_bytes` as well.
_PLANNED_TWICE = "planned.staging_bytes"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs.

    Attributes:
        subject: kind of tensor, or empty for the whole plan.
        field: which value, by its name in the document.
        first, second: the value in either plan; None where it has none.
    """

    subject: str
    field: str
    first: Any
    second: Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_plan_arguments(parser, takes_files=True)
    parser.add_argument(
        "second", nargs="?", metavar="PLAN", help="with a plan's file before it: the other one"
    )
    group = parser.add_argument_group("what the second plan has instead")
    group.add_argument("--other-from", dest="other_src", metavar="DEGREES")
    group.add_argument("--other-to", dest="other_dst", metavar="DEGREES")
    group.add_argument("--other-topology", metavar="WHERE")
    group.add_argument("--other-staging", metavar="BYTES")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compares two plans; returns 1 if they differ."""
    first, second = _documents(arguments)
    found = list(differences(first, second))
    # What was asked for may be told in two ways, such as by name and by file.
    is_same = all(each.field.startswith("planned.") for each in found)
    is_equal = first["digest"] == second["digest"] and is_same
    if arguments.json:
        show_json(
            {
                "is_equal": is_equal,
                "first_digest": first["digest"],
                "second_digest": second["digest"],
                "differences": [dataclasses.asdict(each) for each in found],
            }
        )
    elif is_equal:
        show_lines(f"equal, digest {first['digest'][:16]}")
    else:
        _show(found, first, second)
    return 0 if is_equal else 1


def _documents(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    others = {name: getattr(arguments, f"other_{name}") for name in _OTHERS}
    given = {name: value for name, value in others.items() if value is not None}
    if arguments.second is not None:
        if given:
            options = ", ".join(f"--other-{_OTHERS[name][2:]}" for name in given)
            raise LayoutError(f"diff: two plans were given, so {options} has no meaning.")
        of_models = [
            option
            for option, value in (
                ("--from", arguments.src),
                ("--to", arguments.dst),
                ("--to-model", arguments.to_model),
                ("--experts", arguments.experts),
                ("--cast", arguments.cast),
                ("--allow-unmatched", arguments.allow_unmatched),
                ("--colocated", arguments.colocated),
                ("--topology", arguments.topology != "none"),
                ("--staging", arguments.staging),
            )
            if value
        ]
        if of_models:
            raise LayoutError(
                f"diff: two plans were given, so {', '.join(of_models)} has no meaning."
            )
        return _read(arguments.model), _read(arguments.second)
    if not given:
        raise LayoutError(
            "diff: only one plan. Give two files that 'reshard plan --output' wrote, or what the "
            "second plan has instead: --other-from, --other-to, --other-topology or "
            "--other-staging."
        )
    other = copy.copy(arguments)
    for name, value in given.items():
        setattr(other, name, value)
    steps = Steps()
    requests = [read_request(each) for each in (arguments, other)]
    first, second = (make_document(each, each.plan(), steps) for each in requests)
    return first, second


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise LayoutError(
            f"diff: {path!r} is no file. A second argument asks for two files that 'reshard plan "
            "--output' wrote; of one model, give what the second plan has instead: --other-from, "
            "--other-to, --other-topology or --other-staging."
        )
    found = read_json(Path(path))
    if found.get("format") != FORMAT:
        raise PlanError(
            f"{path}: no plan of format {FORMAT!r} (format is {found.get('format')!r:.40}). Give "
            "a file that 'reshard plan --output' wrote."
        )
    wrong = next(_wrong_fields(found), None)
    if wrong is not None:
        raise PlanError(
            f"{path}: field {wrong!r} is missing, or not what 'reshard plan' writes. Write it anew."
        )
    return found


def _wrong_fields(document: dict[str, Any]) -> Iterator[str]:
    """Yields the names of fields that differences cannot be shown of."""
    for name, kind in (("digest", str), ("kinds", list), ("loads", dict), ("sums", dict)):
        if not isinstance(document.get(name), kind):
            yield name
            return
    for each in document["kinds"]:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            yield "kinds"
            return
        yield from [f"kinds.{name}" for name, value in each.items() if not _is_shown(name, value)]
    for name in ("src_ranks", "dst_ranks"):
        if not _are_runs(document.get(name)):
            yield name
    for name, value in _flat(document).items():
        if not _is_shown(name, value):
            yield name


def _are_runs(value: object) -> bool:
    """True for first and last of each run of ranks."""
    return isinstance(value, list) and all(
        isinstance(run, list) and [type(rank) for rank in run] == [int, int] for run in value
    )


def _is_shown(name: str, value: object) -> bool:
    """True for a number where the name says that one is there."""
    is_number = name.endswith(("_bytes", "seconds", "_over_mean", "_of_floor", "_over_floor"))
    return not is_number or value is None or isinstance(value, int | float)


def differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[Difference]:
    """Yields what differs between two documents of plans, but for their digests.

    Args:
        first, second: as `reshard.plan_summary.summarize` makes them.

    Raises:
        PlanError: if one of them lacks a field.
    """
    try:
        one, two = _flat(first), _flat(second)
        kinds = [{kind["name"]: kind for kind in plan["kinds"]} for plan in (first, second)]
        loads = first["loads"], second["loads"]
    except (AttributeError, KeyError, TypeError) as error:
        raise PlanError(f"diff: a plan's file lacks {error}. Write it anew.") from None
    if one.get("topology.name") != two.get("topology.name"):
        # Says the same, unless equal names stand for several, as gb200-nvl72:64 and :32.
        one.pop("planned.topology", None)
        two.pop("planned.topology", None)
    for field in dict.fromkeys((*one, *two)):
        if one.get(field) != two.get(field):
            yield Difference("", field, one.get(field), two.get(field))
    for name in dict.fromkeys((*kinds[0], *kinds[1])):
        rows = [side.get(name, {}) for side in kinds]
        for field in dict.fromkeys((*rows[0], *rows[1])):
            if rows[0].get(field) != rows[1].get(field):
                yield Difference(name, field, rows[0].get(field), rows[1].get(field))
    if loads[0] != loads[1] and one == two and kinds[0] == kinds[1]:
        yield Difference("", "loads", "other ranks are busy", "other ranks are busy")


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the single values of a document by dotted name, without lists of kinds and ranks."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if not prefix and name in ("digest", "kinds", "loads", "format"):
            continue
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif name != "cuts" and f"{prefix}{name}" != _PLANNED_TWICE:
            found[f"{prefix}{name}"] = value
    return found


def _show(found: list[Difference], first: dict[str, Any], second: dict[str, Any]) -> None:
    show_lines(f"different, digests {first['digest'][:16]} and {second['digest'][:16]}")
    if not found:
        show_lines("what they move and carry is the same")
        return
    whole = [each for each in found if not each.subject]
    kinds = [each for each in found if each.subject]
    if whole:
        rows: list[tuple[str, ...]] = [
            (words_of(each.field), *_texts(each), _change(each)) for each in whole
        ]
        show_table("The plans", ("value", "#first", "#second", "#change"), _visible(rows))
    if kinds:
        rows = [
            (each.subject, words_of(each.field), *_texts(each), _change(each))
            for each in kinds
            if not isinstance(each.first or each.second, dict)
        ]
        show_table(
            "Kinds of tensors",
            ("kind of tensor", "value", "#first", "#second", "#change"),
            _visible(rows),
        )


def _visible(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Returns the rows whose two values differ as they are written."""
    return [row for row in rows if row[-3] != row[-2]]


def _texts(difference: Difference) -> tuple[str, str]:
    return _text(difference.field, difference.first), _text(difference.field, difference.second)


def _text(field: str, value: Any) -> str:  # noqa: ANN401 - of a JSON document
    if value is None:
        return "none"
    if isinstance(value, list):
        is_ranks = field in ("src_ranks", "dst_ranks")
        return ranks_text(value) if is_ranks else ", ".join(map(str, value)) or "none"
    if field.endswith(("_bytes", "bytes_per_second")):
        return format_bytes(value) + ("/s" if field.endswith("second") else "")
    if field.endswith("seconds"):
        return format_seconds(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _change(difference: Difference) -> str:
    values = difference.first, difference.second
    if not all(isinstance(value, int | float) for value in values) or not difference.first:
        return ""
    if difference.field.endswith("rank"):
        return ""
    return f"{100 * (difference.second / difference.first - 1):+.1f} %"
