"""One call at a time, and a close that ends it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reshard import LayoutError, OneCall, TransferTimeout

WAIT_S = 10.0


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
    with calls.calling(), calls.calling(), calls.closing(lambda: pytest.fail("nobody to stop")):
        pass


def test_a_close_interrupts_the_call_of_another_thread_and_waits_for_it() -> None:
    calls, is_in, is_told, order = OneCall("this"), threading.Event(), threading.Event(), []

    def call() -> None:
        with calls.calling():
            is_in.set()
            assert is_told.wait(WAIT_S)
            order.append("call ended")

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(call)
        assert is_in.wait(WAIT_S)
        with calls.closing(is_told.set):
            order.append("closing")
        under_way.result(WAIT_S)
    assert order == ["call ended", "closing"]


def test_a_call_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.one_call._CLOSE_S", 0.01)
    calls, is_in, may_end = OneCall("this engine"), threading.Event(), threading.Event()

    def call() -> None:
        with calls.calling():
            is_in.set()
            assert may_end.wait(WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(call)
        assert is_in.wait(WAIT_S)
        with pytest.raises(TransferTimeout, match="still in a call"), calls.closing(lambda: None):
            pytest.fail("closed")
        may_end.set()
        under_way.result(WAIT_S)
