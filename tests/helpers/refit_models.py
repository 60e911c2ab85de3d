"""Small models for refits between programs: specs of both sides, each in its own rank numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers import refit_programs as programs
from helpers.team import Team
from reshard import (
    DType,
    Form,
    Layout,
    Mesh,
    Part,
    RefitReport,
    Replicate,
    SegmentedLayout,
    Shard,
    TensorSpec,
)

__all__ = ["Program", "assert_holds", "fsdp_side", "open_all", "refit_once", "tp_side"]

EMBED, FFN, HEADS, HEAD_DIM = 24, 40, 4, 6


def fsdp_side(num_ranks: int, layers: int = 2, dtype: DType = DType.BFLOAT16) -> list[TensorSpec]:
    """A trainer's side: JAX-style kernels (in, out), cut over `fsdp` along dim 0, uneven too."""
    rows = Layout(Mesh.of(fsdp=num_ranks), (Shard(0),))
    everywhere = Layout.replicated(Mesh.of(fsdp=num_ranks))
    specs = [TensorSpec("embed", (50, EMBED), dtype, rows)]
    for layer in range(layers):
        name = f"layers.{layer}"
        q = Part(f"{name}.q", Form("embed heads dim -> (heads dim) embed"))
        specs += [
            TensorSpec(f"{name}/q", (EMBED, HEADS, HEAD_DIM), dtype, rows, (q,)),
            _transposed(f"{name}.gate", (EMBED, FFN), dtype, rows),
            _transposed(f"{name}.up", (EMBED, FFN), dtype, rows),
            _transposed(f"{name}.down", (FFN, EMBED), dtype, rows),
            TensorSpec(f"{name}.norm", (EMBED,), dtype, everywhere),
        ]
    return specs


def _transposed(name: str, shape: tuple[int, ...], dtype: DType, layout: Layout) -> TensorSpec:
    return TensorSpec(name, shape, dtype, layout, (Part(name, Form("a b -> b a")),))


def tp_side(num_ranks: int, layers: int = 2, dtype: DType = DType.BFLOAT16) -> list[TensorSpec]:
    """An engine's side: (out, in), fused gate and up per rank, tensor parallel."""
    rows = Layout(Mesh.of(tp=num_ranks), (Shard(0),))
    columns = Layout(Mesh.of(tp=num_ranks), (Shard(1),))
    everywhere = Layout(Mesh.of(tp=num_ranks), (Replicate(),))
    specs = [TensorSpec("embed", (50, EMBED), dtype, rows)]
    for layer in range(layers):
        name = f"layers.{layer}"
        halves = tuple(
            Part(
                f"{name}.{half}",
                Form("ffn embed -> ffn embed", sizes=(("ffn", FFN),), start=((0, start),)),
            )
            for half, start in (("gate", 0), ("up", FFN))
        )
        fused = SegmentedLayout(0, (FFN, FFN), (rows, rows))
        specs += [
            TensorSpec(f"{name}.q", (HEADS * HEAD_DIM, EMBED), dtype, rows),
            TensorSpec(f"{name}.gate_up", (2 * FFN, EMBED), dtype, fused, halves),
            TensorSpec(f"{name}.down", (EMBED, FFN), dtype, columns),
            TensorSpec(f"{name}.norm", (EMBED,), dtype, everywhere),
        ]
    return specs


@dataclass
class Program:
    """One program of a refit.

    Attributes:
        processes: members of the team, in the order of the program's processes.
        specs: what the program stores; a list per process where they differ.
        ranks: ranks of each process; None means one each.
        group: name of the program; None means the default.
        options: further arguments of the ends.
        per_process: arguments that only some processes get, by index in the program.
    """

    processes: Sequence[int]
    specs: Sequence[TensorSpec] | Sequence[Sequence[TensorSpec]]
    ranks: Sequence[Sequence[int]] | None = None
    group: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    per_process: dict[int, dict[str, Any]] = field(default_factory=dict)

    def arguments(self, index: int) -> tuple[Sequence[TensorSpec], Sequence[int], dict[str, Any]]:
        """Returns (specs, ranks, options) of one of its processes."""
        ranks = self.ranks or [[i] for i in range(len(self.processes))]
        own = self.specs[index] if self.specs and isinstance(self.specs[0], list) else self.specs
        options: dict[str, Any] = {
            "process": index,
            "num_processes": len(self.processes),
            "num_ranks": sum(map(len, ranks)),
            "timeout_s": 30.0,
            **self.options,
            **self.per_process.get(index, {}),
        }
        if self.group is not None:
            options["group"] = self.group
        return own, ranks[index], options  # type: ignore[return-value]


def open_all(
    team: Team,
    source: Program,
    destinations: Sequence[Program],
    address: str = "tcp://127.0.0.1:0",
) -> str:
    """Opens both ends on all processes and returns the address at which they meet."""
    first, *others = source.processes
    (found,) = team.values([first], programs.open_source, address, *source.arguments(0))
    for index, process in enumerate(others, 1):
        team.start(process, programs.open_source, found, *source.arguments(index))
    for destination in destinations:
        for index, process in enumerate(destination.processes):
            arguments = destination.arguments(index)
            team.start(process, programs.open_destination, found, *arguments)
    for process in [*others, *(p for d in destinations for p in d.processes)]:
        team.result(process).get()
    assert isinstance(found, str)
    return found


def refit_once(
    team: Team,
    sources: Sequence[int],
    destinations: Sequence[int],
    version: int,
    options: dict[str, Any] | None = None,
) -> list[RefitReport]:
    """Publishes a version and returns the reports: of the sources, then of the destinations."""
    for process in destinations:
        team.start(process, programs.refit)
    for process in sources:
        team.start(process, programs.publish_filled, version, options)
    return [team.result(process).get() for process in (*sources, *destinations)]


def assert_holds(team: Team, processes: Sequence[int], version: int) -> None:
    """Fails unless some destination processes hold a version, byte by byte, and say so."""
    assert team.values(processes, programs.check, version) == [None] * len(processes)
    states = team.values(processes, programs.state_of)
    assert states == [("ready", version)] * len(processes)
