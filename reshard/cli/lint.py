"""`reshard lint`: lists what is wrong with a plan, or odd enough to look at.

Exit code 1 if there is an error, with `--strict` also for warnings.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import Final

from reshard.cli.arguments import Request, add_json_argument, add_plan_arguments, read_request
from reshard.cli.console import Steps, show_json, show_lines, show_table
from reshard.finding import Finding
from reshard.lint import lint_names, lint_specs

__all__ = ["add_arguments", "run"]

_MAX_SHOWN: Final = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_plan_arguments(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows all findings; returns 1 if one of them is bad enough."""
    findings = _find(read_request(arguments))
    counts: Counter[str] = Counter(finding.severity for finding in findings)
    is_bad = bool(counts["error"] or (arguments.strict and counts["warning"]))
    if arguments.json:
        show_json(
            {
                "num_errors": counts["error"],
                "num_warnings": counts["warning"],
                "num_notes": counts["note"],
                "findings": [dataclasses.asdict(finding) for finding in findings],
            }
        )
    else:
        _show(findings, counts)
    return int(is_bad)


def _find(request: Request) -> list[Finding]:
    sides = request.sides
    src, dst = sides.specs()
    models = sides.model, sides.dst_model
    names = dict.fromkeys(name for model in models for name in model.unknown_names)
    findings = lint_specs(src, dst, casts=request.casts, allow_unmatched=request.allow_unmatched)
    notes = dict.fromkeys((model.name, note) for model in models for note in model.notes)
    said = [Finding("note", "model", name, note) for name, note in notes]
    if any(finding.severity == "error" for finding in findings):
        return [*findings, *lint_names(names), *said]
    plan, steps = request.plan((src, dst)), Steps()
    with steps.step("planning and looking"):
        found = plan.lint()
    errors = [finding for finding in found if finding.severity == "error"]
    return [*errors, *findings, *lint_names(names), *found[len(errors) :], *said]


def _show(findings: list[Finding], counts: Counter[str]) -> None:
    if findings:
        show_table(
            ", ".join(
                f"{counts[word]} {word}{'' if counts[word] == 1 else 's'}"
                for word in ("error", "warning", "note")
            ),
            ("severity", "code", "about", "what"),
            [
                (finding.severity, finding.code, finding.subject or "the plan", finding.message)
                for finding in findings[:_MAX_SHOWN]
            ],
            folds=3,
        )
    else:
        show_lines("nothing found")
    if len(findings) > _MAX_SHOWN:
        show_lines(f"... and {len(findings) - _MAX_SHOWN} more; --json lists all")
