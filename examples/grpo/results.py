"""What one run of the trainer found out, as a value that goes through a JSON file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class RefitRecord:
    """The trainer's report of one refit.

    Attributes:
        num_parameters: Tensors moved.
        nbytes: Bytes moved to all ranks of the engine together.
        seconds: From all processes being there to the version being committed.
        phases: Seconds by phase on the slowest process; `wait` and `setup` come before `seconds`.
        bytes_per_second: `nbytes` over the seconds of moving.
        peak_staging_bytes: Largest staging memory of a process.
        share_resharded: Share of the bytes that took the reshard path, 0 to 1.
        achieved_share_of_limit: Seconds that one copy of the bytes takes, over those of moving.
    """

    num_parameters: int
    nbytes: int
    seconds: float
    phases: dict[str, float]
    bytes_per_second: float
    peak_staging_bytes: int
    share_resharded: float
    achieved_share_of_limit: float

    @staticmethod
    def of(report: object) -> RefitRecord:
        """Copies what the demo shows out of reshard's report."""
        names = (field.name for field in dataclasses.fields(RefitRecord))
        values = {name: getattr(report, name) for name in names}
        return RefitRecord(**values | {"phases": dict(values["phases"])})


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One run.

    Attributes:
        is_refit_on: False in the control run.
        model_size: Elements of the model's parameters.
        rewards: Mean reward of each step's completions, before the step's update.
        refits: One record per refit.
        num_fingerprints: Fingerprints compared over all refits; all agreed.
        logits_difference: Largest difference between the trainer's and the engine's logits after
            the last step.
        seconds: Length of the run.
    """

    is_refit_on: bool
    model_size: int
    rewards: list[float]
    refits: list[RefitRecord]
    num_fingerprints: int
    logits_difference: float
    seconds: float

    def save(self, path: Path) -> None:
        """Writes the result as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @staticmethod
    def load(path: Path) -> RunResult:
        """Reads a result written by `save`."""
        fields = json.loads(path.read_text())
        refits = [RefitRecord(**record) for record in fields.pop("refits")]
        return RunResult(refits=refits, **fields)
