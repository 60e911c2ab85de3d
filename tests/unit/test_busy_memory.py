"""What a failed refit over NCCL was given stays alive while a GPU may still write it."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest

from reshard import TransportError, UnsupportedError
from reshard.busy_memory import free_idle_memory, hold_while_busy
from reshard.session import Session


class Owner:
    """What keeps an array alive."""


@pytest.fixture
def leftovers(monkeypatch):
    """How many runs have something left to do on a GPU."""
    counts = [0]
    monkeypatch.setattr("reshard._native_libraries.count_gpu_leftovers", lambda: counts[0])
    yield counts
    counts[0] = 0
    free_idle_memory()


def test_memory_is_held_until_all_gpus_are_idle(leftovers):
    leftovers[0] = 1
    first, second = Owner(), Owner()
    alive = [weakref.ref(first), weakref.ref(second)]
    hold_while_busy([first])
    hold_while_busy([second])
    del first, second
    free_idle_memory()
    assert all(reference() is not None for reference in alive)
    leftovers[0] = 0
    free_idle_memory()
    assert all(reference() is None for reference in alive)


def test_nothing_is_held_where_nothing_is_left(leftovers):
    owner = Owner()
    alive = weakref.ref(owner)
    hold_while_busy([owner])
    del owner
    assert alive() is None


def test_the_native_library_counts():
    from reshard._native_libraries import count_gpu_leftovers

    assert count_gpu_leftovers() == 0


@pytest.mark.parametrize("is_on_gpus", [True, False])
def test_a_refit_that_fails_over_nccl_hands_its_buffers_over(is_on_gpus, monkeypatch):
    held = []
    monkeypatch.setattr("reshard.session.hold_while_busy", held.extend)
    session = object.__new__(Session)
    session._nccl = SimpleNamespace() if is_on_gpus else None
    session._local = SimpleNamespace(bind=lambda *buffers, verify: None)

    def move(*given, verify):
        raise TransportError("lost")

    monkeypatch.setattr(Session, "_move", move)
    own = {"run_id": 1, "version": 1, "epoch": 1, "timeout_s": 1.0, "phases": {}}
    with pytest.raises(TransportError, match="lost"):
        session.refit(None, {(0, "w"): "sent"}, {(1, "w"): "received"}, verify=False, **own)
    assert held == (["sent", "received"] if is_on_gpus else [])


def test_a_refit_that_cannot_be_verified_moves_nothing(monkeypatch):
    """Also where nobody asked before, as in redistribute."""
    session = object.__new__(Session)
    problem = UnsupportedError("no kernels there")
    session._nccl = SimpleNamespace(problem_of_verifying=lambda: problem)
    own = {"run_id": 1, "version": 1, "epoch": 1, "timeout_s": 1.0, "phases": {}}
    with pytest.raises(UnsupportedError, match="no kernels there"):
        session.refit(None, {}, {}, verify=True, **own)
