"""NCCL itself, loaded through our own border, as far as it goes without a GPU.

Each test is a program of its own: NCCL is large, and has threads.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys

import pytest
from helpers.full_doubles import full_doubles
from helpers.source_text import ROOT

pytestmark = pytest.mark.nccl

# What all of the programs begin with; NCCL goes over the loopback interface, so that a machine
# without a network will do.
PRELUDE = """
import json, os, sys, time
from pathlib import Path
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
from reshard._native_libraries import CudaLibrary, NcclLibrary
from reshard.nccl_copies import find_nccl

def counts():
    return [len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd")]

path = next(copy.path for copy in find_nccl() if copy.origin == "wheel")
nccl = NcclLibrary(path)
"""


@pytest.fixture(autouse=True)
def _nccl_is_there():
    if importlib.util.find_spec("nvidia") is None or not importlib.util.find_spec("nvidia.nccl"):
        pytest.skip("no NCCL; install it with: pip install nvidia-nccl-cu12")


def has_driver() -> bool:
    # In a process of its own: other tests load doubles of that name into this one.
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    return done.returncode == 0


def answer_of(code: str):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_wheel_has_every_function_and_its_own_version():
    installed = importlib.metadata.version("nvidia-nccl-cu12")
    major, minor, patch = map(int, installed.split(".")[:3])
    code = "print(json.dumps([nccl.version, nccl.path == path]))"
    assert answer_of(code) == [major * 10000 + minor * 100 + patch, True]


def test_ids_have_128_bytes_and_differ():
    code = """
ids = [nccl.make_id() for _ in range(3)]
print(json.dumps([sorted(map(len, ids)), len(set(ids))]))
"""
    assert answer_of(code) == [[128, 128, 128], 3]


def test_an_id_that_nobody_joins_costs_a_thread_and_a_file():
    """NCCL waits there for the ranks, and there is no call that ends it."""
    code = """
before = counts()
for _ in range(5):
    nccl.make_id()
print(json.dumps([now - then for now, then in zip(counts(), before)]))
"""
    assert answer_of(code) == [5, 5]


def test_a_communicator_without_a_gpu_fails_at_once_in_the_words_of_nccl():
    """The driver is a double, which NCCL does not see: what it misses is CUDA's."""
    code = f"""
from reshard import TransportError
from reshard._native_communicator import Communicator, GpuRank
cuda = CudaLibrary({str(full_doubles().cuda)!r})
name = nccl.make_id()
messages, all_counts = set(), []
begin = time.monotonic()
for _ in range(20):
    with Communicator.nccl(nccl, cuda, name, [0, 1], [GpuRank(0, 0)]) as communicator:
        try:
            communicator.connect(10.0)
        except TransportError as error:
            messages.add(str(error))
    all_counts.append(counts())
took = time.monotonic() - begin
print(json.dumps([sorted(messages), took, all_counts[0], all_counts[-1]]))
"""
    messages, took, first, last = answer_of(code)
    assert len(messages) == 1
    assert "joining: 1, unhandled cuda error" in messages[0]
    assert "NCCL_DEBUG=INFO says more" in messages[0]
    assert took < 10
    assert last == first


def test_a_refit_that_asks_for_nccl_is_told_that_there_is_no_gpu():
    code = """
import reshard.nccl_check as check
offers, problem = check.nccl_here()
print(json.dumps([[o.version == nccl.version for o in offers], problem]))
"""
    if has_driver():
        pytest.skip("there is a driver of CUDA here")
    offers, problem = answer_of(code)
    assert offers == [True]
    assert problem.startswith("cannot use NCCL: libcuda.so.1 cannot be loaded")
    assert "Run where a GPU and its driver are visible" in problem
    assert "nvidia-nccl-cu12" not in problem
