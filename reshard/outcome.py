"""What a process tells the others after its part of a refit, and the report of all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from reshard.copy_rate import one_copy_seconds
from reshard.errors import LayoutError
from reshard.report import RefitReport

__all__ = ["Outcome", "check_verify", "make_report"]


class Outcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a process tells after its part of a refit."""

    bytes_in: int
    bytes_local: int
    bytes_held: int
    move_s: float
    verify_s: float
    pack_s: float
    unpack_s: float
    idle_s: float
    peak_staging_bytes: int
    is_verified: bool
    sums: bytes


def check_verify(outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
    """Checks that all processes compare fingerprints, or none.

    Raises:
        LayoutError: saying who does; on every process alike.
    """
    given = [outcome.is_verified for outcome in outcomes]
    if len(set(given)) > 1:
        listed = ", ".join(f"{name}: {each}" for name, each in zip(names, given, strict=True))
        raise LayoutError(
            f"verify has to be the same everywhere, but was given as {listed}. What moved has "
            "arrived, and was not compared."
        )


def make_report(
    outcomes: Sequence[Outcome],
    *,
    version: int,
    epoch: int,
    num_parameters: int,
    copy_rate: float,
    phases: Mapping[str, float],
    fingerprints: Mapping[str, int],
) -> RefitReport:
    """Returns the report of a finished refit.

    Args:
        outcomes: of all members.
        version, epoch, num_parameters: as in the report.
        copy_rate: bytes per second at which this machine copies memory.
        phases: seconds of the phases that only this process knows.
        fingerprints: per canonical name; empty if not verified.
    """

    def most(field: str) -> float:
        return max(float(getattr(outcome, field)) for outcome in outcomes)

    return RefitReport(
        version=version,
        epoch=epoch,
        num_parameters=num_parameters,
        nbytes=sum(outcome.bytes_in for outcome in outcomes),
        nbytes_held=sum(outcome.bytes_held for outcome in outcomes),
        nbytes_local=sum(outcome.bytes_local for outcome in outcomes),
        phases={**phases, "move": most("move_s"), "verify": most("verify_s")},
        busy={"pack": most("pack_s"), "unpack": most("unpack_s"), "idle": most("idle_s")},
        peak_staging_bytes=int(most("peak_staging_bytes")),
        one_copy_seconds=one_copy_seconds([outcome.bytes_in for outcome in outcomes], copy_rate),
        fingerprints=fingerprints,
    )
