"""Random sides through whole sessions over NCCL, in one process: what `test_gpu_sessions` runs.

The members are threads, each drives some ranks of both sides, and every rank has a GPU of its own,
played by the doubles. It is a process apart because the doubles stay open in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from helpers.full_doubles import Controls, FullDoubles, full_doubles
from helpers.sides import Arrays, check_side, fill_side, hashed, in_memory
from helpers.strategies import Problem, problems, seeded
from helpers.team import Desk
from reshard import Buffer, Roster, Session, make_contribution, make_plan
from reshard.buffers import BufferKey, devices_of
from reshard.exchange import Exchange, ThreadExchange
from reshard.loopback import buffer_of_array
from reshard.report import RefitReport

__all__ = ["run_random_sessions"]

_LIMIT_S = 60.0
_MAX_MEMBERS = 4

Buffers = Mapping[BufferKey, Buffer]


class _Member:
    """One process of a session, with arrays of its own ranks."""

    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        problem: Problem,
        staging_bytes: int,
        sides: tuple[Arrays, Arrays],
        host: str,
    ) -> None:
        self._exchange = exchange
        ranks = roster.ranks[exchange.process]
        self._sides = tuple(_buffers_of(side, ranks) for side in sides)
        contribution = make_contribution(
            problem.src,
            problem.dst,
            casts=(),
            allow_unmatched=(),
            staging_bytes=staging_bytes,
            devices=devices_of(*self._sides),
            transport="nccl",
        )
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


def _buffers_of(arrays: Arrays, ranks: tuple[int, ...]) -> Buffers:
    return {
        (rank, name): replace(buffer_of_array(array), device=rank)
        for rank in ranks
        for name, array in arrays.get(rank, {}).items()
    }


@contextmanager
def _as_device_memory(doubles: Controls, *sides: Arrays) -> Iterator[None]:
    """Makes the memory of arrays, with all that lies around them, that of their ranks' GPUs."""
    registered = []
    for arrays in sides:
        for rank, by_name in arrays.items():
            for array in by_name.values():
                base: Any = array
                while isinstance(base.base, np.ndarray):
                    base = base.base
                if base.nbytes:
                    doubles.register(base.ctypes.data, base.nbytes, rank)
                    registered.append(base.ctypes.data)
    try:
        yield
    finally:
        for address in registered:
            doubles.unregister(address)


def run_random_sessions(desk: Desk, max_examples: int) -> None:
    """Runs as many random problems; raises what is wrong with one, made as small as can be."""
    pair: FullDoubles = full_doubles()
    os.environ["RESHARD_CUDA_LIBRARY"] = str(pair.cuda)
    os.environ["RESHARD_NCCL_LIBRARY"] = str(pair.nccl)
    doubles = Controls(pair)

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        problems(),
        seeded(),
        st.integers(1, _MAX_MEMBERS),
        st.integers(1, 3),
        st.sampled_from((200_000, 64 << 20)),
    )
    def check(
        problem: Problem, random: Random, num_members: int, num_hosts: int, staging_bytes: int
    ) -> None:
        _check(doubles, threads, problem, random, num_members, num_hosts, staging_bytes)

    with ThreadPoolExecutor(_MAX_MEMBERS) as threads:
        check()


def _check(
    doubles: Controls,
    threads: ThreadPoolExecutor,
    problem: Problem,
    random: Random,
    num_members: int,
    num_hosts: int,
    staging_bytes: int,
) -> None:
    plan = make_plan(problem.src, problem.dst)
    ranks = random.sample(range(max(plan.ranks) + 1), max(plan.ranks) + 1)
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
    with _as_device_memory(doubles, sources, destinations):
        opened = [
            threads.submit(
                _Member,
                exchange,
                roster,
                problem,
                staging_bytes,
                (sources, destinations),
                f"host {exchange.process % num_hosts}",
            )
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
                problem_text = check_side(problem.dst, destinations, values, before)
                assert problem_text is None, problem_text
                for report in reports:
                    assert report.nbytes == report.nbytes_held == reports[0].nbytes
                    assert report.fingerprints == reports[0].fingerprints
                    assert report.peak_staging_bytes <= staging_bytes
        finally:
            for member in members:
                member.session.close()
    assert around.problem() is None, around.problem()
    assert doubles.violations() == "", doubles.violations()
    for name in ("allocations", "streams", "events", "modules", "contexts"):
        assert doubles.cuda(name) == 0, name
