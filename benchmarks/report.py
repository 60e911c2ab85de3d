"""Prints results as tables, compares them with the targets and writes them as JSON."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

from benchmarks.results import CaseResult, MethodResult, RefitResults, Spread

__all__ = ["RESULTS", "all_right", "print_refits", "progress", "write"]

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "build" / "benchmarks"
LIMIT = "one_copy"
_HEADINGS: tuple[str, ...] = (
    "method",
    "median s [min..max]",
    "x limit",
    "GB/s",
    "cpu s",
    "first/steady",
    "extra src MB",
    "extra dst MB",
    "outside MB",
    "checked",
)
_BILLION = 10**9


def progress(line: str) -> None:
    """Tells the person who waits what is going on, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def write(results: RefitResults, path: pathlib.Path) -> None:
    """Writes a record and everything in it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(results), indent=1) + "\n")


def all_right(results: RefitResults) -> bool:
    """Returns whether every result was right and the checker found all planted errors."""
    return all(
        case.negative_control == "passed" and all(method.verified for method in case.methods)
        for case in results.cases
    )


def print_refits(results: RefitResults) -> None:
    """Prints one table per case."""
    print(results.machine.summary())
    for case in results.cases:
        print()
        print(_title(case))
        for line in _table(case):
            print(line)
        for name, reason in case.skipped.items():
            print(f"  {name} did not run: {reason}")
        print(f"  checker's negative control: {case.negative_control}")


def _title(case: CaseResult) -> str:
    return (
        f"{case.workload}, pair {case.pair}: {case.about}; {case.num_sources} + "
        f"{case.num_destinations} processes, model {_size(case.model_bytes)}, "
        f"delivered {_size(case.delivered_bytes)}"
    )


def _table(case: CaseResult) -> list[str]:
    limit = case.method(LIMIT)
    rows = [_HEADINGS, *(_row(case, method, limit) for method in case.methods)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return ["  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def _row(case: CaseResult, method: MethodResult, limit: MethodResult | None) -> tuple[str, ...]:
    ratio = f"{method.seconds.median / limit.seconds.median:.2f}" if limit else "-"
    return (
        method.method,
        _spread(method.seconds),
        ratio,
        f"{case.delivered_bytes / method.seconds.median / 1e9:.2f}",
        f"{method.cpu_seconds.median:.3f}",
        f"{method.first_s / method.seconds.median:.2f}",
        f"{method.source_extra_bytes / 1e6:.1f}",
        f"{method.destination_extra_bytes / 1e6:.1f}",
        f"{method.outside_bytes / 1e6:.0f}",
        "yes" if method.verified else "WRONG",
    )


def _spread(spread: Spread) -> str:
    return f"{spread.median:.4f} [{spread.low:.4f}..{spread.high:.4f}]"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f} GB" if nbytes > _BILLION else f"{nbytes / 1e6:.2f} MB"
