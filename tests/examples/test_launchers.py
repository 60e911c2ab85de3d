"""The examples of ways to start: trainer and engine say the same after each refit."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from helpers.free_port import free_port

pytestmark = [pytest.mark.jax, pytest.mark.torch, pytest.mark.processes]

FOLDER = Path(__file__).parents[2] / "examples" / "launchers"
LIMIT_S = 120.0
ANSWER = re.compile(r"(trainer|engine): version (\d+) says (-?\d+\.\d+)")


def run_together(*commands, **variables):
    """Runs programs side by side and returns what they wrote; kills all of them at the limit."""
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        programs = []
        for command in commands:
            program = subprocess.Popen(
                [sys.executable, *command],
                cwd=FOLDER,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        outputs = [program.communicate(timeout=LIMIT_S)[0] for program in programs]
    for program, output in zip(programs, outputs, strict=True):
        assert program.returncode == 0, output
    return "".join(outputs)


def answers_of(output):
    """Returns all that was said, by side and version."""
    said = defaultdict(list)
    for side, version, answer in ANSWER.findall(output):
        said[side, int(version)].append(float(answer))
    return said


def check(output, num_trainers, num_engines):
    said = answers_of(output)
    assert len(said) == 6, output
    seen = set()
    for version in range(3):
        trained, served = said["trainer", version], said["engine", version]
        assert (len(trained), len(served)) == (num_trainers, num_engines)
        assert all(abs(answer - trained[0]) < 2e-4 for answer in trained + served), output
        seen.add(trained[0])
    assert len(seen) == 3, "training changed nothing"


def address():
    return f"tcp://127.0.0.1:{free_port()}"


def test_plain_processes():
    output = run_together(["plain_trainer.py"], ["plain_engine.py"], TRAINER_ADDRESS=address())
    check(output, 1, 1)


def test_a_job_of_jax_distributed_and_torchrun():
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    output = run_together(
        ["distributed_trainer.py", "0"],
        ["distributed_trainer.py", "1"],
        [*torchrun, "--master-port", str(free_port()), "torchrun_engine.py"],
        TRAINER_ADDRESS=address(),
        JAX_COORDINATOR=f"127.0.0.1:{free_port()}",
    )
    check(output, 2, 2)


def test_ray_actors():
    if "ray" not in os.environ.get("RESHARD_REQUIRE", "").split(","):
        pytest.importorskip("ray", reason="needs Ray: pip install ray")
    check(run_together(["ray_actors.py"]), 1, 2)


def test_other_answers_of_the_engine_are_found():
    said = "".join(
        f"{side}: version {version} says {version + (side == 'engine') * 0.001:.4f}\n"
        for side in ("trainer", "engine")
        for version in range(3)
    )
    with pytest.raises(AssertionError):
        check(said, 1, 1)
    check(said.replace("01\n", "00\n").replace(".0010", ".0000"), 1, 1)
