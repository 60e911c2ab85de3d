"""Programs that end right after their own error: the other program hears the cause, not the end.

Plain programs, as a user starts them, over NCCL on doubles: there a process looks at the words of
the others only now and then.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers.full_doubles import full_doubles

from reshard.device_kernels import kernel_image

pytestmark = pytest.mark.processes

LIMIT_S = 60

PROGRAM = """
import sys

import numpy as np
from helpers.full_doubles import Controls, FullDoubles

import reshard
from reshard import Buffer, Layout, Mesh, Replicate, TensorSpec

cuda, nccl, role, device, ending = sys.argv[1:]
spec = TensorSpec("w", (64, 32), "float32", Layout(Mesh.of(x=1), (Replicate(),)))
memory = np.zeros((64, 32), np.float32)
doubles = Controls(FullDoubles(cuda, nccl))
doubles._cuda.cudaDoubleRegister(memory.ctypes.data, memory.nbytes, int(device))
buffer = Buffer(memory.ctypes.data, memory.shape, memory.strides, spec.dtype, device=int(device))
options = {"ranks": (0,), "num_ranks": 1, "timeout_s": 30}
if role == "source":
    end = reshard.Source("tcp://127.0.0.1:0", [spec], **options)
    print(end.address, flush=True)
    move = lambda: end.publish({(0, "w"): buffer}, version=1)
else:
    end = reshard.Destination(sys.stdin.readline().strip(), [spec], **options)
    move = lambda: end.refit({(0, "w"): buffer})
if ending == "by its error":
    move()
with end:
    move()
"""


def start(role, device, ending, environment):
    doubles = full_doubles()
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(doubles.cuda), str(doubles.nccl), role, device, ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"RESHARD_CUDA_LIBRARY": str(doubles.cuda), "RESHARD_NCCL_LIBRARY": str(doubles.nccl)}
        | {"PYTHONPATH": os.pathsep.join(sys.path)}
        | environment,
    )


@pytest.mark.parametrize("ending", ["by its error", "closed"])
@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"RESHARD_NVRTC_LIBRARY": "/nowhere"}, "UnsupportedError: source 'source' process 0"),
        ({"NCCL_DOUBLE_INJECT": "async_error_group=1"}, "TransportError: source 'source' process"),
    ],
    ids=["no compiler", "an error of NCCL"],
)
def test_the_engine_hears_why_the_trainer_ended(environment, cause, ending):
    assert kernel_image("sm_90") is not None  # compiled once, and kept for both
    with (
        start("source", "0", ending, environment) as source,
        start("destination", "1", ending, {}) as engine,
    ):
        try:
            said = engine.communicate(source.stdout.readline(), timeout=LIMIT_S)[1]
            own = source.communicate(timeout=LIMIT_S)[1]
        finally:
            source.kill()
            engine.kill()
    assert source.returncode == engine.returncode == 1
    assert "Error: " in own.splitlines()[-1]
    last = said[said.rindex("\nreshard.errors.") :]
    assert cause in last, said
    assert own.splitlines()[-1].partition("Error: ")[2][:40] in last
