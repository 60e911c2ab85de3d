"""What a benchmark run found: plain records that become JSON, and the sums over rounds."""

from __future__ import annotations

import dataclasses
import statistics

from benchmarks.machine import Machine

__all__ = [
    "CaseResult",
    "DevicePackResult",
    "DevicePackResults",
    "DeviceRefitResult",
    "DeviceRefitResults",
    "IssueResult",
    "IssueResults",
    "Kill",
    "KillResults",
    "MethodResult",
    "MoveResult",
    "MoveResults",
    "PackResult",
    "PackResults",
    "PlanResult",
    "PlanResults",
    "RefitResults",
    "Spread",
]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of repeated measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Sums up at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """One method in one case.

    Memory is the largest of any process of the side, beyond its own shards; `outside_bytes` is what
    lies in files in shared memory or in processes of the method's own. `verified` means that every
    bit of every destination was right. `back_to_back` is the time per refit where many follow each
    other without a pause; None where that was not measured. The notes are what the method says
    about its first and its last refit.
    """

    method: str
    about: str
    verified: bool
    complaints: list[str]
    set_up_s: float
    first_s: float
    seconds: Spread
    cpu_seconds: Spread
    back_to_back: Spread | None
    source_extra_bytes: int
    destination_extra_bytes: int
    outside_bytes: int
    first_note: str
    last_note: str


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """All methods on one workload and layout pair, run side by side in the same processes."""

    workload: str
    pair: str
    about: str
    num_sources: int
    num_destinations: int
    model_bytes: int
    delivered_bytes: int
    negative_control: str
    methods: list[MethodResult]
    skipped: dict[str, str]

    def method(self, name: str) -> MethodResult | None:
        """Returns the result of one method, or None where it did not run."""
        return next((found for found in self.methods if found.method == name), None)


@dataclasses.dataclass(frozen=True)
class RefitResults:
    """One run of the refit benchmark."""

    machine: Machine
    command: str
    cases: list[CaseResult]


@dataclasses.dataclass(frozen=True)
class PlanResult:
    """One rank's first plan of one model; `again` is a second plan that starts from nothing."""

    model: str
    side: str
    num_parameters: int
    num_ranks: int
    model_bytes: int
    num_transfers: int
    match_seconds: Spread
    plan_seconds: Spread
    again_seconds: Spread


@dataclasses.dataclass(frozen=True)
class PlanResults:
    """One run of the planning benchmark."""

    machine: Machine
    plans: list[PlanResult]


@dataclasses.dataclass(frozen=True)
class Kill:
    """One killed process of a running refit.

    `first_s` and `last_s`: from the kill until the first and the last survivor raised; None where
    one had not within the limit. `socket_eof_s`: until a socket of the killed process said so.
    """

    method: str
    victim: str
    ballast_bytes: int
    resident_bytes: int
    refits_before: int
    first_s: float | None
    last_s: float | None
    socket_eof_s: float | None
    errors: list[str]


@dataclasses.dataclass(frozen=True)
class KillResults:
    """One run of the killed-peer benchmark."""

    machine: Machine
    kills: list[Kill]
    skipped: dict[str, str]


@dataclasses.dataclass(frozen=True)
class PackResult:
    """One kind of strided copy against memcpy in the same process.

    `ratio` compares bytes read plus written per second; `target` is 0 where there is none;
    `milliseconds` are least, median and most.
    """

    operation: str
    cut: str
    ratio: float
    target: float
    milliseconds: tuple[float, float, float]
    bytes_per_second: float


@dataclasses.dataclass(frozen=True)
class PackResults:
    """One run of the pack benchmark."""

    machine: Machine
    packs: list[PackResult]


@dataclasses.dataclass(frozen=True)
class IssueResult:
    """Processor seconds to issue one round, for both of its ends.

    `first_s` has the making of tables in it, which later runs find made.
    """

    name: str
    num_boxes: int
    num_messages: int
    first_s: float
    seconds: Spread


@dataclasses.dataclass(frozen=True)
class IssueResults:
    """One run of the benchmark of issuing."""

    machine: Machine
    cases: list[IssueResult]


@dataclasses.dataclass(frozen=True)
class DevicePackResult:
    """One kind of boxes on a GPU; `ratio` is to a copy inside of the device, by bytes moved."""

    operation: str
    ratio: float
    target: float
    nbytes: int
    seconds: Spread
    copy_seconds: Spread


@dataclasses.dataclass(frozen=True)
class DevicePackResults:
    """One run of the benchmark of kernels; `caveat` says what the times are not."""

    machine: Machine
    gpu: str
    caveat: str
    packs: list[DevicePackResult]


@dataclasses.dataclass(frozen=True)
class DeviceRefitResult:
    """One way to refit; the time of a refit is that of its slowest rank."""

    method: str
    about: str
    seconds: Spread


@dataclasses.dataclass(frozen=True)
class DeviceRefitResults:
    """One run of the benchmark of refits between GPUs."""

    machine: Machine
    gpus: str
    caveat: str
    num_ranks: int
    model_bytes: int
    methods: list[DeviceRefitResult]


@dataclasses.dataclass(frozen=True)
class MoveResult:
    """One way to move JAX arrays; `refusal` is what JAX says where it does not."""

    about: str
    method: str
    nbytes: int
    seconds: Spread
    refusal: str


@dataclasses.dataclass(frozen=True)
class MoveResults:
    """One run of the benchmark of moves."""

    machine: Machine
    moves: list[MoveResult]
