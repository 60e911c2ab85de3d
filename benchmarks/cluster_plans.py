"""Plans of whole clusters against their targets: time, growth, memory, bytes, balance, floor.

What is timed is timed in a fresh process each, as in `plan_time`; everything else is arithmetic and
does not depend on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

from benchmarks import report
from benchmarks.machine import ROOT, Machine, describe_machine
from benchmarks.models import MODELS, load_model
from benchmarks.targets import Verdict, at_most
from reshard import (
    Layout,
    Mesh,
    Model,
    Parallelism,
    Plan,
    Replicate,
    Shard,
    TensorSpec,
    Topology,
    make_plan,
)
from reshard.domain_choice import make_planner
from reshard.matching import TensorPair, match
from reshard.planner import Planner
from reshard.rounds import pace_of
from reshard.spans import Spans

__all__ = ["main"]

_LIMIT_S = 120.0
_STAGING_BYTES = 1 << 30

_TOPOLOGIES: dict[str, Callable[[int], Topology | None]] = {
    "none": lambda num_ranks: None,
    "8": Topology.dgx_h100,
    "72": Topology.gb200_nvl72,
}


def _pairs_of(model: str) -> tuple[list[TensorPair], int, int]:
    specs = load_model(model)
    pairs = match(specs.source, specs.destination)
    return pairs, specs.num_source_ranks, specs.num_destination_ranks


def _plan_ms(pairs: list[TensorPair], ranks: list[int], topology: Topology | None) -> float:
    """Plans ranks with their schedules; returns processor milliseconds."""
    start = time.thread_time()
    planner = make_planner(pairs, topology)
    for rank in ranks:
        pace_of(planner.plan_rank(rank), Spans(planner.kinds), _STAGING_BYTES)
    return (time.thread_time() - start) * 1e3


def _measure_rank(model: str, side: str, domains: str) -> float:
    pairs, num_src, num_dst = _pairs_of(model)
    rank = num_src // 2 if side == "source" else num_src + num_dst // 2
    return _plan_ms(pairs, [rank], _TOPOLOGIES[domains](num_src + num_dst))


def _measure_growth(num_ranks: str, domains: str) -> float:
    """DeepSeek-V3 in two stages: all that grows is the number of replicas."""
    half = int(num_ranks) // 2
    model = Model.load("deepseek-v3")
    src = Parallelism.parse(f"pp2,ep16,world{half}")
    dst = Parallelism.parse(f"tp32,world{half}")
    pairs = match(src.specs(model), dst.specs(model, half))
    return _plan_ms(pairs, [half + half // 2], _TOPOLOGIES[domains](2 * half))


def _measure_fsdp() -> float:
    """One tensor from 1,024 shards to TP8 of the other dim; both sides of one rank."""
    shape, num_src = (7168, 18432), 1024
    src = TensorSpec("w", shape, "bfloat16", Layout(Mesh.of(fsdp=num_src), (Shard(0),)))
    layout = Layout(Mesh.of(dp=128, tp=8), (Replicate(), Shard(1)))
    dst = TensorSpec("w", shape, "bfloat16", layout).shifted(num_src)
    pairs = match([src], [dst])
    start = time.thread_time()
    planner = Planner(pairs)
    for rank in (512, num_src + 512):
        planner.plan_rank(rank)
    return (time.thread_time() - start) * 1e3


def _measure_separate(domains: str) -> float:
    """Qwen3-235B with each expert's matrices named one by one."""
    model = Model.load("qwen3-235b", experts="separate")
    src, dst = Parallelism.parse(str(model.trainer)), Parallelism.parse(str(model.generator))
    pairs = match(src.specs(model), dst.specs(model, src.num_ranks))
    num_ranks = src.num_ranks + dst.num_ranks
    rank = src.num_ranks + dst.num_ranks // 2
    return _plan_ms(pairs, [rank], _TOPOLOGIES[domains](num_ranks))


def _measure_memory(model: str, domains: str) -> float:
    """Returns MB of one destination rank's plan, with all that its planner keeps."""
    pairs, num_src, num_dst = _pairs_of(model)
    topology = _TOPOLOGIES[domains](num_src + num_dst)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    planner = Planner(pairs, topology)
    plan = planner.plan_rank(num_src + num_dst // 2)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / 1e6 if plan.receives else 0.0


def _measure_view(model: str, domains: str) -> float:
    """Returns processor seconds of loads, floor and predictions of all ranks."""
    plan = _plan(model, domains)
    start = time.thread_time()
    _ = plan.view
    return time.thread_time() - start


_MEASURES: dict[str, Callable[..., float]] = {
    "rank": _measure_rank,
    "growth": _measure_growth,
    "fsdp": _measure_fsdp,
    "separate": _measure_separate,
    "memory": _measure_memory,
    "view": _measure_view,
}


def _plan(model: str, domains: str) -> Plan:
    specs = load_model(model)
    topology = _TOPOLOGIES[domains](specs.num_source_ranks + specs.num_destination_ranks)
    return make_plan(
        specs.source, specs.destination, topology=topology, staging_bytes=_STAGING_BYTES
    )


class _Clock:
    """Takes measures in fresh processes."""

    def __init__(self, repetitions: int) -> None:
        self._repetitions = repetitions

    def median(self, *measure: str) -> float:
        """Returns the median of a measure over the repetitions."""
        command = [sys.executable, "-m", "benchmarks.cluster_plans", "--measure", *measure]
        values = []
        for _ in range(self._repetitions):
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=True
            )
            values.append(float(done.stdout))
        return statistics.median(values)


def _timed(clock: _Clock) -> list[Verdict]:
    verdicts = []
    for model in MODELS:
        for side in ("source", "destination"):
            for domains in _TOPOLOGIES:
                name = f"cold plan and schedule, {model}, {side}, domains {domains}"
                found = clock.median("rank", model, side, domains)
                verdicts.append(at_most(name, found, 5.0, " ms"))
                report.progress(f"  {name}: {found:.2f} ms")
    for domains in ("none", "8"):
        few, many = (clock.median("growth", count, domains) for count in ("64", "2048"))
        name = f"growth from 64 to 2,048 ranks, domains {domains}"
        verdicts.append(at_most(name, many / few, 1.5, ""))
    found = clock.median("fsdp")
    verdicts.append(at_most("FSDP over 1,024 to TP8, both sides of a rank", found, 1.0, " ms"))
    for domains in ("none", "8"):
        name = f"qwen3-235b, 36,945 names, domains {domains}"
        verdicts.append(at_most(name, clock.median("separate", domains), 150.0, " ms"))
    for model in MODELS:
        for domains in ("none", "8"):
            name = f"memory of a rank's plan, {model}, domains {domains}"
            verdicts.append(at_most(name, clock.median("memory", model, domains), 2.0, " MB"))
    for domains in ("8", "72"):
        name = f"view of 1,024 ranks, synth-2.8t, domains {domains}"
        verdicts.append(at_most(name, clock.median("view", "synth-2.8t", domains), 2.0, " s"))
    return verdicts


def _counted() -> list[Verdict]:
    """Returns what does not depend on the machine."""
    verdicts = []
    for model in MODELS:
        for domains in ("8", "72"):
            plan = _plan(model, domains)
            view, loads = plan.view, plan.view.loads
            stored = sum(map(plan.stored_bytes, plan.dst_ranks))
            where = f"{model}, domains {domains}"
            verdicts += [
                at_most(f"delivered / stored, {where}", loads.delivered / stored, 1.0, ""),
                at_most(
                    f"into domains / bound, {where}",
                    loads.crossing / view.floor.crossing,
                    1.0 if domains == "8" else 1.05,
                    "",
                ),
                at_most(
                    f"busiest source of a stage / mean, {where}", _stage_spread(plan), 1.02, ""
                ),
                at_most(
                    f"busiest destination / mean, {where}",
                    _spread([loads.received[loads.ranks.index(r)] for r in plan.dst_ranks]),
                    1.02,
                    "",
                ),
                Verdict(
                    f"busiest link / floor, {where}",
                    "-",
                    f"{1 / view.busy_share_of_floor:.3f}",
                    passed=True,
                ),
            ]
    return verdicts


def _stage_spread(plan: Plan) -> float:
    """Returns busiest source divided by the mean of the ranks that hold the same tensors."""
    loads = plan.view.loads
    forwarded = dict(zip(loads.ranks, loads.forwarded, strict=True))
    sent = dict(zip(loads.ranks, loads.sent, strict=True))
    stages = {tuple(sorted(kind.src_ranks)) for kind in plan.planner.kinds}
    return max(_spread([sent[rank] - forwarded[rank] for rank in stage]) for stage in stages)


def _spread(values: list[int]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0


@dataclasses.dataclass(frozen=True)
class _Results:
    machine: Machine
    targets: list[Verdict]


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one fresh process per measure")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--output", type=pathlib.Path, default=report.RESULTS / "cluster_plans.json"
    )
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        name, *rest = options.measure
        sys.stdout.write(json.dumps(_MEASURES[name](*rest)))
        return 0
    verdicts = _timed(_Clock(1 if options.quick else options.repetitions)) + _counted()
    results = _Results(describe_machine(), verdicts)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(dataclasses.asdict(results), indent=1) + "\n")
    report.print_verdicts(verdicts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
