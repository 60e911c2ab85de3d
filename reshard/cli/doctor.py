"""`reshard doctor`: says what is installed, which libraries would be loaded and what works here.

Loads the native library of reshard, and of NVIDIA's the driver, copies of NCCL, and what variables
name; no framework. Exit code 1 if reshard itself does not work, or what a variable names.
"""

from __future__ import annotations

import argparse
import dataclasses
from itertools import groupby

from reshard.cli.arguments import add_json_argument
from reshard.cli.console import show_facts, show_json, show_lines
from reshard.cli.machine_checks import Check, checks

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows all checks; returns 1 if one of them is an error."""
    found = checks()
    is_usable = not any(check.status == "error" for check in found)
    if arguments.json:
        checked = [dataclasses.asdict(check) for check in found]
        show_json({"is_usable": is_usable, "checks": checked})
    else:
        for section, group in groupby(found, key=lambda check: check.section):
            show_lines(section)
            show_facts([(f"  {check.name}", _text(check)) for check in group])
        show_lines(
            "", "reshard works here" if is_usable else "reshard does not work here as it is set up"
        )
    return 0 if is_usable else 1


def _text(check: Check) -> str:
    return check.value if check.status == "ok" else f"{check.value} [{check.status}]"
