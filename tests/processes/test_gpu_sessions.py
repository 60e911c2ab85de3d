"""Random layouts, forms and ranks over NCCL, on doubles of GPUs that move bytes."""

from __future__ import annotations

import pytest
from helpers.gpu_sessions import run_random_sessions
from helpers.team import Team

from reshard.device_kernels import kernel_image

pytestmark = pytest.mark.processes

_ENVIRONMENT = {"CUDA_DOUBLE_DEVICES": "64", "CUDA_DOUBLE_MAX_DELAY_US": "50"}


def test_every_version_arrives_and_is_verified():
    assert kernel_image("sm_90") is not None
    with Team(1, environment=_ENVIRONMENT) as team:
        team.start(0, run_random_sessions, 60)
        team.result(0, 110.0).get()
