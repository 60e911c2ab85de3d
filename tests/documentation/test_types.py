"""The package is typed, so what examples and pages show passes a strict type checker."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="needs mypy: make setup")

ROOT = Path(__file__).resolve().parents[2]

SLIPS = """
from reshard import Layout, Mesh, Shard, TensorSpec, make_plan

rows = Layout(Mesh.of(x=2), (Shard(0),))
spec = TensorSpec("w", (4, 6), "float32", rows)
make_plan(spec, spec)
TensorSpec("w", (4, 6), "float32", "x")
TensorSpec("w", (4, 6), "float32", rows, ["w"])
make_plan([spec], [spec], casts=("float32", "bfloat16"))
"""


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def shown(page: Path) -> str:
    """Returns the code of a page's examples, as one program."""
    return "".join(
        example.source for example in doctest.DocTestParser().get_examples(page.read_text())
    )


def test_the_laptop_example():
    done = check(ROOT / "examples" / "laptop.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.torch
def test_the_redistribute_example():
    done = check(ROOT / "examples" / "torch_redistribute.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["layouts.md", pytest.param("ends.md", marks=pytest.mark.torch)])
def test_examples_of_pages(name, tmp_path):
    program = tmp_path / "page.py"
    program.write_text(shown(ROOT / "docs" / name))
    done = check(program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_ways_in_which_arguments_may_be_given(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\n"
        "from reshard import *\n"
        "layout = Layout(Mesh(['a'], [2], [3, 1]), [Shard(0)])\n"
        "w = TensorSpec('w', [4, 6], np.float32, layout, [Part('w', aliases=['v'])])\n"
        "boxes = BoxLayout({0: Box([0], [1]), 1: [LocalBox(Box((1,), (1,)), (0,))]})\n"
        "plan = make_plan([w], [w.shifted(4)], casts=[('float32', np.float16)])\n"
        "forms: Forms = {'w': Form('a b -> b a'), 'v': Part('v'), 'u': (Part('u'),), 't': None}\n"
        "whole = np.zeros((4, 6), np.float32)\n"
        "run_in_process(plan, {r: {'w': local_array(w, r, whole)} for r in plan.src_ranks})\n"
    )
    done = check(program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_slips_are_seen_by_the_type_checker(tmp_path):
    program = tmp_path / "slips.py"
    program.write_text(SLIPS)
    lines = check(program).stdout.splitlines()
    found = {int(line.split(":")[1]) for line in lines if ": error:" in line}
    assert found == {6, 7, 8, 9}
