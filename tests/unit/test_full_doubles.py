"""The doubles that move bytes, as Python tests get them."""

from __future__ import annotations

import subprocess
import sys

from helpers.full_doubles import full_doubles
from helpers.source_text import ROOT


def run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_pair_is_built_once():
    first = full_doubles()
    assert full_doubles.__wrapped__() == first
    assert first.cuda.is_file()
    assert first.nccl.is_file()


def test_a_process_controls_what_it_opened():
    code = """
from helpers.full_doubles import Controls, full_doubles
controls = Controls(full_doubles())
memory = bytearray(64)
import ctypes
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
controls.register(address, 64, 1)
print(controls.cuda("registered_bytes", 1), controls.cuda("registered_bytes", 0))
controls.unregister(address)
controls._nccl.ncclGroupEnd()
print(controls.nccl("violations"), controls.violations().strip())
controls.inject("hang_group", 1)
controls.reset()
print(controls.nccl("violations"), controls.groups())
"""
    assert run(code) == ["64 0", "1 ncclGroupEnd: without ncclGroupStart", "0 []"]


def test_nothing_finds_the_double_of_cuda_by_its_name():
    code = """
import ctypes
from helpers.full_doubles import Controls, full_doubles
Controls(full_doubles())
try:
    found = ctypes.CDLL("libcuda.so.1")
except OSError:
    print(False)
else:
    print(hasattr(found, "cudaDoubleGet"))
"""
    assert run(code) == ["False"]
