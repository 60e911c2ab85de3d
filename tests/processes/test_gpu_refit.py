"""Refits over NCCL between programs of real processes, on doubles of GPUs that move bytes."""

from __future__ import annotations

import pytest
from helpers import refit_programs as programs
from helpers.full_doubles import full_doubles
from helpers.refit_models import Program, fsdp_side, open_all, tp_side
from helpers.team import Team

from reshard.device_kernels import kernel_image

pytestmark = pytest.mark.processes

_RANKS_PER_PROCESS = 4
_ENVIRONMENT = {
    "CUDA_DOUBLE_DEVICES": "32",
    "CUDA_DOUBLE_MAX_DELAY_US": "100",
}


@pytest.fixture(scope="module")
def team():
    # Compiled once, by whoever comes first, and not by eight processes at once.
    assert kernel_image("sm_90") is not None
    with Team(8, environment=_ENVIRONMENT) as running:
        for process in range(running.num_processes):
            place = str(full_doubles().cuda), str(full_doubles().nccl)
            first = process * _RANKS_PER_PROCESS
            running.call([process], programs.use_gpus, *place, first)
        yield running


@pytest.fixture
def everybody(team):
    """Closes the ends of all processes after a test, which then leave nothing behind."""
    yield team
    processes = range(team.num_processes)
    team.values(processes, programs.close)
    assert set(team.values(processes, programs.violations)) == {""}
    for counts in team.values(processes, programs.gpu_numbers):
        assert set(counts.values()) == {0}, counts


def refit_once(team, sources, destinations, version, options=None):
    """Publishes a version and returns the reports: of the sources, then of the destinations."""
    for process in destinations:
        team.start(process, programs.refit)
    for process in sources:
        team.start(process, programs.publish_filled, version, options)
    return [team.result(process).get() for process in (*sources, *destinations)]


def assert_holds(team, processes, version):
    assert team.values(processes, programs.check, version) == [None] * len(processes)
    states = team.values(processes, programs.state_of)
    assert states == [("ready", version)] * len(processes)


@pytest.mark.parametrize(("num_sources", "num_destinations"), [(1, 1), (2, 2), (3, 5)])
def test_versions_arrive_one_after_the_other(everybody, num_sources, num_destinations):
    team = everybody
    sources = range(num_sources)
    engines = range(num_sources, num_sources + num_destinations)
    open_all(
        team,
        Program(sources, fsdp_side(num_sources)),
        [Program(engines, tp_side(num_destinations))],
    )
    for version in (1, 2, 7):
        reports = refit_once(team, sources, engines, version)
        assert_holds(team, engines, version)
        for report in reports:
            assert (report.version, report.epoch, report.num_parameters) == (version, 1, 11)
            assert report.nbytes >= report.nbytes_held
            assert 0 < report.peak_staging_bytes <= 64 << 20


def test_one_process_may_drive_several_ranks(everybody):
    team = everybody
    open_all(
        team,
        Program([0, 1], fsdp_side(3), ranks=[[2, 0], [1]]),
        [Program([2, 3], tp_side(4), ranks=[[3], [0, 1, 2]])],
    )
    for version in (1, 2):
        refit_once(team, [0, 1], [2, 3], version)
        assert_holds(team, [2, 3], version)
