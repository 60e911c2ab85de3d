"""One epoch: a fixed set of processes that agree on a plan once and then refit again and again.

A session knows no more of the control plane than `Exchange`, and of the framework nothing at all.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from reshard.buffers import Buffer, BufferKey
from reshard.busy_memory import free_idle_memory, hold_while_busy
from reshard.contribution import (
    Contribution,
    Roster,
    choose_epoch_transport,
    decode_all,
    make_epoch_plan,
)
from reshard.end_arguments import NO_STREAMS
from reshard.epoch_transport import SHORTEST_S, EpochTransport, time_left
from reshard.errors import ReshardError, TransferTimeout, TransportError, VerificationError
from reshard.exchange import Exchange
from reshard.local_program import LocalProgram
from reshard.machine import NVLINK_BYTES_PER_SECOND, discovered_topology, num_copy_threads
from reshard.nccl_epoch import NcclEpoch
from reshard.outcome import Outcome, check_verify, make_report
from reshard.report import RefitReport
from reshard.run_stats import NOTHING_DONE, RunStats
from reshard.run_watch import RunWatch
from reshard.shm_epoch import ShmEpoch
from reshard.verification import Verifier

__all__ = ["Session"]

_GAVE_UP = b""
_MOVING = b"m"
_QUIET_S = 0.1  # for which a process moves without a word from the others
_CAUSE_S = 2.0
_HUB_CAUSE_S = 0.02
_STORE_S = 0.7  # for the store to name the silent, after the deadline


class Session:
    """An epoch, set up by the constructor.

    Attributes:
        plan: what moves.
        topology: where the ranks are, in the numbers of the plan.

    Args:
        exchange: the members of the epoch.
        roster: who is who.
        contribution: what this process brings.
        src_specs, dst_specs: the same specs as in `contribution`, not encoded.
        src_buffers, dst_buffers: local arrays of this process's ranks, in the numbers of its side.
        rank_offset: what to add to this process's rank numbers to get the plan's.
        timeout_s: limit for the whole setup.

    Raises:
        ReshardError: on every member alike, before any byte moved.

    Collective: every member.
    """

    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        contribution: Contribution,
        src_buffers: Mapping[BufferKey, Buffer],
        dst_buffers: Mapping[BufferKey, Buffer],
        *,
        rank_offset: int,
        timeout_s: float,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        self._roster = roster
        self._ranks = roster.ranks[exchange.process]
        self._communicator: Any = None
        self._verifier: Verifier | None = None
        deadline = time.monotonic() + timeout_s
        everybody = decode_all(
            exchange.exchange("specs", msgspec.msgpack.encode(contribution), timeout_s=timeout_s),
            Contribution,
        )
        is_on_gpus = choose_epoch_transport(roster, everybody) == "nccl"
        # The limit that reports compare with is that of memory which a processor copies.
        self._copy_rate = 0.0 if is_on_gpus else max(each.copy_rate for each in everybody)
        machines = [each.machine for each in everybody]
        self._num_threads = num_copy_threads(machines, exchange.process, len(self._ranks))
        link_rate = NVLINK_BYTES_PER_SECOND if is_on_gpus else self._copy_rate
        self.topology = discovered_topology(roster.ranks, machines, link_rate)
        self.plan = make_epoch_plan(roster, everybody, self.topology if is_on_gpus else None)
        self._nccl = (
            NcclEpoch(roster, everybody, exchange.process, self.plan) if is_on_gpus else None
        )
        carrier: EpochTransport = self._nccl or ShmEpoch(
            roster, everybody, exchange.process, self.plan.staging_bytes
        )
        spans = None if self._nccl is None else self._nccl.spans
        self._local = LocalProgram(
            self.plan, self._ranks, rank_offset, src_buffers, dst_buffers, spans=spans
        )
        self._rank_offset = rank_offset
        self._bytes_held = sum(self.plan.stored_bytes(rank) for rank in self._ranks)
        try:
            carrier.agree(exchange, self._local, self.plan.digest, time_left(deadline))
            self._communicator = carrier.connect(exchange, deadline, while_waiting)
        except BaseException:
            self.close()
            raise

    def refit(
        self,
        exchange: Exchange,
        src_buffers: Mapping[BufferKey, Buffer],
        dst_buffers: Mapping[BufferKey, Buffer],
        *,
        run_id: int,
        version: int,
        epoch: int,
        verify: bool,
        timeout_s: float,
        phases: Mapping[str, float],
        streams: Mapping[int, int] = NO_STREAMS,
    ) -> RefitReport:
        """Moves, verifies and commits once.

        Args:
            exchange: the members.
            src_buffers, dst_buffers: local arrays of this process's ranks, in its side's numbers.
            run_id: the same on all members, new for each call.
            version, epoch: written into the report.
            verify: compare fingerprints; the same on all members.
            timeout_s: limit for all of it.
            phases: seconds that the caller already spent, by phase.
            streams: of this process's ranks on GPUs, in its side's numbers, the CUDA stream of the
                caller's work; ranks that are left out use the default stream.

        Raises:
            UnsupportedError: see `problem_of`; nothing moved.
            VerificationError: values differ. TransportError: a member failed or was silent.

        Collective: every member.
        """
        deadline = time.monotonic() + timeout_s
        problem = self.problem_of(verify=verify)
        if problem is not None:
            raise problem
        if self._nccl is not None:
            free_idle_memory()
        self._local.bind(src_buffers, dst_buffers, verify=verify)
        try:
            outcome = self._move(exchange, streams, run_id, timeout_s, verify=verify)
        except BaseException:
            if self._nccl is not None:
                hold_while_busy([*src_buffers.values(), *dst_buffers.values()])
            raise
        moved = time.perf_counter()
        answers = self._done(exchange, msgspec.msgpack.encode(outcome), deadline)
        outcomes = decode_all(answers, Outcome)
        check_verify(outcomes, self._roster.names)
        fingerprints = self._verdict(outcomes) if verify else {}
        return make_report(
            outcomes,
            version=version,
            epoch=epoch,
            num_parameters=len({pair.name for pair in self.plan.pairs}),
            copy_rate=self._copy_rate,
            phases={**phases, "commit": time.perf_counter() - moved},
            fingerprints=fingerprints,
        )

    def problem_of(self, *, verify: bool) -> ReshardError | None:
        """Returns why a refit cannot be as it is wanted; the same on all members.

        Args:
            verify: whether fingerprints are compared.
        """
        return self._nccl.problem_of_verifying() if verify and self._nccl is not None else None

    def _done(self, exchange: Exchange, word: bytes, deadline: float) -> list[bytes]:
        """Returns what all members have done, when they have."""
        is_alive = self._liveness(exchange)

        def watch() -> None:
            if is_alive is not None:
                is_alive()
            self._check_store(exchange, deadline)

        while True:
            answers = exchange.exchange(
                "done",
                word,
                timeout_s=time_left(deadline),
                while_waiting=watch,
            )
            self._check_none_gave_up(answers)
            if _MOVING not in answers:
                return answers

    def _check_store(self, exchange: Exchange, deadline: float) -> None:
        """Raises TransferTimeout where the store has not ended an exchange at its deadline."""
        if exchange.hub is not None and time.monotonic() > deadline + _STORE_S:
            raise TransferTimeout(
                f"{self._roster.names[exchange.hub]}, which hosts the store, did not say by the "
                "deadline who has done the refit: it has stopped, or cannot be reached."
            )

    def _check_none_gave_up(self, answers: Sequence[bytes]) -> None:
        if _GAVE_UP in answers:
            name = self._roster.names[answers.index(_GAVE_UP)]
            raise TransportError(f"{name} gave up during the move; the destination is torn.")

    def _move(
        self,
        exchange: Exchange,
        streams: Mapping[int, int],
        run_id: int,
        timeout_s: float,
        *,
        verify: bool,
    ) -> Outcome:
        """Does this process's part of the move, and sums up what it has then."""
        start = time.perf_counter()
        # Whoever waits for bytes knows from whom, so the move ends before the exchange does.
        # The deadline may be over already, but a run takes no limit of 0.
        whole = max(timeout_s, SHORTEST_S)
        limit = max(timeout_s - min(_CAUSE_S / 2, timeout_s / 10), SHORTEST_S)
        try:
            if self._nccl is None:
                stats = self._local.run(
                    self._communicator,
                    run_id=run_id,
                    timeout_s=limit,
                    num_threads=self._num_threads,
                )
            else:
                stats = self._move_on_gpus(exchange, streams, run_id, whole, limit)
        except TransportError as error:
            self._raise_cause(exchange, self._explained(error))
        moved = time.perf_counter()
        sums = b""
        if verify:
            # Without elements on GPUs there is nothing to add up, but the slots are reported.
            on_gpus = self._communicator if self._nccl is not None else None
            left = max(limit - (moved - start), SHORTEST_S)
            sums = self._local.fingerprints(on_gpus, left)
        return Outcome(
            bytes_in=stats.bytes_received + stats.bytes_local,
            bytes_local=stats.bytes_local,
            bytes_held=self._bytes_held,
            move_s=moved - start,
            verify_s=time.perf_counter() - moved,
            pack_s=stats.ns_pack / 1e9,
            unpack_s=stats.ns_unpack / 1e9,
            idle_s=stats.ns_wait / 1e9,
            peak_staging_bytes=stats.peak_staging_bytes,
            is_verified=verify,
            sums=sums,
        )

    def _move_on_gpus(
        self,
        exchange: Exchange,
        streams: Mapping[int, int],
        run_id: int,
        timeout_s: float,
        silence_s: float,
    ) -> RunStats:
        """Moves over NCCL, which does not tell who died: long moves ask the others meanwhile.

        Whoever does not answer is named after `silence_s`, before runs end without a name.
        """
        if self._communicator is None or self._nccl is None:
            return NOTHING_DONE
        deadline = time.monotonic() + silence_s
        handles = [streams.get(rank - self._rank_offset, 0) for rank in self._nccl.ranks]
        with self._local.begin(
            self._communicator, run_id=run_id, timeout_s=timeout_s, streams=handles
        ) as run:
            watch = RunWatch(run, lambda error: self._patience(exchange, error))

            def go_on() -> None:
                watch.go_on()
                self._check_store(exchange, deadline + timeout_s - silence_s)

            run.progress(_QUIET_S)
            while run.stats is None:
                answers = exchange.exchange(
                    "done",
                    _MOVING,
                    # Whoever moves needs a while to look at the exchange, even at the deadline.
                    timeout_s=max(time_left(deadline), timeout_s - silence_s),
                    while_waiting=go_on,
                )
                self._check_none_gave_up(answers)
                watch.raise_error()
                run.progress(_QUIET_S)
            return run.stats

    def _liveness(self, exchange: Exchange) -> Callable[[], None] | None:
        """Returns what watches the peers while this process waits for the others in an exchange."""
        if self._communicator is None:
            return None
        from reshard._native import is_abort

        aborted_at: list[float] = []

        def check() -> None:
            try:
                self.check_peers()
            except TransportError as error:
                # Whoever gave up says why, and its word is on its way to the same exchange.
                aborted_at.append(time.monotonic())
                patience = self._patience(exchange, error)
                if not is_abort(error) or aborted_at[-1] - aborted_at[0] > patience:
                    raise

        return check

    def check_peers(self) -> None:
        """Raises TransportError if a process that this one exchanges bytes with died or gave up."""
        if self._communicator is not None:
            self._communicator.check_peers()

    def _raise_cause(self, exchange: Exchange, error: TransportError) -> NoReturn:
        """Raises what broke the run: another member's error if it is the cause, else `error`."""
        from reshard._native import has_cause_elsewhere

        if has_cause_elsewhere(error):
            # A peer gave up first and says why; its word reaches this exchange within moments.
            until = time.monotonic() + self._patience(exchange, error)

            def give_up() -> None:
                if time.monotonic() > until:
                    raise error

            exchange.exchange("done", _GAVE_UP, timeout_s=_CAUSE_S, while_waiting=give_up)
        exchange.fail(error, culprit=self._process_of(error.peer))
        raise error

    def _explained(self, error: TransportError) -> TransportError:
        """Returns an error of the native run with the other end as its program knows it."""
        lost = self._process_of(error.peer)
        if lost is None:
            return error
        text = (
            f"{error} Rank {error.peer} of the plan belongs to {self._roster.names[lost]}. What "
            "comes next brings everything again."
        )
        return type(error)(text, rank=error.rank, peer=error.peer, status=error.status)

    def _patience(self, exchange: Exchange, error: TransportError) -> float:
        """Returns how long to wait for the word of whoever broke the run.

        If the member that was lost carries the exchange, there will be none. The connection to it
        tells so as well, but only when the kernel has freed the memory of its process.
        """
        lost = self._process_of(error.peer)
        return _CAUSE_S if lost is None or lost != exchange.hub else _HUB_CAUSE_S

    def _process_of(self, rank: int | None) -> int | None:
        for process, ranks in enumerate(self._roster.ranks):
            if rank in ranks:
                return process
        return None

    def _verdict(self, outcomes: Sequence[Outcome]) -> Mapping[str, int]:
        if self._verifier is None:
            self._verifier = Verifier(self.plan, self._roster.ranks)
        verdict = self._verifier.verdict([array("Q", outcome.sums) for outcome in outcomes])
        if verdict.problems:
            listed = "\n  ".join(verdict.problems[:20])
            raise VerificationError(
                f"{len(verdict.problems)} of {len(self.plan.pairs)} tensors differ after the refit:"
                f"\n  {listed}\nThe destination is torn; the next refit that succeeds heals it. "
                "Replicas of the source that differ have to be made equal first; if they are parts "
                "of one tensor, declare its layout: (tensor, layout, global shape)."
            )
        return verdict.fingerprints

    def abort(self, reason: str) -> None:
        """Makes the run of all other members end, with this process as the one that gave up."""
        if self._communicator is not None:
            self._communicator.abort(reason)

    def close(self) -> None:
        """Frees the transport and the program; closing twice is fine."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()
        self._local.close()
        if self._nccl is not None:
            free_idle_memory()
