"""Environment variables that reshard reads: all of them, and nothing else reads any.

| variable | meaning |
|---|---|
| `RESHARD_LOG` | `debug`, `info`, `warning` or `error`: log lines of that level go to stderr |
| `RESHARD_NCCL_LIBRARY` | path of the copy of NCCL to take, instead of the one that is found |
"""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["configure_logging", "nccl_library"]

_logger = logging.getLogger("reshard")
_LEVELS = ("debug", "info", "warning", "error")
_NCCL_LIBRARY = "RESHARD_NCCL_LIBRARY"
_KNOWN = frozenset({"RESHARD_LOG", _NCCL_LIBRARY, "RESHARD_REQUIRE"})  # the last one is the tests'


def configure_logging() -> None:
    """Follows `RESHARD_LOG`, once; without it, logging is left to the application.

    Unknown `RESHARD_` variables and levels are warned about: a misspelt one would do nothing.
    """
    level = os.environ.get("RESHARD_LOG", "").lower()
    if level in _LEVELS and not any(isinstance(h, _StderrHandler) for h in _logger.handlers):
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        _logger.addHandler(handler)
        _logger.setLevel(level.upper())
    elif level and level not in _LEVELS:
        _logger.warning("RESHARD_LOG=%s is not a level; use one of %s.", level, ", ".join(_LEVELS))
    unknown = sorted(n for n in os.environ if n.startswith("RESHARD_") and n not in _KNOWN)
    if unknown:
        _logger.warning("unknown environment variables %s have no effect.", ", ".join(unknown))


def nccl_library() -> str | None:
    """Returns what `RESHARD_NCCL_LIBRARY` names; None where it is not set or empty."""
    return os.environ.get(_NCCL_LIBRARY) or None


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler that `RESHARD_LOG` asks for; a class of its own so that it is added once."""
