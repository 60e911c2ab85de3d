"""What was meant by a name that does not exist, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean 'x'?` for the known name that is nearest, or nothing if none is near.

    Example:
        >>> did_you_mean("deepseek-v4", ["kimi-k2", "deepseek-v3"])
        " Did you mean 'deepseek-v3'?"
    """
    near = get_close_matches(given, list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""
