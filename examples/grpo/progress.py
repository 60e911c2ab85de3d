"""One updating line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_BAR_CELLS = 20


class Progress:
    """Shows how far a run is.

    Args:
        title: What runs; begins every line.
        total: Number of steps of the run.
        stream: Where to write.
    """

    def __init__(self, title: str, total: int, stream: TextIO = sys.stdout) -> None:
        """Starts the clock; writes nothing."""
        self._title = title
        self._total = total
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """Says what the run is doing before and after its steps."""
        self._show(text)

    def step(self, done: int, text: str) -> None:
        """Says that `done` steps are finished."""
        filled = _BAR_CELLS * done // self._total
        bar = "#" * filled + "-" * (_BAR_CELLS - filled)
        self._show(f"step {done:2d}/{self._total} [{bar}] {text}")

    def finish(self, text: str) -> None:
        """Writes the last line."""
        self._show(text)
        if self._is_terminal:
            self._write("\n")

    def _show(self, text: str) -> None:
        line = f"{self._title}: {text} ({time.monotonic() - self._started:.0f} s)"
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[2K{line[:width]}")
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
