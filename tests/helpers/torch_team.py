"""Torch programs that stay up and run scenario after scenario, since torch is slow to import."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import torch.distributed as dist

import reshard_torch
from helpers.ranks import ProcessGroup, listen, tell
from helpers.torch_ranks import gloo_group

__all__ = ["TorchTeam", "open_destination", "open_source"]

_START_S = 150.0
_SCENARIO_S = 90.0
_LIFE_S = 900.0


class TorchTeam:
    """Several programs, each with a gloo group of its own.

    A scenario is a function `(program, *arguments)` that every process runs; `program` is the index
    of its program, and what it returns must be picklable without torch. After a failed scenario
    the processes are replaced.

    Args:
        sizes: number of processes of each program.
        folder: where the groups meet; a new one for each team.
    """

    def __init__(self, sizes: Sequence[int], folder: Path) -> None:
        self._sizes = tuple(sizes)
        self._folder = folder
        self._num_starts = 0
        self._group: ProcessGroup | None = None

    def run(self, scenario: Callable[..., Any], *arguments: object) -> list[Any]:
        """Runs a scenario on all processes and returns what each of them returned.

        Raises:
            AssertionError: a process raised; holds the traceback of each that did.
        """
        group = self._started()
        everybody = range(sum(self._sizes))
        try:
            for process in everybody:
                group.send(process, (scenario, arguments))
            answers = [self._answer(group, process) for process in everybody]
        except BaseException as error:
            self._stop(error)
            raise
        errors = [f"--- process {p}:\n{text}" for p, (_, text) in enumerate(answers) if text]
        if errors:
            self._stop(None)
            raise AssertionError(f"{scenario.__name__} failed\n" + "\n".join(errors))
        return [value for value, _ in answers]

    def _started(self) -> ProcessGroup:
        if self._group is None:
            self._num_starts += 1
            place = self._folder / str(self._num_starts)
            place.mkdir()
            arguments = (self._sizes, str(place))
            count = sum(self._sizes)
            group = ProcessGroup(_serve, count, _LIFE_S, arguments=arguments)
            self._group = group.__enter__()
            try:
                for process in range(count):
                    group.expect(process, _START_S)
            except BaseException as error:
                self._stop(error)
                raise
        return self._group

    def _answer(self, group: ProcessGroup, process: int) -> tuple[Any, str | None]:
        while True:
            kind, *content = group.expect(process, _SCENARIO_S)
            if kind == "end":
                return content[0], content[1]
            for other in range(sum(self._sizes)):
                if other != process:
                    group.send(other, content[0])

    def _stop(self, error: BaseException | None) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.__exit__(None if error is None else type(error), error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._group is not None:
            for process in range(sum(self._sizes)):
                self._group.send(process, None)
            outcomes = self._group.finish()
            self._stop(None)
            assert all(outcome.is_success for outcome in outcomes), outcomes


def share(value: object) -> None:
    """Gives a value to `listen` of all other processes; process 0 only, before it returns."""
    tell(("share", value))


def open_source(tensors: reshard_torch.Tensors, **options: Any) -> reshard_torch.Source:
    """Opens the source in all processes of program 0, on a port that its rank 0 picks."""
    options.setdefault("timeout_s", _SCENARIO_S / 2)
    if dist.get_rank() != 0:
        return reshard_torch.Source(listen(_SCENARIO_S), tensors, **options)
    source = reshard_torch.Source("tcp://127.0.0.1:0", tensors, **options)
    share(source.address)
    return source


def open_destination(tensors: reshard_torch.Tensors, **options: Any) -> reshard_torch.Destination:
    """Opens a destination of the source that program 0 opens."""
    options.setdefault("timeout_s", _SCENARIO_S / 2)
    return reshard_torch.Destination(listen(_SCENARIO_S), tensors, **options)


def _serve(process: int, num_processes: int, sizes: Sequence[int], folder: str) -> None:
    program, index = 0, process
    while index >= sizes[program]:
        index -= sizes[program]
        program += 1
    place = Path(folder) / str(program)
    place.mkdir(exist_ok=True)
    with gloo_group(index, sizes[program], str(place), timeout_s=_START_S):
        tell("ready")
        while (job := listen(_LIFE_S)) is not None:
            scenario, arguments = job
            try:
                tell(("end", scenario(program, *arguments), None))
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - the test is told
                tell(("end", None, traceback.format_exc()))
