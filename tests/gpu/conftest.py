"""Each test here runs on the GPUs of this machine, and what can on the tests' doubles as well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# What the benchmarks know of GPUs serves here too; it is not installed with the wheel.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from helpers.gpu_places import gpus_or_skip

from benchmarks.gpu_device import DRIVER
from benchmarks.gpu_libraries import Libraries, doubles


@pytest.fixture(params=["doubles", pytest.param("gpu", marks=pytest.mark.gpu)], scope="module")
def machine(request: pytest.FixtureRequest) -> Libraries:
    """Where a test finds its GPU: doubles of NVIDIA's libraries, or the real ones."""
    if request.param == "doubles":
        return doubles()
    gpus_or_skip()
    return Libraries(DRIVER, None, None, is_real=True)
