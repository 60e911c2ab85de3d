"""An epoch whose bytes travel through shared memory, or that has one process only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reshard.contribution import Contribution, Roster
from reshard.epoch_transport import closed_on_error, compare_plans, connect_all, time_left
from reshard.exchange import Exchange
from reshard.local_program import LocalProgram
from reshard.machine import check_one_machine
from reshard.schedule import SLOTS_PER_RING, chunk_bytes_for

if TYPE_CHECKING:
    from reshard._native import Communicator

__all__ = ["ShmEpoch"]


class ShmEpoch:
    """One process's part; see `EpochTransport`.

    Args:
        roster: who is who.
        everybody: what each process brings.
        process: this one.
        staging_bytes: budget of each process.
    """

    def __init__(
        self,
        roster: Roster,
        everybody: Sequence[Contribution],
        process: int,
        staging_bytes: int,
    ) -> None:
        self._roster, self._everybody, self._process = roster, everybody, process
        self._staging_bytes = staging_bytes
        self._chunk_bytes = 0
        self._peers: tuple[list[int], list[int]] = ([], [])

    def agree(self, exchange: Exchange, local: LocalProgram, digest: str, timeout_s: float) -> None:
        """Takes the chunk size that fits every process's budget; see `EpochTransport.agree`."""
        self._peers = self._peers_of(local)
        own = chunk_bytes_for(len(self._peers[0]) + len(self._peers[1]), self._staging_bytes)
        offers = compare_plans(exchange, self._roster.names, digest, own, timeout_s)
        self._chunk_bytes = min(offers)
        local.compile(self._chunk_bytes)

    def _peers_of(self, local: LocalProgram) -> tuple[list[int], list[int]]:
        """Returns the other processes that this one sends to, and receives from."""
        process_of = {r: p for p, ranks in enumerate(self._roster.ranks) for r in ranks}
        own = set(self._roster.ranks[self._process])
        send = {process_of[dst] for _, dst in local.tables.bytes_out if dst not in own}
        receive = {process_of[src] for src, _ in local.tables.bytes_in if src not in own}
        return sorted(send), sorted(receive)

    def connect(
        self, exchange: Exchange, deadline: float, while_waiting: Callable[[], None] | None
    ) -> Communicator | None:
        """Opens the rings; see `EpochTransport.connect`."""
        with closed_on_error(self._open() if any(self._peers) else None) as communicator:
            exchange.exchange("listening", b"", timeout_s=time_left(deadline))
            connect_all(exchange, communicator, deadline, while_waiting)
        return communicator

    def _open(self) -> Communicator:
        from reshard._native import Communicator

        check_one_machine(self._roster.names, [each.machine for each in self._everybody])
        nonces = b"".join(each.nonce for each in self._everybody)
        ranks = self._roster.ranks
        table = [0] * (1 + max(max(own, default=0) for own in ranks))
        for process, own in enumerate(ranks):
            for rank in own:
                table[rank] = process
        return Communicator.shm(
            session_key=hashlib.sha256(nonces).hexdigest()[:32],
            process=self._process,
            rank_to_process=table,
            send_peers=self._peers[0],
            receive_peers=self._peers[1],
            slot_bytes=self._chunk_bytes,
            slots_per_ring=SLOTS_PER_RING,
        )
