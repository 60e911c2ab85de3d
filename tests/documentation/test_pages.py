"""Code that pages and docstrings show is run, and is the same as the file it claims to be."""

from __future__ import annotations

import doctest
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(320)


def run(*command: str, timeout_s: float = 300.0) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pages_show_the_files_they_name():
    run(sys.executable, "docs/embed.py", "--check")


def test_the_laptop_example_runs():
    output = run(sys.executable, "examples/laptop.py")
    assert "every destination rank holds exactly its elements" in output


@pytest.mark.torch
@pytest.mark.processes
def test_the_redistribute_example_runs():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    output = run(*torchrun, "--nproc-per-node", "4", "examples/torch_redistribute.py")
    assert output.count("equal to the source") == 3


def pages() -> list[object]:
    """Returns the pages; those whose examples import torch are marked."""
    return [
        pytest.param(
            page,
            id=page.name,
            marks=[
                getattr(pytest.mark, name)
                for name in ("torch", "jax")
                if f">>> import {name}" in page.read_text()
            ],
        )
        for page in sorted((ROOT / "docs").glob("*.md"))
    ]


@pytest.mark.parametrize("page", pages())
def test_examples_of_pages(page):
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


def modules(package: str) -> list[str]:
    paths = [path for path in sorted((ROOT / package).rglob("*.py")) if path.stem[0] != "_"]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


@pytest.mark.parametrize("name", modules("reshard"))
def test_examples_of_the_core(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.torch
@pytest.mark.parametrize("name", modules("reshard_torch"))
def test_examples_of_the_torch_adapter(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_task_of_the_makefile_is_explained():
    output = run("make", "help")
    for task in ("demo", "test", "bench", "setup", "lint"):
        assert f"make {task}" in output
