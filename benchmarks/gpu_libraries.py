"""Which driver and which NCCL a benchmark of GPUs takes: the machine's, or the tests' doubles.

The doubles move every byte, on the host: a run with them proves that the code of a benchmark works.
Its times say nothing about a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NamedTuple

from benchmarks.gpu_device import DRIVER, num_gpus
from benchmarks.machine import ROOT

__all__ = ["Libraries", "doubles", "libraries"]

_DOUBLES = ROOT / "tests" / "helpers" / "full_doubles.py"


class Libraries(NamedTuple):
    """Where the libraries are, and the image of the kernels, if they are not to be compiled.

    Attributes:
        driver, nccl: paths or names; None for NCCL means the copy that a refit would take.
        image: None means that NVRTC makes it.
        is_real: False for the doubles.
    """

    driver: str
    nccl: str | None
    image: bytes | None
    is_real: bool

    @property
    def caveat(self) -> str:
        """What has to stand beside every time."""
        if self.is_real:
            return ""
        return "doubles of CUDA and NCCL on the host: these times say NOTHING about a GPU"


def doubles() -> Libraries:
    """Returns the doubles, which are built if they are not there.

    Their streams have no delays unless the environment says so.
    """
    os.environ.setdefault("CUDA_DOUBLE_MAX_DELAY_US", "0")
    spec = importlib.util.spec_from_file_location("reshard_full_doubles", _DOUBLES)
    if spec is None or spec.loader is None:
        message = f"{_DOUBLES} cannot be read"
        raise RuntimeError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    pair = module.full_doubles()
    return Libraries(str(pair.cuda), str(pair.nccl), b"reshard double", is_real=False)


def libraries(*, quick: bool) -> Libraries:
    """Returns the machine's libraries if it has a GPU; in quick mode the doubles if it has not.

    Raises:
        RuntimeError: there is no GPU.
    """
    if num_gpus():
        return Libraries(DRIVER, None, None, is_real=True)
    if quick:
        return doubles()
    message = (
        "no NVIDIA GPU is visible (nvidia-smi says more). --quick runs the code on doubles of CUDA "
        "and NCCL, whose times say nothing"
    )
    raise RuntimeError(message)
