"""What a process brings to an epoch: it survives the way, and all choose alike by it."""

from __future__ import annotations

import msgspec
import pytest

from reshard import Layout, Mesh, PlanError, Shard, TensorSpec, UnsupportedError, make_contribution
from reshard.contribution import (
    Contribution,
    Roster,
    choose_epoch_nccl,
    choose_epoch_transport,
    decode_all,
)
from reshard.nccl_choice import NcclOffer

SPEC = TensorSpec("w", (8, 4), "float32", Layout(Mesh.of(x=1), (Shard(0),)))
TORCH = NcclOffer("/torch/libnccl.so.2", 22705, "loaded", True)
JAX = NcclOffer("/jax/libnccl.so.2", 22807, "loaded", True)
WHEEL = NcclOffer("/wheel/libnccl.so.2", 22705, "wheel", False)


def bring(monkeypatch, devices, *, transport="auto", offers=(), problem=""):
    asked = []

    def here():
        asked.append(True)
        return offers, problem

    monkeypatch.setattr("reshard.contribution.nccl_here", here)
    made = make_contribution(
        [SPEC],
        [],
        casts=[("float32", "bfloat16")],
        allow_unmatched=["*.bias"],
        staging_bytes=1 << 20,
        devices=devices,
        transport=transport,
    )
    (travelled,) = decode_all([msgspec.msgpack.encode(made)], Contribution)
    assert travelled == made
    return travelled, bool(asked)


def roster(size):
    ranks = tuple((rank,) for rank in range(size))
    return Roster(ranks, (0,), ((tuple(range(1, size)), 1),), tuple(f"p{i}" for i in range(size)))


def test_who_holds_host_memory_says_nothing_of_nccl(monkeypatch):
    made, was_asked = bring(monkeypatch, {0: None}, offers=(TORCH,))
    assert not was_asked
    assert (made.devices, made.nccl, made.nccl_problem) == (((0, None),), (), "")
    assert (made.holds_cuda, made.wish) == (False, ("auto", True, False, ""))


@pytest.mark.parametrize(
    ("devices", "transport"), [({3: 1, 2: 0}, "auto"), ({}, "nccl"), ({0: None}, "nccl")]
)
def test_who_holds_gpu_memory_or_asks_for_nccl_tells_its_copies(monkeypatch, devices, transport):
    made, was_asked = bring(monkeypatch, devices, transport=transport, offers=(TORCH, WHEEL))
    assert was_asked
    assert made.nccl == (TORCH, WHEEL)
    assert made.devices == tuple(sorted(devices.items()))


def test_without_devices_nothing_is_said(monkeypatch):
    plain = make_contribution([], [], casts=(), allow_unmatched=(), staging_bytes=1)
    assert plain.wish == ("auto", False, False, "")


def test_all_choose_one_transport_and_one_version(monkeypatch):
    engine, _ = bring(monkeypatch, {0: 0}, offers=(TORCH,))
    idle, _ = bring(monkeypatch, {})
    trainer, _ = bring(monkeypatch, {0: 0, 1: 1}, offers=(JAX, WHEEL))
    everybody = [trainer, idle, engine]
    assert choose_epoch_transport(roster(3), everybody) == "nccl"
    assert choose_epoch_nccl(roster(3), everybody) == (WHEEL, None, TORCH)


def test_what_one_lacks_is_told_in_its_name(monkeypatch):
    good, _ = bring(monkeypatch, {0: 0}, offers=(TORCH,))
    bad, _ = bring(monkeypatch, {0: 0}, problem="cannot use NCCL: libnccl.so.2 not found.")
    with pytest.raises(UnsupportedError, match="p1: cannot use NCCL: libnccl"):
        choose_epoch_transport(roster(2), [good, bad])
    other, _ = bring(monkeypatch, {0: 0}, offers=(JAX,))
    with pytest.raises(UnsupportedError, match=r"p0: 2\.27\.5 .*\n  p1: 2\.28\.7 "):
        choose_epoch_nccl(roster(2), [good, other])


@pytest.mark.parametrize(
    "changes",
    [
        {"transport": "ucx"},
        {"devices": [[0, "cuda"]]},
        {"nccl": [["/p", 1]]},
        {"nccl_problem": None},
    ],
)
def test_what_does_not_decode_is_an_error(changes):
    plain = make_contribution([], [], casts=(), allow_unmatched=(), staging_bytes=1)
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__} | changes
    with pytest.raises(PlanError, match="does not decode"):
        decode_all([msgspec.msgpack.encode(list(fields.values()))], Contribution)
