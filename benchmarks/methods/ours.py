"""reshard through its torch adapter, as a trainer and an engine would use it."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.methods.method import Method, RankCase

__all__ = ["Ours", "OursVerified"]


class Ours(Method):
    """DTensors on both sides; nothing is checked after the move, as no peer does."""

    name = "ours"
    about = "reshard, shared-memory transport, without fingerprints"
    verify = False

    def __init__(self, case: RankCase) -> None:
        super().__init__(case)
        self._end: Any = None
        self._num_published = 0

    @classmethod
    def unavailable(cls) -> str | None:
        """Names what is missing."""
        try:
            importlib.import_module("reshard_torch").Source  # noqa: B018 (is it there?)
        except (ImportError, AttributeError) as error:
            return f"reshard cannot be used ({error}); make build"
        return None

    def set_up(self) -> None:
        """Opens both ends; they meet, plan and connect in the first refit."""
        adapter = importlib.import_module("reshard_torch")
        case = self.case
        address = f"tcp://127.0.0.1:{self.agreed_port()}"
        end = adapter.Source if case.is_source else adapter.Destination
        group = case.groups.source if case.is_source else case.groups.destination
        self._end = end(address, case.dtensors, process_group=group)

    def refit(self, version: int) -> None:
        """Publishes on the source, refits on the destination."""
        if self.case.is_source:
            self._num_published += 1
            self._end.publish(version=self._num_published, verify=self.verify)
        else:
            self._end.refit()

    def note(self) -> str:
        """Returns the phases of the last refit (of the slowest process) and the busiest times."""
        report = self._end.report
        phases = {**report.phases, **report.busy}
        return ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in phases.items())

    def tear_down(self) -> None:
        """Closes the end."""
        self._end.close()


class OursVerified(Ours):
    """The same with what reshard does by default: fingerprints of all tensors, on both sides."""

    name = "ours_verified"
    about = "reshard with fingerprints of all tensors compared after every refit"
    verify = True
