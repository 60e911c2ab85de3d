"""What is said of a machine on which NCCL cannot be used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from reshard import UnsupportedError
from reshard.nccl_check import check_nccl, nccl_here
from reshard.nccl_choice import NcclOffer
from reshard.nccl_copies import NcclCopy


def driver_of(num_devices):
    return SimpleNamespace(path="/d/libcuda.so.1", version=12080, num_devices=num_devices)


OFFER = NcclOffer("/w/libnccl.so.2", 22705, "wheel", False)


def machine(
    monkeypatch, *, offers=(), found=(), driver="libcuda.so.1 cannot be loaded: no such file."
):
    def of(answer):
        def call(*given):
            if isinstance(answer, str):
                raise UnsupportedError(answer)
            return answer

        return call

    monkeypatch.delenv("RESHARD_NCCL_LIBRARY", raising=False)
    monkeypatch.setattr("reshard.nccl_check.nccl_offers", of(offers))
    monkeypatch.setattr("reshard.nccl_check.find_nccl", lambda: list(found))
    monkeypatch.setattr("reshard._native_libraries.CudaLibrary", of(driver))


def test_a_machine_with_both_has_no_problem(monkeypatch):
    machine(monkeypatch, offers=(OFFER,), driver=driver_of(2))
    assert nccl_here() == ((OFFER,), "")
    check_nccl()


def test_everything_that_is_missing_is_said_at_once(monkeypatch):
    machine(monkeypatch)
    with pytest.raises(UnsupportedError) as caught:
        check_nccl()
    assert str(caught.value) == (
        "cannot use NCCL: libnccl.so.2 not found (tried: $RESHARD_NCCL_LIBRARY unset; loaded "
        "libraries; packages nvidia-nccl-cu12, nvidia-nccl-cu13; loader); libcuda.so.1 cannot be "
        "loaded: no such file. Install nvidia-nccl-cu12 (nvidia-nccl-cu13 with CUDA 13) and run "
        "where a GPU and its driver are visible, or choose transport='shm', with the weights in "
        "host memory."
    )


def test_without_a_driver_the_copies_are_known_all_the_same(monkeypatch):
    machine(monkeypatch, offers=(OFFER,))
    offers, problem = nccl_here()
    assert offers == (OFFER,)
    assert problem == (
        "cannot use NCCL: libcuda.so.1 cannot be loaded: no such file. Run where a GPU and its "
        "driver are visible, or choose transport='shm', with the weights in host memory."
    )


def test_copies_that_cannot_be_used_are_named(monkeypatch):
    old = NcclCopy("/w/libnccl.so.2", "wheel", 21705)
    machine(monkeypatch, found=[old], driver=driver_of(2))
    with pytest.raises(
        UnsupportedError,
        match=r"NCCL: /w/libnccl\.so\.2 cannot be loaded or is older than NCCL 2\.18\.0\. Install",
    ):
        check_nccl()


def test_copies_for_a_later_cuda_than_the_drivers_are_named(monkeypatch):
    new = NcclCopy("/w/13/libnccl.so.2", "wheel", 22705, 13)
    machine(monkeypatch, found=[new], driver=driver_of(2))
    with pytest.raises(
        UnsupportedError,
        match=r"NCCL: /w/13/libnccl\.so\.2 needs a later driver than this one of CUDA 12\.8\. Ins",
    ):
        check_nccl()


def test_a_driver_without_a_gpu(monkeypatch):
    machine(monkeypatch, offers=(OFFER,), driver=driver_of(0))
    with pytest.raises(UnsupportedError, match=r"sees no GPU \(CUDA_VISIBLE_DEVICES may"):
        check_nccl()


def test_a_named_copy_that_cannot_be_used(monkeypatch):
    driver = driver_of(1)
    machine(monkeypatch, offers="/x/libnccl.so.2 cannot be loaded.", driver=driver)
    with pytest.raises(
        UnsupportedError, match=r"NCCL: RESHARD_NCCL_LIBRARY: /x/libnccl\.so\.2 cannot be loaded\. "
    ):
        check_nccl()


def test_nccl_that_must_block_is_warned_of_once(monkeypatch, caplog):
    machine(monkeypatch, offers=(OFFER,), driver=driver_of(1))
    monkeypatch.setattr("reshard.nccl_copies._told", set())
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "0")
    check_nccl()
    assert caplog.messages == []
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "1")
    check_nccl()
    check_nccl()
    (line,) = caplog.messages
    assert line.startswith("NCCL_COMM_BLOCKING=1 makes calls of NCCL block")
