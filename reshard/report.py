"""What one refit did: the same figures on every process that took part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reshard.plan_text import format_bytes

__all__ = ["RefitReport"]


@dataclass(frozen=True, slots=True)
class RefitReport:
    """A finished refit.

    Attributes:
        version: what was published.
        epoch: number of the set of processes that took part.
        num_parameters: canonical tensors that moved.
        nbytes: bytes that arrived in destinations, all ranks together.
        nbytes_held: bytes that all destination ranks store of these parameters, counted from their
            layouts; what a refit has to deliver.
        nbytes_local: the part of `nbytes` that was copied within one process.
        phases: seconds per phase on the slowest process: `wait` (for all to be there), `setup`
            (only when the set of processes or the tensors changed), `move`, `verify`, `commit`.
        busy: seconds of copying, on the busiest process: `pack` and `unpack`; `idle` is the longest
            time that a process slept during the move.
        peak_staging_bytes: memory for chunks under way, of the process that had most.
        one_copy_seconds: the time in which destinations could copy their bytes once out of shared
            memory, at the copy rate that the source probed; 0 where nobody did.
        fingerprints: per canonical name, if the refit was verified; else empty.
    """

    version: int
    epoch: int
    num_parameters: int
    nbytes: int
    nbytes_held: int
    nbytes_local: int
    phases: Mapping[str, float]
    busy: Mapping[str, float]
    peak_staging_bytes: int
    one_copy_seconds: float
    fingerprints: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def seconds(self) -> float:
        """From all being there to the version being committed, without a one-time setup."""
        return self.phases["move"] + self.phases["verify"] + self.phases["commit"]

    @property
    def bytes_per_second(self) -> float:
        """Bytes that arrived, per second of moving."""
        return self.nbytes / self.phases["move"] if self.phases["move"] else 0.0

    @property
    def achieved_share_of_limit(self) -> float:
        """One-copy limit divided by the time of the move; 1.0 is the limit."""
        return self.one_copy_seconds / self.phases["move"] if self.phases["move"] else 0.0

    @property
    def share_resharded(self) -> float:
        """Bytes that were moved box by box, divided by those that the destinations store."""
        return self.nbytes / self.nbytes_held if self.nbytes_held else 1.0

    @property
    def is_verified(self) -> bool:
        """True if fingerprints of all tensors were compared and agree."""
        return bool(self.fingerprints)

    def __str__(self) -> str:
        verified = ", verified" if self.is_verified else ""
        return (
            f"version {self.version}: {self.num_parameters} parameters, "
            f"{format_bytes(self.nbytes)} in "
            f"{self.phases['move'] * 1e3:.1f} ms ({self.bytes_per_second / 1e9:.2f} GB/s, "
            f"{self.achieved_share_of_limit:.0%} of the one-copy limit){verified}"
        )
