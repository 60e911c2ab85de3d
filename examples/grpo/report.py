"""The demo's closing report: a table of both runs, and the claims that they must bear out."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from results import RefitRecord, RunResult

FIRST_REWARD_LIMIT = 0.06  # an untrained policy picks each of the 64 tokens equally often: 0.016
LAST_REWARD_GOAL = 0.95
LOGITS_TOLERANCE = 1e-4
FROZEN_LOGITS_DIFFERENCE = 1e-2

_PHASES_IN_ORDER = ("wait", "setup", "move", "verify", "commit")
_LABEL_WIDTH, _VALUE_WIDTH = 38, 14


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something that the demo promises, and whether the runs bear it out."""

    text: str
    holds: bool


def check_claims(refitted: RunResult, frozen: RunResult) -> list[Claim]:
    """Returns every claim of the demo with its verdict.

    Args:
        refitted: The run in which every step refits the engine.
        frozen: The control run in which the engine keeps the weights of its checkpoint.
    """
    num_steps = len(refitted.rewards)
    refits = refitted.refits
    tensors = max((refit.num_parameters for refit in refits), default=0)
    return [
        Claim(
            f"the reward goes from below {FIRST_REWARD_LIMIT} to above {LAST_REWARD_GOAL} within "
            f"{num_steps} steps",
            refitted.rewards[0] < FIRST_REWARD_LIMIT and refitted.rewards[-1] > LAST_REWARD_GOAL,
        ),
        Claim(
            f"without refit it stays below {FIRST_REWARD_LIMIT}",
            not frozen.refits and max(frozen.rewards) < FIRST_REWARD_LIMIT,
        ),
        Claim(
            f"one refit before training and one after each step: {num_steps + 1}",
            len(refits) == num_steps + 1,
        ),
        Claim(
            f"the fingerprints of all {tensors} tensors agreed after every refit",
            tensors > 0 and refitted.num_fingerprints >= tensors * len(refits),
        ),
        Claim(
            "every byte took the reshard path",
            bool(refits) and all(refit.share_resharded == 1.0 for refit in refits),
        ),
        Claim(
            f"at the end trainer and engine give the same logits, within {LOGITS_TOLERANCE:g}",
            refitted.logits_difference <= LOGITS_TOLERANCE,
        ),
        Claim(
            f"without refit they do not: apart by more than {FROZEN_LOGITS_DIFFERENCE:g}",
            frozen.logits_difference > FROZEN_LOGITS_DIFFERENCE,
        ),
    ]


def format_report(refitted: RunResult, frozen: RunResult, claims: list[Claim]) -> str:
    """Returns the report as text."""
    lines = [
        "reshard demo: Tunix GRPO on JAX (fsdp 2 x tp 2) -> transformers on PyTorch (tp 2)",
        f"model: Qwen3, {refitted.model_size:,} parameters, float32",
        "",
        _row("", "refit on", "refit off"),
        _row("reward, first step", *(f"{run.rewards[0]:.3f}" for run in (refitted, frozen))),
        _row("reward, last step", *(f"{run.rewards[-1]:.3f}" for run in (refitted, frozen))),
        _row("refits", *(str(len(run.refits)) for run in (refitted, frozen))),
        _row(
            "largest difference of logits",
            *(f"{run.logits_difference:.1e}" for run in (refitted, frozen)),
        ),
        _row("run, seconds", *(f"{run.seconds:.1f}" for run in (refitted, frozen))),
    ]
    if refitted.refits:
        lines += ["", *_refit_rows(refitted.refits)]
    lines += ["", *(f"[{'ok' if claim.holds else 'FAILED'}] {claim.text}" for claim in claims)]
    return "\n".join(lines)


def _refit_rows(refits: list[RefitRecord]) -> list[str]:
    """Returns the rows about refits: median over all but the first, and the first."""
    first, later = refits[0], refits[1:] or refits

    def row(label: str, value: Callable[[RefitRecord], float], form: str, scale: float = 1) -> str:
        median = statistics.median(value(refit) for refit in later)
        return _row(label, format(median * scale, form), format(value(first) * scale, form))

    def phase_row(phase: str) -> str:
        return row(f"  {phase}, ms", lambda refit: refit.phases.get(phase, 0.0), ".2f", 1e3)

    named = {phase for refit in refits for phase in refit.phases}
    phases = [phase for phase in _PHASES_IN_ORDER if phase in named]
    phases += sorted(named.difference(phases))
    return [
        _row("per refit", "median", "first"),
        row("tensors moved", lambda refit: refit.num_parameters, ".0f"),
        row("megabytes moved", lambda refit: refit.nbytes, ".2f", 1e-6),
        row("share on the reshard path, %", lambda refit: refit.share_resharded, ".0f", 100),
        row("milliseconds", lambda refit: refit.seconds, ".2f", 1e3),
        *(phase_row(phase) for phase in phases),
        row("GB/s", lambda refit: refit.bytes_per_second, ".2f", 1e-9),
        row("peak staging, MiB", lambda refit: refit.peak_staging_bytes, ".2f", 1 / (1 << 20)),
        row("share of the one-copy limit, %", lambda r: r.achieved_share_of_limit, ".0f", 100),
    ]


def _row(label: str, left: str, right: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{left:>{_VALUE_WIDTH}}{right:>{_VALUE_WIDTH}}"
