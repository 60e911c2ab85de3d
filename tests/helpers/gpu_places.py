"""Which GPUs and libraries the processes of a test take."""

from __future__ import annotations

import pytest

from benchmarks.gpu_device import num_gpus
from benchmarks.gpu_libraries import Libraries
from reshard.nccl_copies import nccl_offers

__all__ = ["SHARED", "gpus_or_skip", "placed"]

# Lets two ranks share a GPU, with few blocks of threads for each of them.
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
SHARED_SINCE = 23000


def placed(machine: Libraries) -> tuple[Libraries, int]:
    """Returns the libraries to use, and how many GPUs there are."""
    if not machine.is_real:
        return machine, 1
    count = num_gpus()
    if count > 1:
        return machine, count
    new = [offer.path for offer in nccl_offers() if offer.version >= SHARED_SINCE]
    if not new:
        pytest.skip(
            "with one GPU two ranks have to share it, which takes NCCL 2.30 or newer; install it "
            "with: pip install -U nvidia-nccl-cu12"
        )
    return machine._replace(nccl=new[0]), count


def gpus_or_skip() -> int:
    """Returns how many GPUs there are; skips the test where there is none."""
    count = num_gpus()
    if count == 0:
        pytest.skip("needs an NVIDIA GPU and its driver; nvidia-smi says what is there")
    return count
