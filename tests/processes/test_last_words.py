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
from reshard import device_kernels
from reshard import Buffer, Layout, Mesh, Replicate, TensorSpec

cuda, nccl, role, device, ending, cause = sys.argv[1:]
casts = [("float32", "bfloat16")] if cause == "no compiler" else []
if casts and role == "source":
    device_kernels.find_nvrtc = list  # which a cast needs, as the run finds
dtype = "bfloat16" if casts and role == "destination" else "float32"
spec = TensorSpec("w", (64, 32), dtype, Layout(Mesh.of(x=1), (Replicate(),)))
memory = np.zeros((64, 32), np.uint16 if dtype == "bfloat16" else np.float32)
doubles = Controls(FullDoubles(cuda, nccl))
doubles._cuda.cudaDoubleRegister(memory.ctypes.data, memory.nbytes, int(device))
buffer = Buffer(memory.ctypes.data, memory.shape, memory.strides, spec.dtype, device=int(device))
options = {"ranks": (0,), "num_ranks": 1, "timeout_s": 30, "casts": casts}
if role == "source":
    end = reshard.Source("tcp://127.0.0.1:0", [spec], **options)
    print(end.address, flush=True)
    move = lambda: end.publish({(0, "w"): buffer}, version=1, verify=False)
else:
    end = reshard.Destination(sys.stdin.readline().strip(), [spec], **options)
    move = lambda: end.refit({(0, "w"): buffer})
if ending == "by its error":
    move()
with end:
    move()
"""


def start(role, device, ending, cause, environment):
    doubles = full_doubles()
    arguments = [str(doubles.cuda), str(doubles.nccl), role, device, ending, cause]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
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
    ("cause", "environment", "words"),
    [
        ("no compiler", {}, "UnsupportedError: source 'source' process 0"),
        (
            "an error of NCCL",
            {"NCCL_DOUBLE_INJECT": "async_error_group=1"},
            "TransportError: source 'source' process 0",
        ),
    ],
)
def test_the_engine_hears_why_the_trainer_ended(cause, environment, words, ending):
    assert kernel_image("sm_90") is not None  # compiled once, and kept for both
    with (
        start("source", "0", ending, cause, environment) as source,
        start("destination", "1", ending, cause, {}) as engine,
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
    assert words in last, said
    assert own.splitlines()[-1].partition("Error: ")[2][:40] in last
