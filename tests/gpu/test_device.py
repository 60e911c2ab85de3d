"""One process and its GPU: kernels against the host's packing, streams, memory, launches."""

from __future__ import annotations

import pytest
from helpers import gpu_checks
from helpers.ranks import run_on_processes

from benchmarks.gpu_libraries import Libraries, doubles

pytestmark = pytest.mark.processes

LIMIT_S = 100.0
_SLACK = 1 << 20
# The real driver gives memory in pieces of 2 MiB: staging, tables, addresses, one more of NCCL.
_GRANULARITY = 4 * (2 << 20)


def run_alone(check, *arguments):
    (value,) = run_on_processes(check, 1, LIMIT_S, arguments=arguments)
    return value


@pytest.mark.parametrize("seed", range(4))
def test_kernels_move_and_cast_like_the_host(machine: Libraries, seed: int):
    most = 1 << 20 if machine.is_real else 1 << 13
    assert run_alone(gpu_checks.moves_like_the_host, machine, seed, 60, most) > most


def test_what_the_caller_queued_before_is_done_first(machine: Libraries):
    nbytes = 256 << 20 if machine.is_real else 1 << 20
    run_alone(gpu_checks.order_is_kept, machine, nbytes)


def test_a_run_takes_its_staging_memory_and_little_more(machine: Libraries):
    taken, staging = run_alone(gpu_checks.memory_taken, machine, 4096 if machine.is_real else 256)
    assert staging > 0
    assert taken <= staging + _SLACK + (_GRANULARITY if machine.is_real else 0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_launches_do_not_grow_with_the_number_of_tensors(ranks: int):
    """One that packs and one that unpacks in a round; a table of one launch has a limit."""
    costs = [
        run_alone(gpu_checks.cost_of_rounds, doubles(), count, 4, ranks)
        for count in (10, 100, 1000)
    ]
    assert [cost.launches for cost in costs] == [8, 8, 8]
    # All in one round: a table holds at least 600 of these boxes.
    assert run_alone(gpu_checks.cost_of_rounds, doubles(), 1000, 1, ranks).launches <= 4


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("count", [1000, 37_000])
def test_device_memory_beside_staging_stays_below_one_mebibyte(count: int, ranks: int):
    """Fingerprints included; a rank with both ends has twice as many arrays."""
    cost = run_alone(gpu_checks.cost_of_rounds, doubles(), count, 16, ranks)
    assert cost.staging_bytes > 0
    for peak in cost.peak_bytes:
        assert cost.staging_bytes < peak <= cost.staging_bytes + _SLACK
    # Of 37,000 tensors in 16 rounds, each round has 2,300.
    assert cost.launches <= 16 * 2 * (1 + count // 16 // 500)
