"""What we write down of NVIDIA's headers is what they say: layouts, values, types of functions."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.source_text import ROOT

CHECKS = ROOT / "native/tests/headers"
_CALL = re.compile(r"set\(&functions_?\.(\w+), \"(\w+)\"")
_MEMBER = re.compile(r"\(\*(\w+)\)\(")


def headers_of(module: str, wheel: str) -> Path:
    """Returns the folder with the headers of a wheel of NVIDIA; skips the test without it."""
    if importlib.util.find_spec("nvidia") is None or not importlib.util.find_spec(module):
        pytest.skip(f"no headers; install them with: pip install {wheel}")
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations))) / "include"


def calls_of(source: str) -> dict[str, str]:
    """Returns the symbol of each member of a table of functions."""
    text = re.sub(r"\s+", " ", (ROOT / "native/src" / source).read_text())
    return dict(_CALL.findall(text))


def members_of(header: str, struct: str) -> set[str]:
    text = (ROOT / "native/src" / header).read_text()
    body = text.partition(f"struct {struct} {{")[2].partition("\n};")[0]
    return set(_MEMBER.findall(body))


def compile_check(folder: Path, source: Path, calls: list[str], *includes: Path) -> str:
    """Compiles a file for its assertions; returns what the compiler says of them."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "these tests need a C++ compiler, as building reshard does"
    (folder / "calls.inc").write_text("\n".join(calls) + "\n")
    flags = ["-std=c++17", "-fsyntax-only", f"-I{folder}"]
    flags += [f"-I{ROOT / 'native' / own}" for own in ("src", "tests")]
    flags += [flag for place in includes for flag in ("-isystem", str(place))]
    done = subprocess.run(
        [compiler, *flags, str(source)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


def check_nccl(folder: Path, calls: dict[str, str]) -> str:
    headers = headers_of("nvidia.nccl", "nvidia-nccl-cu12")
    lines = [f"CALL({member}, {symbol})" for member, symbol in calls.items()]
    return compile_check(folder, CHECKS / "nccl_header.cc", lines, CHECKS / "without_cuda", headers)


def check_cuda(folder: Path, calls: dict[str, str]) -> str:
    headers = headers_of("nvidia.cuda_runtime", "nvidia-cuda-runtime-cu12")
    lines = [
        f"CALL({member}, {symbol}, {re.sub('_v[0-9]+$', '', symbol)})"
        for member, symbol in calls.items()
    ]
    return compile_check(folder, CHECKS / "cuda_header.cc", lines, headers)


def test_every_member_of_the_tables_is_filled():
    nccl = calls_of("transport/nccl/nccl_api.cc")
    assert set(nccl) == members_of("transport/nccl/nccl_api.h", "NcclFunctions")
    cuda = calls_of("cuda_driver.cc")
    assert set(cuda) == members_of("cuda_driver.h", "CudaFunctions")
    assert (len(nccl), len(cuda)) >= (14, 27)


@pytest.mark.nccl
def test_nccl_header_says_what_we_wrote_down(tmp_path):
    assert check_nccl(tmp_path, calls_of("transport/nccl/nccl_api.cc")) == ""


@pytest.mark.cuda_headers
def test_cuda_header_says_what_we_wrote_down(tmp_path):
    assert check_cuda(tmp_path, calls_of("cuda_driver.cc")) == ""


@pytest.mark.nccl
@pytest.mark.parametrize(
    ("member", "symbol"),
    [("Send", "ncclBroadcast"), ("CommInitRankConfig", "ncclCommInitRank"), ("Send", "ncclRecv")],
)
def test_another_function_of_nccl_is_refused(tmp_path, member, symbol):
    complaints = check_nccl(tmp_path, {member: symbol})
    assert "static assertion failed" in complaints
    assert symbol in complaints


@pytest.mark.cuda_headers
@pytest.mark.parametrize(
    ("member", "symbol"),
    [
        ("MemcpyHtoDAsync", "cuMemcpyDtoHAsync_v2"),
        ("MemAlloc", "cuMemAllocManaged"),
        ("StreamDestroy", "cuStreamDestroy"),  # the symbol of before CUDA 4
    ],
)
def test_another_function_of_cuda_is_refused(tmp_path, member, symbol):
    assert check_cuda(tmp_path, {member: symbol}) != ""
