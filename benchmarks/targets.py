"""What the benchmarks are expected to show, and whether a run showed it."""

from __future__ import annotations

import dataclasses

from benchmarks.results import (
    CaseResult,
    DevicePackResult,
    IssueResult,
    Kill,
    MoveResult,
    PackResult,
    PlanResult,
)

__all__ = [
    "LIMIT",
    "OURS",
    "Verdict",
    "at_most",
    "judge_device_packs",
    "judge_issues",
    "judge_kills",
    "judge_moves",
    "judge_packs",
    "judge_plans",
    "judge_refits",
]

LIMIT = "one_copy"
OURS = "ours"

_REFIT_RATIO = 1.5
_FIRST_RATIO = 1.5
_STAGING_BYTES = 64 << 20
_TINY_S = 0.030
_SMALL_S = 0.002
_PLAN_S = 0.005
_KILL_S = 0.050
_ISSUE_S = 0.001
_JAX = "jax.device_put"
_MOVE_RATIO = 2.5


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One target: what was asked, what was measured."""

    name: str
    asked: str
    measured: str
    passed: bool


def judge_refits(cases: list[CaseResult]) -> list[Verdict]:
    """Judges the cases that a target names, and memory in all of them."""
    verdicts = []
    for case in cases:
        ours, limit = case.method(OURS), case.method(LIMIT)
        if ours is None or limit is None:
            continue
        title = f"{case.workload} {case.pair}"
        steady = ours.seconds.median
        if case.workload == "dense-1.5g":
            ratio = steady / limit.seconds.median
            verdicts.append(at_most(f"refit {title}, x one copy", ratio, _REFIT_RATIO, ""))
            first = ours.first_s / steady
            verdicts.append(at_most(f"refit {title}, first / steady", first, _FIRST_RATIO, ""))
        if case.workload == "tiny-1000":
            verdicts.append(at_most(f"refit {title}", steady * 1e3, _TINY_S * 1e3, " ms"))
        if case.workload == "small-200" and ours.back_to_back:
            each = ours.back_to_back.median * 1e3
            verdicts.append(at_most(f"refit {title}, back to back", each, _SMALL_S * 1e3, " ms"))
        extra = max(ours.source_extra_bytes, ours.destination_extra_bytes) / 2**20
        name = f"peak extra memory {title}, either side"
        verdicts.append(at_most(name, extra, _STAGING_BYTES / 2**20, " MiB"))
    return verdicts


def judge_plans(plans: list[PlanResult]) -> list[Verdict]:
    """Judges one rank's cold plan of every model and side."""
    return [
        at_most(
            f"cold plan {plan.model}, {plan.side}",
            plan.plan_seconds.median * 1e3,
            _PLAN_S * 1e3,
            " ms",
        )
        for plan in plans
    ]


def judge_kills(kills: list[Kill]) -> list[Verdict]:
    """Judges when the last survivor of each kill of ours knew."""
    verdicts = []
    for kill in kills:
        if kill.method != OURS:
            continue
        name = f"killed {kill.victim} of {kill.resident_bytes / 2**30:.1f} GiB reported to all"
        if kill.last_s is None:
            verdicts.append(Verdict(name, f"<= {_KILL_S * 1e3:.0f} ms", "never", passed=False))
        else:
            verdicts.append(at_most(name, kill.last_s * 1e3, _KILL_S * 1e3, " ms"))
    return verdicts


def judge_device_packs(packs: list[DevicePackResult]) -> list[Verdict]:
    """Judges the ratios to a copy inside of the device."""
    return [
        Verdict(
            f"{pack.operation}, x device copy",
            f">= {pack.target:.2f}",
            f"{pack.ratio:.2f}",
            pack.ratio >= pack.target,
        )
        for pack in packs
        if pack.target > 0
    ]


def judge_packs(packs: list[PackResult]) -> list[Verdict]:
    """Judges the ratios to memcpy of what a refit does: one chunk at a time."""
    return [
        Verdict(
            f"{pack.operation}, x memcpy",
            f">= {pack.target:.2f}",
            f"{pack.ratio:.2f}",
            pack.ratio >= pack.target,
        )
        for pack in packs
        if pack.cut == "chunked" and pack.target > 0
    ]


def judge_issues(issues: list[IssueResult]) -> list[Verdict]:
    """Judges the time to issue a round, of which a rank has one end."""
    return [
        at_most(
            f"issue {issue.num_boxes} boxes, both ends, {issue.name}",
            issue.seconds.median * 1e3,
            2 * _ISSUE_S * 1e3,
            " ms",
        )
        for issue in issues
    ]


def judge_moves(moves: list[MoveResult]) -> list[Verdict]:
    """Judges moves of JAX arrays: beside JAX where it can, else beside one copy."""
    verdicts = []
    for about in dict.fromkeys(move.about for move in moves):
        seconds = {move.method: move.seconds.median for move in moves if move.about == about}
        peer, limit = (_JAX, 1.0) if _JAX in seconds else (LIMIT, _MOVE_RATIO)
        ratio = seconds[OURS] / seconds[peer]
        verdicts.append(at_most(f"jax arrays, {about}, beside {peer}", ratio, limit, " x"))
    return verdicts


def at_most(name: str, measured: float, limit: float, unit: str) -> Verdict:
    """Returns whether something is at most a limit."""
    return Verdict(name, f"<= {limit:g}{unit}", f"{measured:.2f}{unit}", measured <= limit)
