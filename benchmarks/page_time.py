"""How long it takes to make the page of a real model's plan, and how large the page is.

Every measurement is a fresh process that plans the model for the first time; making the page
includes loads and floor, which nobody has asked for before. Nothing is waited for, so processor
time is what it takes.
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
from benchmarks.results import Spread
from reshard import make_plan
from reshard.page import make_page
from reshard.topology import Topology

__all__ = ["main", "measure"]

LIMIT_S = 10.0
LIMIT_BYTES = 5_000_000
_PROCESS_LIMIT_S = 120.0


@dataclasses.dataclass(frozen=True)
class _Sample:
    seconds: float
    nbytes: int
    num_ranks: int


@dataclasses.dataclass(frozen=True)
class PageResult:
    """The page of one model."""

    model: str
    num_ranks: int
    nbytes: int
    seconds: Spread

    @property
    def is_within(self) -> bool:
        """True if it was made in time and is small."""
        return self.seconds.median <= LIMIT_S and self.nbytes <= LIMIT_BYTES


def _measure_here(model: str) -> _Sample:
    specs = load_model(model)
    num_ranks = specs.num_source_ranks + specs.num_destination_ranks
    topology = Topology.dgx_h100(num_ranks)
    plan = make_plan(specs.source, specs.destination, topology=topology)
    start = time.thread_time()
    page = make_page(plan, title=model)
    return _Sample(time.thread_time() - start, len(page.encode()), num_ranks)


def measure(models: list[str], repetitions: int) -> list[PageResult]:
    """Makes the pages of all models, each in processes of its own."""
    results = []
    for model in models:
        samples = [_in_fresh_process(model) for _ in range(repetitions)]
        seconds = Spread.of([sample.seconds for sample in samples])
        result = PageResult(model, samples[0].num_ranks, samples[0].nbytes, seconds)
        report.progress(f"  {model}: {result.seconds.median:.2f} s, {result.nbytes / 1e6:.2f} MB")
        results.append(result)
    return results


def _in_fresh_process(model: str) -> _Sample:
    command = [sys.executable, "-m", "benchmarks.page_time", "--measure", model]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_PROCESS_LIMIT_S, check=True
    )
    return _Sample(**json.loads(done.stdout))


def _write(results: list[PageResult], output: pathlib.Path) -> None:
    content = {
        "machine": describe_machine(),
        "pages": [dataclasses.asdict(result) for result in results],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1, default=dataclasses.asdict) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one fresh process per model")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "page_time.json")
    parser.add_argument("--measure", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        sys.stdout.write(json.dumps(dataclasses.asdict(_measure_here(options.measure))))
        return 0
    results = measure(options.models, 1 if options.quick else options.repetitions)
    _write(results, options.output)
    for result in results:
        verdict = "pass" if result.is_within else "MISSED"
        report.progress(
            f"{verdict}: {result.model}, {result.num_ranks} ranks: {result.seconds.median:.2f} s "
            f"(limit {LIMIT_S:g} s), {result.nbytes / 1e6:.2f} MB (limit {LIMIT_BYTES / 1e6:g} MB)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
