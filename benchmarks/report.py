"""Prints results as tables, compares them with the targets and writes them as JSON."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from benchmarks.machine import Machine
from benchmarks.results import (
    CaseResult,
    DevicePackResults,
    DeviceRefitResults,
    IssueResults,
    KillResults,
    MethodResult,
    MoveResults,
    PackResults,
    PlanResults,
    RefitResults,
    Spread,
)
from benchmarks.targets import LIMIT, Verdict

__all__ = [
    "RESULTS",
    "all_right",
    "print_device_packs",
    "print_device_refits",
    "print_issues",
    "print_kills",
    "print_moves",
    "print_packs",
    "print_plans",
    "print_refits",
    "print_verdicts",
    "progress",
    "write",
]

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "build" / "benchmarks"
_BILLION = 10**9
_REFIT_HEADINGS = (
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

AnyResults = (
    RefitResults
    | PlanResults
    | KillResults
    | PackResults
    | IssueResults
    | MoveResults
    | DevicePackResults
    | DeviceRefitResults
)


def progress(line: str) -> None:
    """Tells the person who waits what is going on, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def write(results: AnyResults, path: pathlib.Path) -> None:
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
    _head(results.machine, "refits, all methods of a case in the same processes")
    for case in results.cases:
        limit = case.method(LIMIT)
        print(_title(case))
        _table([_REFIT_HEADINGS, *(_refit_row(case, method, limit) for method in case.methods)])
        for method in case.methods:
            for complaint in method.complaints[:3]:
                print(f"  {method.method} WRONG: {complaint}")
            if method.back_to_back:
                spread = _milliseconds(method.back_to_back)
                print(f"  {method.method}, refits without a pause between them: {spread} ms each")
            if method.first_note:
                print(f"  {method.method}, first refit: {method.first_note}")
                print(f"  {method.method}, last refit: {method.last_note}")
        for name, reason in case.skipped.items():
            print(f"  {name} did not run: {reason}")
        print(f"  checker's negative control: {case.negative_control}\n")


def print_plans(results: PlanResults) -> None:
    """Prints one row per model and side."""
    _head(
        results.machine,
        "one rank's plan of a model, each in a fresh process; processor ms [min..max]",
    )
    rows = [("model", "side", "parameters", "ranks", "transfers", "match", "plan", "plan again")]
    rows += [
        (
            plan.model,
            plan.side,
            str(plan.num_parameters),
            str(plan.num_ranks),
            str(plan.num_transfers),
            _milliseconds(plan.match_seconds),
            _milliseconds(plan.plan_seconds),
            _milliseconds(plan.again_seconds),
        )
        for plan in results.plans
    ]
    _table(rows)
    print()


def print_kills(results: KillResults) -> None:
    """Prints one row per kill."""
    _head(results.machine, "a killed process of a running refit; ms until it was known")
    rows = [("method", "killed", "resident MiB", "first", "last survivor", "socket EOF", "raised")]
    rows += [
        (
            kill.method,
            kill.victim,
            f"{kill.resident_bytes / 2**20:.0f}",
            _moment(kill.first_s),
            _moment(kill.last_s),
            _moment(kill.socket_eof_s),
            ", ".join(sorted({error.partition(":")[0] for error in kill.errors})),
        )
        for kill in results.kills
    ]
    _table(rows)
    for name, reason in results.skipped.items():
        print(f"  {name} did not run: {reason}")
    print()


def print_packs(results: PackResults) -> None:
    """Prints one row per operation."""
    _head(results.machine, "pack and unpack against memcpy in the same process, one thread")
    rows = [("operation", "cut", "x memcpy", "ms [min..max]", "GB/s on the wire")]
    for pack in results.packs:
        low, median, high = pack.milliseconds
        times = f"{median:.2f} [{low:.2f}..{high:.2f}]"
        speed = f"{pack.bytes_per_second / 1e9:.1f}"
        rows.append((pack.operation, pack.cut, f"{pack.ratio:.2f}", times, speed))
    _table(rows)
    print()


def print_issues(results: IssueResults) -> None:
    """Prints one row per kind of boxes."""
    _head(results.machine, "issuing one round on doubles of GPUs: processor time, of both ends")
    rows = [("boxes", "messages", "first ms", "median ms [min..max]")]
    for case in results.cases:
        boxes = f"{case.num_boxes} {case.name}"
        first = f"{case.first_s * 1e3:.2f}"
        rows.append((boxes, str(case.num_messages), first, _milliseconds(case.seconds)))
    _table(rows)
    print()


def print_moves(results: MoveResults) -> None:
    """Prints one row per case and method."""
    _head(results.machine, "JAX arrays to other shardings; the limit is one_copy")
    limits = {move.about: move.seconds.median for move in results.moves if move.method == LIMIT}
    rows = [("case", "MiB", "method", "median ms [min..max]", "x one copy")]
    for move in results.moves:
        ratio = f"{move.seconds.median / limits[move.about]:.2f}"
        size = str(move.nbytes >> 20)
        rows.append((move.about, size, move.method, _milliseconds(move.seconds), ratio))
    _table(rows)
    for refusal in dict.fromkeys(move.refusal for move in results.moves if move.refusal):
        print(f"jax.device_put between processes: {refusal[:150]}")
    print()


def print_device_packs(results: DevicePackResults) -> None:
    """Prints one row per operation."""
    _head(results.machine, f"kernels of {results.gpu} against a copy inside of the device")
    rows = [("operation", "x copy", "limit", "ms [min..max]", "copy ms [min..max]", "GB/s")]
    for pack in results.packs:
        limit = f"{pack.target:.2f}" if pack.target else ""
        speed = f"{pack.nbytes / pack.seconds.median / 1e9:.0f}"
        times = _milliseconds(pack.seconds), _milliseconds(pack.copy_seconds)
        rows.append((pack.operation, f"{pack.ratio:.2f}", limit, *times, speed))
    _table(rows)
    _warn(results.caveat)


def print_device_refits(results: DeviceRefitResults) -> None:
    """Prints one row per method, beside the first, which is the floor."""
    title = f"refit of {_size(results.model_bytes)} between {results.num_ranks} ranks"
    _head(results.machine, f"{title} on {results.gpus}")
    rows = [("method", "ms [min..max]", "x floor", "what it does")]
    floor = results.methods[0].seconds.median
    for each in results.methods:
        ratio = f"{each.seconds.median / floor:.2f}"
        rows.append((each.method, _milliseconds(each.seconds), ratio, each.about))
    _table(rows)
    _warn(results.caveat)


def _warn(caveat: str) -> None:
    print(f"\n  {caveat}\n" if caveat else "")


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Prints every target with what was asked, what was measured and whether that is enough."""
    if not verdicts:
        return
    print("targets")
    rows = [("target", "asked", "measured", "")]
    rows += [(v.name, v.asked, v.measured, "pass" if v.passed else "MISSED") for v in verdicts]
    _table(rows)
    missed = sum(not verdict.passed for verdict in verdicts)
    print(f"  {len(verdicts) - missed} of {len(verdicts)} targets reached")


def _head(machine: Machine, title: str) -> None:
    print(title)
    print("  " + machine.summary().replace("\n", "\n  "))


def _title(case: CaseResult) -> str:
    return (
        f"{case.workload}, pair {case.pair}: {case.about}; {case.num_sources} + "
        f"{case.num_destinations} processes, model {_size(case.model_bytes)}, "
        f"delivered {_size(case.delivered_bytes)}"
    )


def _refit_row(case: CaseResult, method: MethodResult, limit: MethodResult | None) -> Sequence[str]:
    ratio = f"{method.seconds.median / limit.seconds.median:.2f}" if limit else "-"
    return (
        method.method,
        f"{method.seconds.median:.4f} [{method.seconds.low:.4f}..{method.seconds.high:.4f}]",
        ratio,
        f"{case.delivered_bytes / method.seconds.median / 1e9:.2f}",
        f"{method.cpu_seconds.median:.3f}",
        f"{method.first_s / method.seconds.median:.2f}",
        f"{method.source_extra_bytes / 1e6:.1f}",
        f"{method.destination_extra_bytes / 1e6:.1f}",
        f"{method.outside_bytes / 1e6:.0f}",
        "yes" if method.verified else "WRONG",
    )


def _table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join([first, *rest]).rstrip())


def _milliseconds(spread: Spread) -> str:
    low, high = spread.low * 1e3, spread.high * 1e3
    return f"{spread.median * 1e3:.2f} [{low:.2f}..{high:.2f}]"


def _moment(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1e3:.1f}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3f} GB" if nbytes > _BILLION else f"{nbytes / 1e6:.2f} MB"
