"""A run that goes on while its process waits for the words of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from reshard.errors import TransportError

if TYPE_CHECKING:
    from reshard._native import Run

__all__ = ["RunWatch"]

_SLICE_S = 0.05  # long beside the pauses in which an exchange waits for words


class RunWatch:
    """Drives a run inside of an exchange; an error whose cause others know waits for their word.

    Args:
        run: that was begun.
        patience: how long their word may take, in seconds.
    """

    def __init__(self, run: Run, patience: Callable[[TransportError], float]) -> None:
        self._run = run
        self._patience = patience
        self._error: TransportError | None = None
        self._raise_at = 0.0

    def go_on(self) -> None:
        """Lets the run go on for a moment.

        Raises:
            TransportError: what ended the run.
        """
        from reshard._native import has_cause_elsewhere

        try:
            self._run.progress(_SLICE_S)
        except TransportError as error:
            if not has_cause_elsewhere(error):
                raise
            # Raised here it would close the exchange before anybody says who was lost.
            self._error = error
            self._raise_at = time.monotonic() + self._patience(error)
        if self._error is not None and time.monotonic() > self._raise_at:
            raise self._error

    def raise_error(self) -> None:
        """Raises what ended the run, if that is still to be raised."""
        if self._error is not None:
            raise self._error
