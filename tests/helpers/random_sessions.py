"""Random sides through whole sessions: several members, verification, two versions.

The members are threads of this process with a transport between them, as in `redistribute`: each
drives some ranks of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from random import Random

from msgspec import structs

from helpers.sides import Arrays, check_side, fill_side, hashed, in_memory
from helpers.strategies import Problem
from reshard import Buffer, Roster, Session, make_contribution, make_plan
from reshard.buffers import BufferKey, devices_of
from reshard.exchange import Exchange, ThreadExchange
from reshard.loopback import buffer_of_array
from reshard.report import RefitReport

__all__ = ["MAX_MEMBERS", "Places", "check_versions"]

MAX_MEMBERS = 4
_LIMIT_S = 60.0

Buffers = Mapping[BufferKey, Buffer]


@dataclass(frozen=True)
class Places:
    """Where the members and their arrays are: on this machine, in host memory.

    Attributes:
        on_gpus: each rank has the GPU of its number.
        num_hosts: machines that members say they run on, in turn; 0 for the real one.
    """

    on_gpus: bool = False
    num_hosts: int = 0

    def hold(self, *sides: Arrays) -> AbstractContextManager[None]:
        """What the arrays have to be held in while they are used."""
        return nullcontext()


class _Member:
    """One process of a session, with arrays of its own ranks."""

    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        problem: Problem,
        staging_bytes: int,
        sides: tuple[Arrays, Arrays],
        places: Places,
    ) -> None:
        self._exchange = exchange
        ranks = roster.ranks[exchange.process]
        self._sides = tuple(_buffers_of(side, ranks, places) for side in sides)
        contribution = make_contribution(
            problem.src,
            problem.dst,
            casts=(),
            allow_unmatched=(),
            staging_bytes=staging_bytes,
            devices=devices_of(*self._sides),
        )
        if places.num_hosts:
            host = f"host {exchange.process % places.num_hosts}"
            machine = structs.replace(contribution.machine, boot_id=host)
            contribution = structs.replace(contribution, machine=machine)
        self.session = Session(
            exchange, roster, contribution, *self._sides, rank_offset=0, timeout_s=_LIMIT_S
        )

    def refit(self, run_id: int) -> RefitReport:
        return self.session.refit(
            self._exchange,
            *self._sides,
            run_id=run_id,
            version=run_id,
            epoch=1,
            verify=True,
            timeout_s=_LIMIT_S,
            phases={},
        )


def _buffers_of(arrays: Arrays, ranks: tuple[int, ...], places: Places) -> Buffers:
    return {
        (rank, name): replace(buffer_of_array(array), device=rank if places.on_gpus else None)
        for rank in ranks
        for name, array in arrays.get(rank, {}).items()
    }


def check_versions(
    threads: ThreadPoolExecutor,
    problem: Problem,
    random: Random,
    num_members: int,
    staging_bytes: int,
    places: Places | None = None,
) -> None:
    """Moves two versions of a problem, and fails for every byte that is not as it should be.

    Args:
        threads: at least as many as members.
        problem: what moves.
        random: who drives which ranks, and where arrays lie.
        num_members: at most `MAX_MEMBERS`.
        staging_bytes: of each member.
        places: None means host memory of this machine.
    """
    places = places or Places()
    known = make_plan(problem.src, problem.dst).ranks
    # Programs have no gaps in their ranks, and over NCCL a topology is made of all of them.
    population = range(max(known) + 1) if places.on_gpus else known
    ranks = random.sample(population, len(population))
    everybody = tuple(range(num_members))
    roster = Roster(
        tuple(tuple(ranks[i::num_members]) for i in everybody),
        everybody,
        ((everybody, 0),),
        tuple(f"member {i}" for i in everybody),
    )
    sources, _ = in_memory(problem.src, fill_side(problem.src, None, "src"), random)
    before = fill_side(problem.dst, None, "dst")
    destinations, around = in_memory(problem.dst, before, random)
    sides = sources, destinations
    with places.hold(*sides):
        opened = [
            threads.submit(_Member, exchange, roster, problem, staging_bytes, sides, places)
            for exchange in ThreadExchange.create(num_members)
        ]
        members = [future.result(2 * _LIMIT_S) for future in opened]
        try:
            for version in (1, 2):
                values = hashed(problem.shapes, problem.dtype.itemsize, version)
                for rank, arrays in fill_side(problem.src, values, "src").items():
                    for name, bits in arrays.items():
                        sources[rank][name].view(bits.dtype)[...] = bits
                running = [threads.submit(member.refit, version) for member in members]
                reports = [future.result(2 * _LIMIT_S) for future in running]
                wrong = check_side(problem.dst, destinations, values, before)
                assert wrong is None, wrong
                for report in reports:
                    assert report.nbytes == report.nbytes_held == reports[0].nbytes
                    assert report.fingerprints == reports[0].fingerprints
                    assert report.peak_staging_bytes <= staging_bytes
        finally:
            for member in members:
                member.session.close()
    assert around.problem() is None, around.problem()
