"""Whole refits between real processes of one machine: ours and its peers, side by side.

All methods of a case run in the same processes, one after the other in an order that rotates, so
that whatever disturbs the machine disturbs all of them. Every method is checked bit for bit before
it is timed; a sample of the elements is spoilt before each timed round and checked after it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import shutil
import sys
import tempfile
import time

from benchmarks import report
from benchmarks.layout_pairs import LAYOUT_PAIRS
from benchmarks.machine import describe_machine
from benchmarks.memory import Memory
from benchmarks.methods.registry import METHODS
from benchmarks.refit_worker import RankRound, RefitWorker
from benchmarks.regions import region_of
from benchmarks.results import CaseResult, MethodResult, RefitResults, Spread
from benchmarks.targets import judge_refits
from benchmarks.team import Team
from benchmarks.workloads import WORKLOADS

__all__ = ["FULL", "QUICK", "Case", "main", "measure"]

# Between the last process's readiness and the common start, so that none is late.
_LEAD_S = 0.02
_ROUND_LIMIT_S = 120.0
_BURST_TURNS = 5
_SHARED_MEMORY = pathlib.Path("/dev/shm")


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload, a layout pair and how often to time it.

    Attributes:
        burst: refits in one go that are timed together as well, 0 for none.
    """

    workload: str
    pair: str
    repetitions: int
    burst: int = 0


FULL = (
    Case("dense-1.5g", "A", 5),
    Case("dense-1.5g", "B", 5),
    Case("dense-1.5g", "C", 5),
    Case("tiny-1000", "A", 7),
    Case("small-200", "A2", 30, burst=50),
)
QUICK = (
    Case("dense-25m", "A", 2),
    Case("dense-25m", "B", 2),
    Case("dense-25m", "C", 2),
)


@dataclasses.dataclass
class _Measured:
    """What gathers up about one method during a case."""

    name: str
    set_up: list[tuple[Memory, Memory]]
    set_up_s: float
    first: list[RankRound]
    held: list[Memory]
    outside_bytes: int
    complaints: list[str]
    first_note: str
    last_note: str = ""
    rehearsal: list[RankRound] = dataclasses.field(default_factory=list)
    rounds: list[list[RankRound]] = dataclasses.field(default_factory=list)
    bursts: list[float] = dataclasses.field(default_factory=list)


def measure(cases: list[Case], methods: list[str], command: str) -> RefitResults:
    """Runs cases side by side for all methods; `command` is for the record."""
    machine = describe_machine()
    return RefitResults(machine, command, _run_cases(cases, methods))


def _run_cases(cases: list[Case], methods: list[str]) -> list[CaseResult]:
    """Runs cases, reusing the processes while the number of ranks stays the same."""
    results = []
    while cases:
        num_sources = LAYOUT_PAIRS[cases[0].pair].source.num_ranks
        num_destinations = LAYOUT_PAIRS[cases[0].pair].destination.num_ranks
        fitting = [
            case
            for case in cases
            if LAYOUT_PAIRS[case.pair].source.num_ranks == num_sources
            and LAYOUT_PAIRS[case.pair].destination.num_ranks == num_destinations
        ]
        cases = [case for case in cases if case not in fitting]
        folder = pathlib.Path(tempfile.mkdtemp(prefix="reshard-bench-", dir=_SHARED_MEMORY))
        num_processes = num_sources + num_destinations
        try:
            with Team(RefitWorker, num_processes, num_sources, num_processes, str(folder)) as team:
                results += [_run_case(team, case, methods) for case in fitting]
        finally:
            shutil.rmtree(folder)
    return results


def _run_case(team: Team, case: Case, methods: list[str]) -> CaseResult:
    report.progress(f"{case.workload}, pair {case.pair}: {LAYOUT_PAIRS[case.pair].about}")
    team.call("open_case", case.workload, case.pair)
    skipped: dict[str, str] = {}
    measured: list[_Measured] = []
    for version, name in enumerate(methods, start=1):
        reason = team.call("unavailable", name)[0]
        if reason is not None:
            skipped[name] = reason
            report.progress(f"  {name}: skipped, {reason}")
            continue
        measured.append(_prepare(team, name, version))
    overlooked = _all(team.call("negative_control"))
    _time_in_turns(team, measured, case.repetitions)
    if case.burst:
        paced = [method for method in measured if METHODS[method.name].may_follow_at_once]
        _time_bursts(team, paced, case.burst)
    for method in measured:
        method.last_note = team.call("note", method.name, ranks=[0])[0]
    measured[-1].complaints += _all(team.call("check"))
    for method in measured:
        team.call("tear_down", method.name)
    team.call("close_case")
    return _case_result(case, measured, skipped, overlooked)


def _prepare(team: Team, name: str, version: int) -> _Measured:
    """Sets a method up, lets it refit a version that nobody has seen before and checks it."""
    began = time.monotonic()
    set_up = team.call("set_up", name)
    set_up_s = time.monotonic() - began
    team.call("set_version", version)
    outside_before = sum(team.call("outside_bytes", name))
    first = _round(team, name)
    note = team.call("note", name, ranks=[0])[0]
    held = team.call("settled_memory")
    outside = sum(team.call("outside_bytes", name)) - outside_before
    complaints: list[str] = _all(team.call("check"))
    verdict = "every bit right" if not complaints else f"WRONG: {complaints[0]}"
    report.progress(f"  {name}: {verdict}, first refit {_seconds(first):.3f} s")
    return _Measured(name, set_up, set_up_s, first, held, outside, complaints, note)


def _time_in_turns(team: Team, measured: list[_Measured], repetitions: int) -> None:
    """Rehearses every method once, then times turns whose order rotates by one method each."""
    for method in measured:
        team.call("settled_memory")
        method.rehearsal = _round(team, method.name)
    for turn in range(repetitions):
        shift = turn % len(measured)
        for method in measured[shift:] + measured[:shift]:
            team.call("spoil_samples")
            method.rounds.append(_round(team, method.name))
            method.complaints += _all(team.call("check_samples"))


def _time_bursts(team: Team, measured: list[_Measured], count: int) -> None:
    """Times refits that follow each other without a pause, in turns as well."""
    for turn in range(_BURST_TURNS):
        shift = turn % len(measured)
        for method in measured[shift:] + measured[:shift]:
            team.call("spoil_samples")
            method.bursts.append(_seconds(_round(team, method.name, count)) / count)
            method.complaints += _all(team.call("check_samples"))


def _round(team: Team, name: str, count: int = 1) -> list[RankRound]:
    start_at = time.monotonic() + _LEAD_S
    rounds: list[RankRound] = team.call("refit", name, start_at, count, timeout_s=_ROUND_LIMIT_S)
    return rounds


def _seconds(ranks: list[RankRound]) -> float:
    """Returns the time of a round: from the common start to the end of the slowest rank."""
    return max(rank.ended for rank in ranks) - min(rank.started for rank in ranks)


def _case_result(
    case: Case, measured: list[_Measured], skipped: dict[str, str], overlooked: list[str]
) -> CaseResult:
    pair, workload = LAYOUT_PAIRS[case.pair], WORKLOADS[case.workload]
    delivered = sum(
        2 * region_of(pair.destination, parameter.shape, rank).num_elements
        for parameter in workload.parameters
        for rank in range(pair.destination.num_ranks)
    )
    return CaseResult(
        workload=case.workload,
        pair=case.pair,
        about=pair.about,
        num_sources=pair.source.num_ranks,
        num_destinations=pair.destination.num_ranks,
        model_bytes=workload.nbytes,
        delivered_bytes=delivered,
        negative_control="passed" if not overlooked else "overlooked " + "; ".join(overlooked),
        methods=[_method_result(method, pair.source.num_ranks) for method in measured],
        skipped=skipped,
    )


def _method_result(measured: _Measured, num_sources: int) -> MethodResult:
    extra = [_peak_extra(measured, rank) for rank in range(len(measured.first))]
    return MethodResult(
        method=measured.name,
        about=METHODS[measured.name].about,
        verified=not measured.complaints,
        complaints=measured.complaints[:10],
        set_up_s=measured.set_up_s,
        first_s=_seconds(measured.first),
        seconds=Spread.of([_seconds(ranks) for ranks in measured.rounds]),
        cpu_seconds=Spread.of([sum(rank.cpu_s for rank in ranks) for ranks in measured.rounds]),
        back_to_back=Spread.of(measured.bursts) if measured.bursts else None,
        source_extra_bytes=max(extra[:num_sources]),
        destination_extra_bytes=max(extra[num_sources:]),
        outside_bytes=measured.outside_bytes,
        first_note=measured.first_note,
        last_note=measured.last_note,
    )


def _peak_extra(measured: _Measured, rank: int) -> int:
    """Returns the most that a rank used for this method beyond its shards.

    Looks at the set-up, the first refit and the rehearsal, which starts with all free memory given
    back. Program code that is loaded meanwhile is left out; what the method holds after its first
    refit counts for the rehearsal too.
    """
    baseline, after_set_up = measured.set_up[rank]
    first, rehearsal = measured.first[rank], measured.rehearsal[rank]
    return max(
        _peak_growth(baseline, after_set_up),
        _growth(baseline, first.memory_before)
        + _peak_growth(first.memory_before, first.memory_after),
        _growth(baseline, measured.held[rank])
        + _peak_growth(rehearsal.memory_before, rehearsal.memory_after),
    )


def _growth(before: Memory, after: Memory) -> int:
    return max(0, after.anonymous + after.shared - before.anonymous - before.shared)


def _peak_growth(before: Memory, after: Memory) -> int:
    return max(0, after.peak - before.resident - max(0, after.files - before.files))


def _all(lists: list[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(lists))


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line; 1 means that a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small workloads, under a minute")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workload", choices=WORKLOADS, help="only this one")
    parser.add_argument("--pair", choices=LAYOUT_PAIRS, help="only this one")
    parser.add_argument("--repetitions", type=int, help="timed rounds of each method")
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "shm_refit.json")
    options = parser.parse_args(arguments)
    cases = list(QUICK if options.quick else FULL)
    if options.workload and options.pair:
        cases = [Case(options.workload, options.pair, 5)]
    cases = [
        dataclasses.replace(case, repetitions=options.repetitions or case.repetitions)
        for case in cases
        if options.pair in (None, case.pair) and options.workload in (None, case.workload)
    ]
    if not cases:
        parser.error("no such case; name both --workload and --pair for one that is not listed")
    command = " ".join(["python", "-m", "benchmarks.shm_refit", *(arguments or sys.argv[1:])])
    results = measure(cases, options.methods, command)
    report.write(results, options.output)
    report.print_refits(results)
    report.print_verdicts(judge_refits(results.cases))
    return 0 if report.all_right(results) else 1


if __name__ == "__main__":
    sys.exit(main())
