"""Random sides through whole sessions: several members, shared memory, verification, two versions.

The members are threads of this process with a transport between them, as in `redistribute`: each
drives some ranks of both sides.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.sides import check_side, fill_side, hashed, in_memory
from helpers.strategies import problems, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import Roster, Session, make_contribution, make_plan
from reshard.exchange import ThreadExchange
from reshard.loopback import buffer_of_array

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def buffers_of(arrays, ranks):
    return {
        (rank, name): buffer_of_array(array)
        for rank in ranks
        for name, array in arrays.get(rank, {}).items()
    }


class Member:
    """One process of the session, with arrays of its own ranks."""

    def __init__(self, exchange, roster, problem, staging_bytes, sources, destinations):
        self.exchange = exchange
        self.ranks = roster.ranks[exchange.process]
        self.sources = buffers_of(sources, self.ranks)
        self.destinations = buffers_of(destinations, self.ranks)
        contribution = make_contribution(
            problem.src, problem.dst, casts=(), allow_unmatched=(), staging_bytes=staging_bytes
        )
        self.session = Session(
            exchange,
            roster,
            contribution,
            self.sources,
            self.destinations,
            rank_offset=0,
            timeout_s=LIMIT_S,
        )

    def refit(self, run_id):
        return self.session.refit(
            self.exchange,
            self.sources,
            self.destinations,
            run_id=run_id,
            version=run_id,
            epoch=1,
            verify=True,
            timeout_s=LIMIT_S,
            phases={},
        )


@settings(max_examples=settings.default.max_examples // 2)
@given(problems(), seeded(), st.integers(1, 4), st.sampled_from((200_000, 64 << 20)))
def test_every_version_arrives_and_is_verified(
    threads, problem, random, num_members, staging_bytes
):
    plan = make_plan(problem.src, problem.dst)
    ranks = random.sample(plan.ranks, len(plan.ranks))
    everybody = tuple(range(num_members))
    roster = Roster(
        tuple(tuple(ranks[i::num_members]) for i in everybody),
        everybody,
        ((everybody, 0),),
        tuple(f"member {i}" for i in everybody),
    )
    size = problem.dtype.itemsize
    sources, _ = in_memory(problem.src, fill_side(problem.src, None, "src"), random)
    before = fill_side(problem.dst, None, "dst")
    destinations, around = in_memory(problem.dst, before, random)
    opened = [
        threads.submit(Member, exchange, roster, problem, staging_bytes, sources, destinations)
        for exchange in ThreadExchange.create(num_members)
    ]
    members = [future.result(LIMIT_S) for future in opened]
    try:
        for version in (1, 2):
            values = hashed(problem.shapes, size, version)
            for rank, arrays in fill_side(problem.src, values, "src").items():
                for name, bits in arrays.items():
                    sources[rank][name].view(bits.dtype)[...] = bits
            running = [threads.submit(member.refit, version) for member in members]
            reports = [future.result(LIMIT_S) for future in running]
            assert check_side(problem.dst, destinations, values, before) is None
            for report in reports:
                assert report.nbytes == report.nbytes_held == reports[0].nbytes
                assert report.fingerprints == reports[0].fingerprints
                assert report.peak_staging_bytes <= staging_bytes
    finally:
        for member in members:
            member.session.close()
    assert around.problem() is None
