"""Environment variables that reshard reads: all of them, and nothing else reads any.

| variable | meaning |
|---|---|
| `RESHARD_CACHE_DIR` | folder of compiled kernels, instead of `~/.cache/reshard` |
| `RESHARD_CUDA_LIBRARY` | path of the CUDA driver, instead of the `libcuda.so.1` that is found |
| `RESHARD_LOG` | `debug`, `info`, `warning` or `error`: log lines of that level go to stderr |
| `RESHARD_NCCL_LIBRARY` | path of the copy of NCCL to take, instead of the one that is found |
| `RESHARD_NVRTC_LIBRARY` | path of the copy of NVRTC, CUDA's run-time compiler, to take |

Of NCCL's own, `NCCL_COMM_BLOCKING` is looked at, to warn of what it does.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from reshard.suggestion import did_you_mean

__all__ = [
    "cache_folder",
    "configure_logging",
    "cuda_library",
    "nccl_library",
    "nccl_must_block",
    "nvrtc_library",
    "unknown_variables",
    "without_effect",
]

_logger = logging.getLogger("reshard")
_LEVELS = ("debug", "info", "warning", "error")
_CACHE_DIR = "RESHARD_CACHE_DIR"
_NCCL_LIBRARY = "RESHARD_NCCL_LIBRARY"
_NVRTC_LIBRARY = "RESHARD_NVRTC_LIBRARY"
_CUDA_LIBRARY = "RESHARD_CUDA_LIBRARY"
_KNOWN = frozenset(
    {
        "RESHARD_LOG",
        _CACHE_DIR,
        _CUDA_LIBRARY,
        _NCCL_LIBRARY,
        _NVRTC_LIBRARY,
        "RESHARD_REQUIRE",  # the tests'
    }
)


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
    for name in unknown_variables():
        _logger.warning("%s", without_effect(name))


def unknown_variables() -> list[str]:
    """Returns the names of variables that look like ours and are none."""
    return sorted(n for n in os.environ if n.startswith("RESHARD_") and n not in _KNOWN)


def without_effect(name: str) -> str:
    """Returns a sentence on an unknown variable."""
    return f"the environment variable {name} has no effect.{did_you_mean(name, sorted(_KNOWN))}"


def nccl_library() -> str | None:
    """Returns what `RESHARD_NCCL_LIBRARY` names; None where it is not set or empty."""
    return os.environ.get(_NCCL_LIBRARY) or None


def nccl_must_block() -> bool:
    """True if `NCCL_COMM_BLOCKING` overrides what communicators ask for."""
    return os.environ.get("NCCL_COMM_BLOCKING", "").strip() == "1"


def cuda_library() -> str | None:
    """Returns what `RESHARD_CUDA_LIBRARY` names; None where it is not set or empty."""
    return os.environ.get(_CUDA_LIBRARY) or None


def nvrtc_library() -> str | None:
    """Returns what `RESHARD_NVRTC_LIBRARY` names; None where it is not set or empty."""
    return os.environ.get(_NVRTC_LIBRARY) or None


def cache_folder() -> Path | None:
    """Returns the folder for what is made once per machine; None where there is no home for it."""
    named = os.environ.get(_CACHE_DIR)
    if named:
        return Path(named)
    user = os.environ.get("XDG_CACHE_HOME", "")
    if Path(user).is_absolute():  # the XDG standard has others ignored
        return Path(user) / "reshard"
    try:
        return Path.home() / ".cache" / "reshard"
    except RuntimeError:
        return None


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler that `RESHARD_LOG` asks for; a class of its own so that it is added once."""
