"""How long one rank needs to plan a refit of a real model that it has never planned before.

Every measurement is a fresh process, so nothing is cached: neither plans nor what the interpreter
learns about hot code. Matching the names of both sides is timed apart from planning. Planning
waits for nothing, so processor time is what it takes; it is the steadier figure where others use
the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

from benchmarks import report
from benchmarks.machine import ROOT, describe_machine
from benchmarks.models import MODELS, load_model
from benchmarks.results import PlanResult, PlanResults, Spread
from benchmarks.targets import judge_plans
from reshard.matching import match
from reshard.planner import Planner

__all__ = ["main", "measure"]

_SIDES = ("source", "destination")
_LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class _Sample:
    match_s: float
    plan_s: float
    again_s: float
    num_transfers: int
    num_parameters: int
    num_ranks: int
    nbytes: int


def _measure_here(model: str, side: str) -> _Sample:
    """Plans the middle rank of one side, in this process, for the first time."""
    specs = load_model(model)
    rank = specs.num_source_ranks // 2
    if side == "destination":
        rank = specs.num_source_ranks + specs.num_destination_ranks // 2
    start = time.thread_time()
    pairs = match(specs.source, specs.destination)
    matched = time.thread_time()
    plan = Planner(pairs).plan_rank(rank)
    planned = time.thread_time()
    Planner(pairs).plan_rank(rank)
    again = time.thread_time()
    batches = (*plan.sends, *plan.receives, *plan.arrivals, *plan.forwards)
    num_transfers = sum(len(batch.numbers) * len(batch.legs) for batch in batches)
    num_ranks = specs.num_source_ranks + specs.num_destination_ranks
    return _Sample(
        match_s=matched - start,
        plan_s=planned - matched,
        again_s=again - planned,
        num_transfers=num_transfers,
        num_parameters=len(specs.source),
        num_ranks=num_ranks,
        nbytes=specs.nbytes,
    )


def measure(models: list[str], repetitions: int) -> PlanResults:
    """Times all models on both sides, each in processes of its own."""
    results = []
    for model in models:
        for side in _SIDES:
            samples = [_in_fresh_process(model, side) for _ in range(repetitions)]
            result = PlanResult(
                model=model,
                side=side,
                num_parameters=samples[0].num_parameters,
                num_ranks=samples[0].num_ranks,
                model_bytes=samples[0].nbytes,
                num_transfers=samples[0].num_transfers,
                match_seconds=Spread.of([sample.match_s for sample in samples]),
                plan_seconds=Spread.of([sample.plan_s for sample in samples]),
                again_seconds=Spread.of([sample.again_s for sample in samples]),
            )
            report.progress(f"  {model}, {side}: {result.plan_seconds.median * 1e3:.2f} ms")
            results.append(result)
    return PlanResults(describe_machine(), results)


def _in_fresh_process(model: str, side: str) -> _Sample:
    command = [sys.executable, "-m", "benchmarks.plan_time", "--measure", model, side]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=True
    )
    return _Sample(**json.loads(done.stdout))


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one fresh process per model and side")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "plan_time.json")
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        sys.stdout.write(json.dumps(dataclasses.asdict(_measure_here(*options.measure))))
        return 0
    results = measure(options.models, 1 if options.quick else options.repetitions)
    report.write(results, options.output)
    report.print_plans(results)
    report.print_verdicts(judge_plans(results.plans))
    return 0


if __name__ == "__main__":
    sys.exit(main())
