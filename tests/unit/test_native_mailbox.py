"""Mailboxes as Python sees them; native/tests has their devices, tests/cross_framework has XLA."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from reshard import (
    LayoutError,
    Mailbox,
    PlanError,
    RendezvousError,
    TransferTimeout,
    TransportError,
    UnsupportedError,
    VerificationError,
    xla_handler,
)
from reshard._native_border import lib
from reshard._native_mailbox import _status_of


def add_site(mailbox, devices=(0, 1), sizes=(1, 4), **options):
    options = {"num_results": 1, "has_version": True} | options
    return mailbox.add_site(devices, sizes, **options)


def test_keys_and_sites_are_numbered():
    first, second = Mailbox(), Mailbox()
    assert 0 < first.key < second.key
    assert [add_site(first), add_site(first), add_site(second)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ()}, "no device"),
        ({"devices": (3, 3)}, "twice"),
        ({"num_results": 3}, "3 results"),
        ({"sizes": (), "num_results": 0}, "0 operands"),
    ],
)
def test_sites_that_cannot_be_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        add_site(Mailbox(), **options)


def test_a_wait_ends_with_its_slice_and_with_the_mailbox():
    mailbox = Mailbox()
    assert mailbox.wait(0.0) is None
    start = time.monotonic()
    assert mailbox.wait(0.05) is None
    assert time.monotonic() - start >= 0.05
    found = []
    waiting = threading.Thread(target=lambda: found.append(mailbox.wait(60.0)))
    waiting.start()
    mailbox.close("over")
    waiting.join(10.0)
    assert found == [None]
    mailbox.close("again")
    assert mailbox.is_closed
    assert mailbox.wait(60.0) is None


def test_what_was_not_taken_cannot_be_answered():
    with pytest.raises(TransportError, match="no call waits"), Mailbox().answering():
        pass


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (LayoutError("x"), "INVALID_ARGUMENT"),
        (PlanError("x"), "INVALID_ARGUMENT"),
        (UnsupportedError("x"), "UNSUPPORTED"),
        (VerificationError("x"), "PROTOCOL"),
        (TransferTimeout("x"), "TIMEOUT"),
        (RendezvousError("x"), "ABORTED"),
        (TransportError("x"), "ABORTED"),
        (TransportError("x", status=lib.RESHARD_STATUS_PEER_LOST), "PEER_LOST"),
        (TransferTimeout("x", status=lib.RESHARD_STATUS_TIMEOUT), "TIMEOUT"),
        (MemoryError(), "OUT_OF_MEMORY"),
        (ZeroDivisionError(), "INTERNAL"),
        (KeyboardInterrupt(), "INTERNAL"),
    ],
)
def test_every_error_has_a_status(error, name):
    assert _status_of(error) == getattr(lib, f"RESHARD_STATUS_{name}")


def test_the_handler_for_gpus_needs_the_driver(monkeypatch):
    assert xla_handler("cpu") == xla_handler("cpu") != 0
    monkeypatch.setenv("RESHARD_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    with pytest.raises(UnsupportedError, match="RESHARD_CUDA_LIBRARY"):
        xla_handler("CUDA")


def test_a_forked_child_may_drop_a_mailbox():
    """In a process of its own: one with threads, as here, had better not fork."""
    code = """
import gc, os
from reshard import Mailbox
mailbox = Mailbox()
mailbox.add_site([0], [4], num_results=1, has_version=False)
child = os.fork()
if child == 0:
    del mailbox
    gc.collect()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert mailbox.wait(0.0) is None
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
