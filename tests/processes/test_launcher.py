"""The launcher itself: results come back; failures, hangs and deaths are told with all outputs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.ranks import ProcessGroup, listen, run_on_processes, tell

pytestmark = pytest.mark.processes


def _scaled(process: int, num_processes: int, offset: int) -> int:
    return process * num_processes + offset


def _large(process: int, num_processes: int) -> bytes:
    return bytes([process]) * (1 << 24)


def _raises_on_one(process: int, num_processes: int) -> None:
    print(f"output of {process}", file=sys.stderr)
    if process == 1:
        raise ValueError("one is refused")


def _hangs_on_one(process: int, num_processes: int) -> None:
    if process == 1:
        threading.Event().wait(60.0)


def _waits_for_word(process: int, num_processes: int) -> str:
    tell("ready")
    word: str = listen()
    return word


def test_results_are_ordered_by_process() -> None:
    assert run_on_processes(_scaled, 3, 30.0, arguments=(5,)) == [5, 8, 11]


def test_results_larger_than_a_pipe_come_back() -> None:
    results = run_on_processes(_large, 2, 30.0)
    assert [(len(result), result[0]) for result in results] == [(1 << 24, 0), (1 << 24, 1)]


def test_an_error_is_raised_with_the_outputs_of_all() -> None:
    with pytest.raises(RuntimeError, match="ValueError: one is refused") as caught:
        run_on_processes(_raises_on_one, 2, 30.0)
    assert "output of 0" in str(caught.value)
    assert "output of 1" in str(caught.value)


def test_a_hang_ends_at_the_limit_and_shows_its_stack() -> None:
    started_s = time.monotonic()
    with pytest.raises(RuntimeError, match="in _hangs_on_one"):
        run_on_processes(_hangs_on_one, 2, 8.0)
    assert time.monotonic() - started_s < 16.0


def _starts_slowly_and_hangs(process: int, num_processes: int) -> None:
    threading.Event().wait(60.0)


def test_a_slow_start_does_not_carry_the_stacks_past_the_limit() -> None:
    # The child is held before its first instruction for longer than the dump leaves room.
    with ProcessGroup(_starts_slowly_and_hangs, 1, 10.0) as group:
        group.signal(0, signal.SIGSTOP)
        threading.Event().wait(4.0)
        group.signal(0, signal.SIGCONT)
        [outcome] = group.finish()
    assert "in _starts_slowly_and_hangs" in outcome.output


def test_a_killed_process_is_seen_while_the_other_goes_on() -> None:
    with ProcessGroup(_waits_for_word, 2, 30.0) as group:
        assert [group.expect(0), group.expect(1)] == ["ready", "ready"]
        group.signal(0, signal.SIGKILL)
        assert group.wait(0).exit_code == -signal.SIGKILL
        group.send(1, "go")
        outcomes = group.finish()
    assert [outcome.is_success for outcome in outcomes] == [False, True]
    assert outcomes[1].value == "go"


def test_nothing_leaks() -> None:
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    run_on_processes(_scaled, 2, 30.0, arguments=(0,))
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


def test_a_function_that_has_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="not importable by name"):
        run_on_processes(lambda process, num_processes: os.getpid(), 1, 5.0)
