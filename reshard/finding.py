"""One thing that a check of a plan has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Severity"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at.

    Args:
        severity: `error` if the plan cannot run, `warning` for what is probably not wanted, `note`
            for what a reader should know.
        code: what kind of finding this is; stable.
        subject: the tensor, kind of tensor or ranks that it is about; empty for the whole plan.
        message: what is wrong, what would be right, what to do.
    """

    severity: Severity
    code: str
    subject: str
    message: str
