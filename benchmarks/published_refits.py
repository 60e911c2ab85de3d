"""Predicted seconds beside those that NVIDIA published, with one set of constants per platform.

Nothing is measured here: the plans are made, their loads summed and timed by the model of
`reshard.timing`. Run it to see the table of docs/published_refits.md.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator

from reshard import (
    DType,
    Layout,
    Mesh,
    Model,
    Parallelism,
    Shard,
    TensorSpec,
    Topology,
    make_plan,
)
from reshard.cluster_view import ClusterView

__all__ = ["TARGETS", "Row", "main", "markdown", "rows"]

# Per rank, for chunks under way; GPUs of these kinds have 80 to 192 GB.
STAGING_BYTES = 2 << 30

TARGETS = 7
"""So many rows, the four pairs and the micro-benchmark, have to reach nine tenths of the floor."""

_H100 = Topology.dgx_h100


def _gb200(num_ranks: int) -> Topology:
    """64 of a rack's 72 GPUs, as the published recipes have it."""
    return Topology.gb200_nvl72(num_ranks, ranks_per_domain=64)


@dataclasses.dataclass(frozen=True)
class Row:
    """One published refit, and what the model says about it.

    Attributes:
        name: of the refit.
        conventional_s, direct_s, published_s: published seconds of gather-and-broadcast, of sends
            from holders to every rank, and of the best published way; None where unpublished.
        view: predictions.
    """

    name: str
    conventional_s: float | None
    direct_s: float | None
    published_s: float
    view: ClusterView


def rows() -> Iterator[Row]:
    """Yields the four published pairs, the micro-benchmark and the two of the transport bench."""
    for name, model, topology, before, after in (
        ("Qwen3-235B, H100", "qwen3-235b", _H100, 6.4, 1.9),
        ("DeepSeek-V3, H100", "deepseek-v3", _H100, 14.9, 2.6),
        ("DeepSeek-V3, GB200", "deepseek-v3", _gb200, 6.1, 2.3),
        ("Nemotron Ultra, GB200", "nemotron-ultra", _gb200, 8.2, 2.3),
    ):
        loaded = Model.load(model)
        yield Row(
            name, before, None, after, _view(loaded, loaded.trainer, loaded.generator, topology)
        )
    for count in (64, 128, 256):
        name = f"2.4 T in bfloat16, {count} to {count} GB200"
        yield Row(name, None, None, 4.3, _micro(count))
    deepseek = Model.load("deepseek-v3")
    fp8 = dataclasses.replace(
        deepseek,
        parameters=tuple(
            dataclasses.replace(each, dtype=DType.FLOAT8_E4M3FN) for each in deepseek.parameters
        ),
    )
    view = _view(fp8, "pp4,ep16,world128", "tp8,dp16", _gb200)
    yield Row("DeepSeek-V3 fp8, 128 to 128 GB200", None, 3.838, 1.447, view)
    qwen = Model.load("qwen3-235b")
    view = _view(qwen, "pp4,tp2,cp2,ep16,world64", "tp8,dp8", _gb200)
    yield Row("Qwen3-235B, 64 to 64 GB200", None, 2.175, 0.989, view)


def _view(
    model: Model, trainer: str | None, generator: str | None, topology: Callable[[int], Topology]
) -> ClusterView:
    if trainer is None or generator is None:
        raise ValueError(f"{model.name} has no published pair.")
    src, dst = Parallelism.parse(trainer), Parallelism.parse(generator)
    plan = make_plan(
        src.specs(model),
        dst.specs(model, src.num_ranks),
        topology=topology(src.num_ranks + dst.num_ranks),
        staging_bytes=STAGING_BYTES,
    )
    return plan.view


def _micro(count: int) -> ClusterView:
    """2.4 T elements in stacks of experts, from expert parallelism to rows of all experts."""
    shape, num_layers = (256, 4096, 14336), 160
    src = Layout(Mesh.of(ep=count), (Shard(0),))
    dst = Layout(Mesh.of(tp=count), (Shard(1),)).shifted(count)
    specs = [
        [TensorSpec(f"layers.{i}.experts", shape, "bfloat16", layout) for i in range(num_layers)]
        for layout in (src, dst)
    ]
    plan = make_plan(*specs, topology=_gb200(2 * count), staging_bytes=STAGING_BYTES)
    return plan.view


def markdown(found: list[Row]) -> str:
    """Returns the table, in seconds."""
    lines = [
        "| refit | floor | ours, predicted | share of the floor | best published | its share "
        "| direct, predicted | published | gather and broadcast, predicted | published |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found:
        view = row.view
        floor = view.floor.seconds
        lines.append(
            f"| {row.name} | {floor:.3f} | {view.prediction.seconds:.3f} "
            f"| {view.share_of_floor:.1%} | {row.published_s:g} | {floor / row.published_s:.0%} "
            f"| {view.direct.seconds:.2f} | {_published(row.direct_s)} "
            f"| {_predicted(view.gather_and_broadcast_seconds)} "
            f"| {_published(row.conventional_s)} |"
        )
    return "\n".join(lines) + "\n"


def _predicted(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


def _published(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:g}"


def main() -> int:
    """Prints the table; fails if the prediction of one of `TARGETS` is below 0.9 of the floor."""
    found = list(rows())
    sys.stdout.write(markdown(found))
    return int(min(row.view.share_of_floor for row in found[:TARGETS]) < 0.9)


if __name__ == "__main__":
    sys.exit(main())
