"""One call at a time, and a close that ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.threads import WAIT_S, inside_elsewhere

from reshard import LayoutError, OneCall, TransferTimeout


def test_a_call_of_another_thread_is_refused_while_one_is_under_way() -> None:
    calls = OneCall("this engine")

    def call() -> None:
        with calls.calling():
            pass

    with ThreadPoolExecutor(1, thread_name_prefix="second") as pool:
        expected = pytest.raises(LayoutError, match=r"this engine: thread 'MainThread'.*'second_0'")
        with calls.calling(), expected:
            pool.submit(call).result(WAIT_S)
        pool.submit(call).result(WAIT_S)


def test_calls_inside_calls_of_one_thread_are_fine() -> None:
    calls = OneCall("this engine")
    with calls.calling(), calls.calling():
        pass


def test_a_close_interrupts_the_call_of_another_thread_and_waits_for_it() -> None:
    calls, is_told, order = OneCall("this"), threading.Event(), []

    @contextlib.contextmanager
    def call() -> Iterator[None]:
        with calls.calling():
            yield
            order.append("call ended")

    with inside_elsewhere(call(), until=is_told):
        calls.close(is_told.set, lambda: order.append("freed"))
    assert order == ["call ended", "freed"]


def test_a_close_inside_of_a_call_frees_when_the_call_ends() -> None:
    """As from a signal handler, which must return before the call that it interrupted can."""
    calls, order = OneCall("this"), []
    with calls.calling():
        with calls.calling():
            calls.close(lambda: order.append("interrupted"), lambda: order.append("freed"))
        order.append("inner call ended")
    assert order == ["interrupted", "inner call ended", "freed"]
    with calls.calling():
        pass
    assert order.count("freed") == 1


def test_a_call_while_it_is_closed_says_so() -> None:
    calls, is_in, may_end = OneCall("this engine"), threading.Event(), threading.Event()

    def free() -> None:
        is_in.set()
        assert may_end.wait(WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(calls.close, lambda: None, free)
        assert is_in.wait(WAIT_S)
        with pytest.raises(LayoutError, match="which closes it"), calls.calling():
            pytest.fail("called")
        may_end.set()
        closing.result(WAIT_S)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where it is loaded
def test_a_forked_child_does_not_wait_for_a_call_of_its_parent() -> None:
    calls = OneCall("this")
    with inside_elsewhere(calls.calling()):
        child = os.fork()
        if child == 0:
            signal.alarm(round(WAIT_S))  # for a close that waits
            freed: list[bool] = []
            calls.close(lambda: None, lambda: freed.append(True))
            os._exit(0 if freed else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_call_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.one_call._CLOSE_S", 0.01)
    calls = OneCall("this engine")
    with (
        inside_elsewhere(calls.calling()),
        pytest.raises(TransferTimeout, match="still in a call"),
    ):
        calls.close(lambda: None, lambda: pytest.fail("freed"))
