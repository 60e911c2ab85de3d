"""One epoch: a fixed set of processes that agree on a plan once and then refit again and again.

A session knows no more of the control plane than `Exchange`, and of the framework nothing at all.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from reshard.buffers import Buffer, BufferKey
from reshard.contribution import Contribution, Roster, decode_all, make_epoch_plan
from reshard.errors import PlanError, TransportError, VerificationError
from reshard.exchange import Exchange
from reshard.local_program import LocalProgram
from reshard.machine import check_one_machine, discovered_topology, num_copy_threads
from reshard.outcome import Outcome, make_report
from reshard.report import RefitReport
from reshard.schedule import SLOTS_PER_RING, chunk_bytes_for
from reshard.verification import Verifier

__all__ = ["Session"]

_GAVE_UP = b""
_NOT_YET, _CONNECTED = b"", b"c"
_CAUSE_S = 2.0
_HUB_CAUSE_S = 0.02
_SHORTEST_RUN_S = 1e-3


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
        self._copy_rate = max(each.copy_rate for each in everybody)
        machines = [each.machine for each in everybody]
        self._num_threads = num_copy_threads(machines, exchange.process, len(self._ranks))
        self.topology = discovered_topology(roster.ranks, machines, self._copy_rate)
        self.plan = make_epoch_plan(roster, everybody)
        self._local = LocalProgram(self.plan, self._ranks, rank_offset, src_buffers, dst_buffers)
        self._bytes_held = sum(self.plan.stored_bytes(rank) for rank in self._ranks)
        peers = self._peers()
        chunk = self._agree(exchange, len(peers[0]) + len(peers[1]), _left(deadline))
        self._chunk_bytes = chunk
        self._local.compile(chunk)
        self._connect(exchange, everybody, peers, deadline, while_waiting)

    def _peers(self) -> tuple[list[int], list[int]]:
        """Returns the other processes that this one sends to, and receives from."""
        process_of = {r: p for p, ranks in enumerate(self._roster.ranks) for r in ranks}
        own = set(self._ranks)
        send = {process_of[dst] for _, dst in self._local.tables.bytes_out if dst not in own}
        receive = {process_of[src] for src, _ in self._local.tables.bytes_in if src not in own}
        return sorted(send), sorted(receive)

    def _agree(self, exchange: Exchange, num_rings: int, timeout_s: float) -> int:
        """Compares digests and returns the chunk size that fits every process's budget."""
        chunk = chunk_bytes_for(num_rings, self.plan.staging_bytes)
        answers = decode_all(
            exchange.exchange(
                "plan",
                msgspec.msgpack.encode((self.plan.digest, chunk)),
                timeout_s=timeout_s,
            ),
            tuple[str, int],
        )
        digests = [digest for digest, _ in answers]
        if len(set(digests)) != 1:
            listed = ", ".join(
                f"{name}: {digest[:12]}"
                for name, digest in zip(self._roster.names, digests, strict=True)
            )
            raise PlanError(
                f"processes made different plans ({listed}). Run one version of reshard "
                "everywhere; if it is one version, please report the specs."
            )
        agreed: int = min(chunk for _, chunk in answers)
        return agreed

    def _connect(
        self,
        exchange: Exchange,
        everybody: Sequence[Contribution],
        peers: tuple[list[int], list[int]],
        deadline: float,
        while_waiting: Callable[[], None] | None,
    ) -> None:
        """Opens the transport if any two processes have something to send each other."""
        from reshard._native import Communicator

        if peers[0] or peers[1]:
            check_one_machine(self._roster.names, [each.machine for each in everybody])
            nonces = b"".join(each.nonce for each in everybody)
            ranks = self._roster.ranks
            table = [0] * (1 + max(max(own, default=0) for own in ranks))
            for process, own in enumerate(ranks):
                for rank in own:
                    table[rank] = process
            self._communicator = Communicator.shm(
                session_key=hashlib.sha256(nonces).hexdigest()[:32],
                process=exchange.process,
                rank_to_process=table,
                send_peers=peers[0],
                receive_peers=peers[1],
                slot_bytes=self._chunk_bytes,
                slots_per_ring=SLOTS_PER_RING,
            )
        try:
            exchange.exchange("listening", b"", timeout_s=_left(deadline))
            self._connect_peers(exchange, deadline, while_waiting)
        except BaseException:
            self.close()
            raise

    def _connect_peers(
        self, exchange: Exchange, deadline: float, while_waiting: Callable[[], None] | None
    ) -> None:
        """Connects this process, and waits until all are connected.

        Whoever has to wait tells the others so again and again: in the same exchange it hears that
        one of them failed and will never come.
        """

        def has_everybody(word: bytes) -> bool:
            return all(exchange.exchange("connected", word, timeout_s=_left(deadline)))

        def wait() -> None:
            if while_waiting is not None:
                while_waiting()
            has_everybody(_NOT_YET)

        if self._communicator is not None:
            # The deadline may be over already, but connecting takes no limit of 0.
            limit = max(_left(deadline), _SHORTEST_RUN_S)
            self._communicator.connect(limit, while_waiting=wait)
        while not has_everybody(_CONNECTED):
            pass

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

        Raises:
            VerificationError: values differ. TransportError: a member failed or was silent.

        Collective: every member.
        """
        deadline = time.monotonic() + timeout_s
        self._local.bind(src_buffers, dst_buffers, verify=verify)
        outcome = self._move(exchange, run_id=run_id, verify=verify, timeout_s=timeout_s)
        moved = time.perf_counter()
        answers = exchange.exchange(
            "done",
            msgspec.msgpack.encode(outcome),
            timeout_s=_left(deadline),
            while_waiting=self._liveness(exchange),
        )
        if _GAVE_UP in answers:
            name = self._roster.names[answers.index(_GAVE_UP)]
            raise TransportError(f"{name} gave up during the move; the destination is torn.")
        outcomes = decode_all(answers, Outcome)
        fingerprints = self._verdict(outcomes) if verify else {}
        phases = {**phases, "commit": time.perf_counter() - moved}
        return make_report(
            outcomes,
            version=version,
            epoch=epoch,
            num_parameters=len({pair.name for pair in self.plan.pairs}),
            copy_rate=self._copy_rate,
            phases=phases,
            fingerprints=fingerprints,
        )

    def _move(self, exchange: Exchange, *, run_id: int, verify: bool, timeout_s: float) -> Outcome:
        """Does this process's part of the move, and sums up what it has then."""
        start = time.perf_counter()
        try:
            # Whoever waits for bytes knows from whom, so the move ends before the exchange does.
            # The deadline may be over already, but a run takes no limit of 0.
            limit = max(timeout_s - min(_CAUSE_S / 2, timeout_s / 10), _SHORTEST_RUN_S)
            stats = self._local.run(
                self._communicator,
                run_id=run_id,
                timeout_s=limit,
                num_threads=self._num_threads,
            )
        except TransportError as error:
            self._raise_cause(exchange, self._explained(error))
        moved = time.perf_counter()
        sums = self._local.fingerprints() if verify else b""
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
            sums=sums,
        )

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
        from reshard._native import is_abort

        if is_abort(error):
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


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
