"""Every class is ours and of the built-in kind that a caller expects; arguments survive."""

from __future__ import annotations

import pickle

import pytest

from reshard import errors
from reshard.errors import (
    LayoutError,
    NativeLibraryError,
    PlanError,
    RendezvousError,
    ReshardError,
    TransferTimeout,
    TransportError,
    UnsupportedError,
    VerificationError,
)

KINDS = {
    ReshardError: (Exception,),
    LayoutError: (ReshardError, ValueError),
    PlanError: (ReshardError, ValueError),
    UnsupportedError: (ReshardError, NotImplementedError),
    TransportError: (ReshardError, RuntimeError),
    TransferTimeout: (TransportError, TimeoutError),
    RendezvousError: (TransportError,),
    NativeLibraryError: (ReshardError, ImportError),
    VerificationError: (ReshardError, RuntimeError),
}


def test_every_class_is_listed():
    assert sorted(kind.__name__ for kind in KINDS) == errors.__all__


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_of_both_families(kind):
    assert all(issubclass(kind, parent) for parent in KINDS[kind])
    assert kind.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_is_the_text(kind):
    assert str(kind("rank 3: what is wrong")) == "rank 3: what is wrong"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_pickle(kind):
    again = pickle.loads(pickle.dumps(kind("text")))
    assert type(again) is kind
    assert str(again) == "text"


@pytest.mark.parametrize("kind", [TransportError, TransferTimeout, RendezvousError])
def test_transport_errors_say_who(kind):
    error = kind("text", rank=3, peer=5, status=7)
    assert (error.rank, error.peer, error.status) == (3, 5, 7)
    assert (kind("text").rank, kind("text").peer, kind("text").status) == (None, None, None)
    again = pickle.loads(pickle.dumps(error))
    assert (again.rank, again.peer, again.status) == (3, 5, 7)
