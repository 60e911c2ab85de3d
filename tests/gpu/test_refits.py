"""Refits over NCCL between processes with a GPU each, or with one that they share.

Two processes share a GPU with `NCCL_MULTI_RANK_GPU_ENABLE=1`, which NCCL has since 2.30, and few
blocks of threads for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import gpu_programs as gpus
from helpers import refit_programs as programs
from helpers.gpu_places import SHARED, placed
from helpers.refit_models import Program, fsdp_side, open_all, tp_side
from helpers.team import Team

from benchmarks.gpu_libraries import Libraries
from reshard.device_kernels import kernel_image

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

MOST_PROCESSES = 8


@pytest.fixture(scope="module")
def team(machine: Libraries) -> Iterator[tuple[Team, Libraries, int]]:
    """As many processes as there are GPUs; two where there is one."""
    own, count = placed(machine)
    environment = dict(SHARED) if count == 1 else {}
    if not own.is_real:
        environment |= {"CUDA_DOUBLE_DEVICES": str(count), "CUDA_DOUBLE_MAX_DELAY_US": "100"}
        assert kernel_image("sm_90") is not None  # compiled once, not by all at a time
    with Team(min(MOST_PROCESSES, max(2, count)), environment=environment) as running:
        yield running, own, count


@pytest.fixture
def ends(team) -> Iterator[tuple[Team, list[int], list[int]]]:
    """A source on half of the processes and a destination on the others."""
    running, own, count = team
    everybody = list(range(running.num_processes))
    for process in everybody:
        running.values([process], gpus.take_libraries, own, process % count)
    sources, engines = everybody[: len(everybody) // 2], everybody[len(everybody) // 2 :]
    open_all(
        running,
        Program(sources, fsdp_side(len(sources))),
        [Program(engines, tp_side(len(engines)))],
    )
    running.values(everybody, gpus.put_on_gpu)
    yield running, sources, engines
    assert set(running.values(everybody, gpus.close)) == {""}


def refit_once(team: Team, sources: list[int], engines: list[int], version: int) -> list:
    for process in engines:
        team.start(process, gpus.refit)
    for process in sources:
        team.start(process, gpus.publish, version)
    return [team.result(process).get() for process in (*sources, *engines)]


def test_versions_arrive_byte_by_byte(ends):
    team, sources, engines = ends
    for version in (1, 2, 7):
        for report in refit_once(team, sources, engines, version):
            assert (report.version, report.num_parameters) == (version, 11)
            assert 0 < report.peak_staging_bytes <= 64 << 20
        assert team.values(engines, gpus.check, version) == [None] * len(engines)


def test_a_hundred_refits_leave_nothing_behind(ends):
    team, sources, engines = ends
    everybody = [*sources, *engines]

    def refit_many(first: int, count: int) -> None:
        for process in engines:
            team.start(process, gpus.refit_many, first, count)
        for process in sources:
            team.start(process, gpus.publish_many, first, count)
        for process in everybody:
            assert team.result(process, 120.0).get() is None

    refit_many(1, 3)
    before = team.values(everybody, programs.resources)
    refit_many(4, 100)
    for process, counts in zip(everybody, before, strict=True):
        team.values([process], programs.check_no_leak, counts)


@pytest.mark.parametrize("who", ["source", "engine"])
def test_after_an_abort_a_fresh_communicator_works(ends, who: str):
    team, sources, engines = ends
    refit_once(team, sources, engines, 1)
    for version in (2, 3):
        failing = sources[0] if who == "source" else engines[-1]
        for process in engines:
            team.start(process, gpus.refit_and_fail, None, process == failing)
        for process in sources:
            team.start(process, gpus.refit_and_fail, version, process == failing)
        messages = [team.result(process).get() for process in (*sources, *engines)]
        assert all("the test fails this process" in message for message in messages)
    refit_once(team, sources, engines, 4)
    assert team.values(engines, gpus.check, 4) == [None] * len(engines)
