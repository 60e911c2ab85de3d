"""A lock that exceptions at any moment do not leak."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest
from helpers.threads import WAIT_S, inside_elsewhere

from reshard.exclusive import Exclusive


class _Interrupt(BaseException):
    """As KeyboardInterrupt, raised by a signal handler between two steps."""


def _is_free(exclusive: Exclusive) -> bool:
    def take() -> bool:
        with exclusive.hold():
            return True

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(take).exception(WAIT_S) is None


def test_another_thread_is_refused_and_this_one_is_not() -> None:
    exclusive = Exclusive()
    with exclusive.hold() as outer, exclusive.hold() as inner:
        assert (outer.is_outermost, inner.is_outermost) == (True, False)
        assert not _is_free(exclusive)
    assert _is_free(exclusive)


def test_a_hold_waits_as_long_as_it_says() -> None:
    exclusive, may_end = Exclusive(), threading.Event()
    with inside_elsewhere(exclusive.hold(), until=may_end):
        with pytest.raises(LookupError, match="busy"), exclusive.hold(lambda: LookupError("busy")):
            pytest.fail("taken")
        may_end.set()
        with exclusive.hold(timeout_s=WAIT_S):
            pass


@pytest.mark.parametrize("is_inside", [False, True])
def test_an_interrupt_at_any_line_leaves_the_lock_as_it_was(is_inside: bool) -> None:
    """Every line of taking and giving back is interrupted once, in turn."""
    num_interrupted = 0
    for line in range(60):
        exclusive = Exclusive()
        if is_inside:
            with exclusive.hold():
                num_interrupted += _interrupted_at(line, exclusive)
                assert exclusive.is_mine
                assert not _is_free(exclusive)
        else:
            num_interrupted += _interrupted_at(line, exclusive)
            with exclusive.hold():  # the next one heals what an interrupt of giving back has left
                pass
        assert _is_free(exclusive), line
    assert num_interrupted > 10


def _interrupted_at(line: int, exclusive: Exclusive) -> bool:
    """Takes and gives back, with an interrupt at one of the lines that are run for it."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if frame.f_code.co_filename.endswith("exclusive.py") and event == "line":
            count += 1
            if count == line + 1:
                raise _Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with exclusive.hold():
            pass
    except _Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False
