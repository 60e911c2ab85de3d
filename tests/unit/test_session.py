"""One epoch, driven by threads; between real processes see processes/test_refit*."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from reshard import (
    DType,
    Layout,
    LayoutError,
    Mesh,
    PlanError,
    Replicate,
    Roster,
    Session,
    Shard,
    TensorSpec,
    TransferTimeout,
    TransportError,
    UnsupportedError,
    VerificationError,
    make_contribution,
)
from reshard._native import Program
from reshard.contribution import Contribution, decode_all, make_epoch_plan
from reshard.exchange import SingleProcessExchange, ThreadExchange
from reshard.local_program import LocalProgram
from reshard.loopback import buffer_of_array
from reshard.machine import Machine

ROWS = Layout(Mesh.of(x=2), (Shard(0),))
COLUMNS = Layout(Mesh.of(y=2), (Shard(1),))
W = np.arange(48, dtype=np.float32).reshape(8, 6)

# Processes 0 and 1 hold rows, 2 and 3 want columns; each side counts its ranks from 0.
ROSTER = Roster(((0,), (1,), (2,), (3,)), (0, 1), (((2, 3), 2),), ("s0", "s1", "d0", "d1"))


def spec(layout, dtype=DType.FLOAT32, name="w"):
    return TensorSpec(name, (8, 6), dtype, layout)


class Member:
    """One process: what it brings and its arrays."""

    def __init__(self, process, exchange, *, src=None, dst=None, **options):
        self.process, self.exchange = process, exchange
        self.is_source = process < 2
        self.rank = process % 2
        own = (
            W[4 * self.rank : 4 * self.rank + 4].copy()
            if self.is_source
            else np.zeros((8, 3), np.float32)
        )
        self.array = own
        self.contribution = make_contribution(
            (src or [spec(ROWS)]) if self.is_source else (),
            () if self.is_source else (dst or [spec(COLUMNS)]),
            casts=options.get("casts", ()),
            allow_unmatched=(),
            staging_bytes=options.get("staging_bytes", 1 << 20),
        )
        self.session = None

    @property
    def sides(self):
        buffers = {(self.rank, "w"): buffer_of_array(self.array)}
        return (buffers, {}) if self.is_source else ({}, buffers)

    def open(self, timeout_s=10.0):
        self.session = Session(
            self.exchange,
            ROSTER,
            self.contribution,
            *self.sides,
            rank_offset=0 if self.is_source else 2,
            timeout_s=timeout_s,
        )

    def refit(self, run_id, verify=True, timeout_s=10.0):
        return self.session.refit(
            self.exchange,
            *self.sides,
            run_id=run_id,
            version=run_id,
            epoch=1,
            verify=verify,
            timeout_s=timeout_s,
            phases={"wait": 0.0},
        )


@pytest.fixture
def together():
    """Calls a function for all members at once; returns values or exceptions, in order."""
    with ThreadPoolExecutor(4) as pool:

        def run(function, members):
            futures = [pool.submit(function, member) for member in members]
            return [f.exception(30.0) or f.result() for f in futures]

        yield run


@pytest.fixture
def members():
    made = []

    def make(*per_process, exchange=ThreadExchange, **everybody):
        options = per_process or ({},) * 4
        exchanges = exchange.create(4)
        made.extend(
            Member(i, exchange, **{**everybody, **own})
            for i, (exchange, own) in enumerate(zip(exchanges, options, strict=True))
        )
        return made

    yield make
    for member in made:
        if member.session is not None:
            member.session.close()


def test_a_session_refits_again_and_again(members, together):
    team = members()
    assert together(Member.open, team) == [None] * 4
    for run_id in (1, 2):
        for member in team[:2]:
            member.array += run_id
        reports = together(partial(Member.refit, run_id=run_id), team)
        assert {report.version for report in reports} == {run_id}
        assert {report.nbytes for report in reports} == {W.nbytes}
        expected = W + sum(range(1, run_id + 1))
        np.testing.assert_array_equal(team[2].array, expected[:, :3])
        np.testing.assert_array_equal(team[3].array, expected[:, 3:])
    assert len({repr(report.fingerprints) for report in reports}) == 1


def test_all_members_have_the_same_plan(members, together):
    team = members()
    together(Member.open, team)
    assert len({member.session.plan.digest for member in team}) == 1
    assert team[0].session.plan.ranks == (0, 1, 2, 3)


def test_arrays_with_other_strides_are_followed(members, together):
    team = members()
    together(Member.open, team)
    together(lambda member: member.refit(1), team)
    for member in team:
        member.array = np.asfortranarray(member.array)
    team[0].array += 1
    together(lambda member: member.refit(2), team)
    np.testing.assert_array_equal(team[3].array[:4], W[:4, 3:] + 1)


def test_sides_that_do_not_fit_raise_on_every_member(members, together):
    team = members(dst=[spec(COLUMNS, DType.BFLOAT16)])
    errors = together(Member.open, team)
    assert [type(error) for error in errors] == [PlanError] * 4
    assert len({str(error) for error in errors}) == 1


def test_a_cast_that_any_member_allows_is_allowed(members, together):
    team = members(
        {}, {"casts": [("float32", "bfloat16")]}, {}, {}, dst=[spec(COLUMNS, DType.BFLOAT16)]
    )
    plan = make_epoch_plan(ROSTER, [member.contribution for member in team])
    assert plan.pairs[0].wire_dtype is DType.BFLOAT16


def test_the_smallest_budget_counts_for_all(members):
    team = members({}, {}, {"staging_bytes": 100_000}, {})
    assert make_epoch_plan(ROSTER, [m.contribution for m in team]).staging_bytes == 100_000


def test_values_that_differ_raise_on_every_member(members, together):
    replicated = [spec(Layout(Mesh.of(x=2), (Replicate(),)))]
    team = members(src=replicated)
    for member in team[:2]:
        member.array = W.copy()
    team[1].array[0, 0] += 1
    together(Member.open, team)
    errors = together(lambda member: member.refit(1), team)
    assert [type(error) for error in errors] == [VerificationError] * 4
    assert "w: source ranks 0 and 1 both store" in str(errors[3])


def test_without_verification_nobody_looks(members, together):
    team = members(src=[spec(Layout(Mesh.of(x=2), (Replicate(),)))])
    for member in team[:2]:
        member.array = W.copy()
    team[1].array[0, 0] += 1
    together(Member.open, team)
    reports = together(lambda member: member.refit(1, verify=False), team)
    assert not any(report.is_verified for report in reports)


def test_a_member_that_does_not_come_is_named(members, together):
    team = members()
    errors = together(lambda member: member.open(0.5), team[:3])
    assert [type(error) for error in errors] == [TransferTimeout] * 3
    assert "Silent: process 3" in str(errors[0])


def test_a_member_that_does_not_come_to_the_refit_is_named(members, together):
    team = members()
    together(Member.open, team)
    errors = together(lambda member: member.refit(1, timeout_s=1.0), team[:3])
    assert all(isinstance(error, TransportError) for error in errors)
    assert "rank 3" in str(errors[0])


@pytest.mark.parametrize("timeout_s", [2.0, 10.0, 3600.0])
def test_a_move_has_a_little_less_time_than_its_refit(members, together, monkeypatch, timeout_s):
    """So that who misses bytes, and knows from whom, says so before the exchange ends."""
    limits = []
    run = LocalProgram.run

    def record(program, communicator, *, timeout_s, **options):
        limits.append(timeout_s)
        return run(program, communicator, timeout_s=timeout_s, **options)

    monkeypatch.setattr(LocalProgram, "run", record)
    team = members()
    together(Member.open, team)
    reports = together(lambda member: member.refit(1, timeout_s=timeout_s), team)
    assert [report.version for report in reports] == [1] * 4
    margin_s = min(1.0, timeout_s / 10)
    assert limits == pytest.approx([timeout_s - margin_s] * 4)


def test_a_member_that_gives_up_ends_the_refit_of_all(members, together):
    team = members()
    together(Member.open, team)
    gave_up = threading.Event()

    def take_part(member):
        if member is not team[3]:
            return member.refit(1)
        error = PlanError("no more memory for this engine")
        member.exchange.fail(error)
        member.session.abort(str(error))
        gave_up.set()
        return None

    errors = together(take_part, team)
    assert gave_up.is_set()
    for error in errors[:3]:
        assert "no more memory for this engine" in str(error)


def test_processes_on_two_machines_are_refused_by_all(members, together):
    team = members()
    there = Machine("node2", "another boot", 1)
    team[3].contribution = msgspec.structs.replace(team[3].contribution, machine=there)
    errors = together(Member.open, team)
    assert [type(error) for error in errors] == [UnsupportedError] * 4
    assert all("d1 on node2" in str(error) for error in errors)


class GivesUp(ThreadExchange):
    """Member 3 says after its part of the move that it gave up, as after the abort of a peer."""

    def exchange(self, name, payload, **options):
        gave_up = name == "done" and self.process == 3
        return super().exchange(name, b"" if gave_up else payload, **options)


def test_a_member_that_gave_up_is_named_by_all(members, together):
    team = members(exchange=GivesUp)
    together(Member.open, team)
    errors = together(lambda member: member.refit(1), team)
    assert [type(error) for error in errors] == [TransportError] * 4
    assert all("d1 gave up during the move" in str(error) for error in errors)


class Watched(ThreadExchange):
    """Member 0 carries the exchange; what is called while waiting is kept."""

    hub = 0
    watch = None

    def exchange(self, name, payload, *, while_waiting=None, **options):
        if name == "done":
            self.watch = while_waiting
        return super().exchange(name, payload, while_waiting=while_waiting, **options)


class LostPeers:
    """A communicator whose peers are gone, and the clock of who waits for their word."""

    def __init__(self, error):
        self.error = error
        self.now = 100.0

    def check_peers(self):
        raise self.error

    def close(self):
        pass


@pytest.fixture
def watch(members, together, monkeypatch):
    """Gives what member 3 calls while it waits for the others, with other peers and a clock."""
    team = members(exchange=Watched)
    together(Member.open, team)
    together(lambda member: member.refit(1), team)
    session = team[3].session
    session.abort("enough")
    with pytest.raises(TransportError) as aborted:
        session.check_peers()

    def lose(peer, *, is_abort):
        status = aborted.value.status if is_abort else None
        lost = LostPeers(TransportError("lost", rank=3, peer=peer, status=status))
        clock = SimpleNamespace(monotonic=lambda: lost.now, perf_counter=time.perf_counter)
        monkeypatch.setattr("reshard.session.time", clock)
        communicator = session._communicator
        monkeypatch.setattr(session, "_communicator", lost)
        communicator.close()
        return lost, team[3].exchange.watch

    return lose


def test_a_peer_that_died_ends_the_wait_at_once(watch):
    lost, check = watch(0, is_abort=False)
    with pytest.raises(TransportError) as caught:
        check()
    assert caught.value is lost.error


@pytest.mark.parametrize(
    ("peer", "patience_s"),
    [(0, 0.02), (1, 2.0), (None, 2.0)],
    ids=["the_hub", "another_member", "unknown"],
)
def test_who_gave_up_has_time_to_say_why_unless_it_carries_the_exchange(watch, peer, patience_s):
    lost, check = watch(peer, is_abort=True)
    check()
    lost.now += 0.9 * patience_s
    check()
    lost.now += 0.2 * patience_s
    with pytest.raises(TransportError) as caught:
        check()
    assert caught.value is lost.error


def test_check_peers_is_quiet_while_all_live(members, together):
    team = members()
    together(Member.open, team)
    for member in team:
        member.session.check_peers()
    team[0].session.abort("enough")
    with pytest.raises(TransportError, match="enough"):
        team[0].session.check_peers()


def test_closing_twice_is_fine(members, together):
    team = members()
    together(Member.open, team)
    for member in (*team, *team):
        member.session.close()


def test_one_process_that_drives_all_ranks_needs_no_transport():
    roster = Roster(((0, 1, 2, 3),), (0,), (((0,), 0),), ("all",))
    src, dst = [spec(ROWS)], [spec(COLUMNS.shifted(2))]
    contribution = make_contribution(src, dst, casts=(), allow_unmatched=(), staging_bytes=1 << 20)
    src_buffers = {(r, "w"): buffer_of_array(W[4 * r : 4 * r + 4]) for r in (0, 1)}
    arrays = {r: np.zeros((8, 3), np.float32) for r in (2, 3)}
    dst_buffers = {(r, "w"): buffer_of_array(array) for r, array in arrays.items()}
    exchange = SingleProcessExchange()
    session = Session(
        exchange, roster, contribution, src_buffers, dst_buffers, rank_offset=0, timeout_s=10.0
    )
    report = session.refit(
        exchange,
        src_buffers,
        dst_buffers,
        run_id=1,
        version=1,
        epoch=1,
        verify=True,
        timeout_s=10.0,
        phases={},
    )
    assert report.nbytes_local == report.nbytes == W.nbytes
    assert report.is_verified
    np.testing.assert_array_equal(arrays[3], W[:, 3:])
    session.close()


def test_a_contribution_survives_the_wire(members):
    contribution = members()[0].contribution
    (again,) = decode_all([msgspec.msgpack.encode(contribution)], Contribution)
    assert again == contribution


def test_nonces_of_two_contributions_differ(members):
    nonces = {member.contribution.nonce for member in members()}
    assert len(nonces) == 4
    assert all(len(nonce) == 16 for nonce in nonces)


@pytest.mark.parametrize("data", [b"", b"\xc0", msgspec.msgpack.encode([1, 2])])
def test_a_message_that_does_not_decode_is_told(data):
    with pytest.raises(PlanError, match=r"does not decode.*Run one version of reshard everywhere"):
        decode_all([data], Contribution)


def test_an_unmatched_tensor_is_the_destinations_to_allow(members):
    extra = [spec(COLUMNS), spec(COLUMNS, name="cache")]
    team = members(dst=extra)
    contributions = [member.contribution for member in team]
    with pytest.raises(PlanError, match="cache: no source holds"):
        make_epoch_plan(ROSTER, contributions)
    by_source = [
        msgspec.structs.replace(contributions[0], allow_unmatched=("cache",)),
        *contributions[1:],
    ]
    with pytest.raises(PlanError, match="cache: no source holds"):
        make_epoch_plan(ROSTER, by_source)
    by_engine = [
        *contributions[:3],
        msgspec.structs.replace(contributions[3], allow_unmatched=("cache",)),
    ]
    assert len(make_epoch_plan(ROSTER, by_engine).pairs) == 1


def test_a_source_may_let_its_surplus_tensors_stay_unused(members, together):
    surplus = [spec(ROWS), spec(ROWS, name="optimizer.m"), spec(ROWS, name="optimizer.v")]
    team = members(src=surplus)
    contributions = [member.contribution for member in team]
    with pytest.raises(PlanError, match=r"optimizer\.m: no destination takes"):
        make_epoch_plan(ROSTER, contributions)
    allowing = msgspec.structs.replace(contributions[1], allow_unmatched=("optimizer.*",))
    plan = make_epoch_plan(ROSTER, [contributions[0], allowing, *contributions[2:]])
    assert [pair.name for pair in plan.pairs] == ["w"]


def test_two_destination_programs_are_planned_together():
    roster = dataclasses.replace(
        ROSTER,
        ranks=((0,), (1,), (2, 3), (4, 5)),
        destinations=(((2,), 2), ((3,), 4)),
    )
    source, engine = [spec(ROWS)], [spec(COLUMNS)]
    contributions = [
        make_contribution(src, dst, casts=(), allow_unmatched=(), staging_bytes=1 << 20)
        for src, dst in ((source, ()), (source, ()), ((), engine), ((), engine))
    ]
    plan = make_epoch_plan(roster, contributions)
    plan.check()
    assert [pair.dst.layout.ranks for pair in plan.pairs] == [(2, 3), (4, 5)]
    assert plan.ranks == (0, 1, 2, 3, 4, 5)


# One process with ranks of both sides


def alone(src, dst, **options):
    """Returns what refits between ranks of this process: call it with (buffers, buffers, run)."""
    roster = Roster((tuple({*src.layout.ranks, *dst.layout.ranks}),), (0,), (((0,), 0),), ("me",))
    contribution = make_contribution(
        [src], [dst], casts=(), allow_unmatched=(), staging_bytes=1 << 20, **options
    )
    exchange, sessions = SingleProcessExchange(), []

    def refit(src_buffers, dst_buffers, run):
        sides = src_buffers, dst_buffers
        if not sessions:
            opened = Session(exchange, roster, contribution, *sides, rank_offset=0, timeout_s=10.0)
            sessions.append(opened)
        options = {"version": run, "epoch": 1, "verify": True, "timeout_s": 10.0, "phases": {}}
        return sessions[0].refit(exchange, *sides, run_id=run, **options)

    return refit


def test_the_strides_of_a_replica_that_sends_nothing_are_followed():
    """Its fingerprint is compared all the same; the strides of before would lie outside of it."""
    copies = spec(Layout(Mesh.of(x=2), (Replicate(),)))
    refit = alone(copies, spec(Layout(Mesh(("y",), (1,), (2,)), (Replicate(),))))
    result = np.zeros_like(W)
    wide = np.zeros((8, 4096), np.float32)[:, :6]
    wide[...] = W
    for run, idle in enumerate((wide, W.copy(), np.asfortranarray(W), wide), 1):
        for first, second in ((idle, W), (W, idle)):
            src = {(0, "w"): buffer_of_array(first), (1, "w"): buffer_of_array(second)}
            result[...] = 0
            refit(src, {(2, "w"): buffer_of_array(result)}, run)
            np.testing.assert_array_equal(result, W)


def test_a_tensor_that_one_rank_of_its_layout_does_not_give_is_refused():
    refit = alone(spec(ROWS), spec(Layout(Mesh(("y",), (1,), (2,)), (Replicate(),))))
    src = {(0, "w"): buffer_of_array(W[:4])}
    with pytest.raises(LayoutError, match=r"w: rank 1 gave no such tensor.*\(4, 6\) of \(8, 6\)"):
        refit(src, {(2, "w"): buffer_of_array(np.zeros_like(W))}, 1)


def test_a_cast_that_one_destination_allows_is_not_done_to_another():
    roster = Roster(((0,), (1,), (2,)), (0,), (((1,), 1), ((2,), 2)), ("s", "a", "b"))
    whole = Layout(Mesh.of(x=1), (Replicate(),))

    def contribution(src, dst, casts=()):
        return make_contribution(src, dst, casts=casts, allow_unmatched=(), staging_bytes=1 << 20)

    source = contribution([spec(whole)], [])
    narrow = [spec(whole, DType.BFLOAT16)]
    allowed = contribution([], narrow, [("float32", "bfloat16")])
    assert len(make_epoch_plan(roster, [source, allowed, allowed]).pairs) == 2
    with pytest.raises(PlanError, match="no cast rule"):
        make_epoch_plan(roster, [source, allowed, contribution([], narrow)])


def test_a_process_of_several_ranks_copies_with_the_threads_it_may(
    members, together, monkeypatch
) -> None:
    used: list[int] = []
    run = Program.run

    def spy(self: Program, *arguments: object, num_threads: int = 1, **options: object) -> object:
        used.append(num_threads)
        return run(self, *arguments, num_threads=num_threads, **options)

    monkeypatch.setattr(Program, "run", spy)
    monkeypatch.setattr("reshard.session.num_copy_threads", lambda *_: 3)
    team = members()
    together(Member.open, team)
    together(partial(Member.refit, run_id=1), team)
    assert used == [3] * len(team)
