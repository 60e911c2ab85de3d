"""All benchmarks in one go, with one list of targets at the end; what `make bench` runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from benchmarks import gpu_issue, jax_moves, killed_peer, pack_speed, plan_time, report, shm_refit
from benchmarks.methods.registry import METHODS
from benchmarks.models import MODELS
from benchmarks.targets import (
    OURS,
    judge_issues,
    judge_kills,
    judge_moves,
    judge_packs,
    judge_plans,
    judge_refits,
)

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Runs everything; 1 means that a result was wrong. A missed target is only told."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small workloads, about a minute")
    quick = parser.parse_args(arguments).quick

    command = "make bench-quick" if quick else "make bench"
    cases = list(shm_refit.QUICK if quick else shm_refit.FULL)
    refits = shm_refit.measure(cases, list(METHODS), command)
    report.write(refits, report.RESULTS / "shm_refit.json")
    report.print_refits(refits)

    plans = plan_time.measure(list(MODELS), repetitions=1 if quick else 5)
    report.write(plans, report.RESULTS / "plan_time.json")
    report.print_plans(plans)

    killed = [OURS] if quick else list(killed_peer.METHODS_KILLED)
    kills = killed_peer.measure(killed, [64] if quick else [64, 1024, 4096], quick=quick)
    report.write(kills, report.RESULTS / "killed_peer.json")
    report.print_kills(kills)

    packs = pack_speed.measure(quick=quick)
    report.write(packs, report.RESULTS / "pack_speed.json")
    report.print_packs(packs)

    issues = gpu_issue.measure(quick=quick)
    report.write(issues, report.RESULTS / "gpu_issue.json")
    report.print_issues(issues)

    moves = jax_moves.measure(quick=quick)
    report.write(moves, report.RESULTS / "jax_moves.json")
    report.print_moves(moves)

    verdicts = judge_refits(refits.cases) + judge_plans(plans.plans)
    verdicts += judge_kills(kills.kills) + judge_packs(packs.packs)
    verdicts += judge_issues(issues.cases) + judge_moves(moves.moves)
    report.print_verdicts(verdicts)
    summary = [dataclasses.asdict(verdict) for verdict in verdicts]
    (report.RESULTS / "targets.json").write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if report.all_right(refits) else 1


if __name__ == "__main__":
    sys.exit(main())
