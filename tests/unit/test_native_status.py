"""Every status code becomes its exception, with the ranks where there are any."""

from __future__ import annotations

import pytest

from reshard import _native
from reshard._native_bindings import lib
from reshard.errors import (
    PlanError,
    ReshardError,
    TransferTimeout,
    TransportError,
    UnsupportedError,
)

EXPECTED = {
    "INVALID_ARGUMENT": PlanError,
    "UNSUPPORTED": UnsupportedError,
    "OUT_OF_MEMORY": MemoryError,
    "SYSTEM": TransportError,
    "TIMEOUT": TransferTimeout,
    "PEER_LOST": TransportError,
    "ABORTED": TransportError,
    "PROTOCOL": TransportError,
    "INVALID_STATE": TransportError,
    "INTERNAL": ReshardError,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_code_becomes_its_exception(name):
    status = getattr(lib, f"RESHARD_STATUS_{name}")
    with pytest.raises((ReshardError, MemoryError)) as caught:
        _native.check(status)
    assert type(caught.value) is EXPECTED[name]
    if isinstance(caught.value, TransportError):
        assert caught.value.status == status


def test_no_code_is_forgotten():
    codes = {n.removeprefix("RESHARD_STATUS_") for n in dir(lib) if "RESHARD_STATUS_" in n}
    assert codes == {*EXPECTED, "OK", "IN_PROGRESS"}


def test_ok_raises_nothing():
    _native.check(lib.RESHARD_STATUS_OK)


def test_an_unknown_code_is_still_an_error():
    with pytest.raises(ReshardError):
        _native.check(99)


def test_versions_name_the_library():
    assert set(_native.show_versions()) >= {"native version", "cpu features"}
