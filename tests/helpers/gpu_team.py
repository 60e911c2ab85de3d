"""Teams whose processes hold their tensors on GPUs, played by doubles that move bytes."""

from __future__ import annotations

from collections.abc import Sequence

from helpers import refit_programs as programs
from helpers.full_doubles import full_doubles
from helpers.team import Team
from reshard.device_kernels import kernel_image

__all__ = ["GPU_ENVIRONMENT", "assert_clean", "put_on_gpus"]

_RANKS_PER_PROCESS = 4

GPU_ENVIRONMENT = {"CUDA_DOUBLE_DEVICES": "32", "CUDA_DOUBLE_MAX_DELAY_US": "100"}
"""What the processes of such a team are started with."""


def put_on_gpus(team: Team) -> None:
    """Makes all that the processes of a team allocate from now on memory of GPUs.

    Process p has GPUs 4 p to 4 p + 3 of one machine, one for each of its ranks.
    """
    # Compiled once, by whoever comes first, and not by all processes at once.
    assert kernel_image("sm_90") is not None
    pair = full_doubles()
    for process in range(team.num_processes):
        first = process * _RANKS_PER_PROCESS
        team.call([process], programs.use_gpus, str(pair.cuda), str(pair.nccl), first)


def assert_clean(team: Team, processes: Sequence[int]) -> None:
    """Fails if a process broke a rule of CUDA or NCCL, or holds anything of theirs."""
    assert set(team.values(processes, programs.violations)) == {""}
    for counts in team.values(processes, programs.gpu_numbers):
        assert set(counts.values()) == {0}, counts
