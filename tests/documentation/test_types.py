"""The package is typed, so what examples and pages show passes a strict type checker."""

from __future__ import annotations

import doctest
import importlib.util
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


def shown(page: Path) -> str:
    """Returns the code of a page's examples, as one program."""
    return "".join(
        example.source for example in doctest.DocTestParser().get_examples(page.read_text())
    )


WAYS_TO_GIVE_ARGUMENTS = """
import numpy as np
from reshard import *
layout = Layout(Mesh(['a'], [2], [3, 1]), [Shard(0)])
w = TensorSpec('w', [4, 6], np.float32, layout, [Part('w', aliases=['v'])])
boxes = BoxLayout({0: Box([0], [1]), 1: [LocalBox(Box((1,), (1,)), (0,))]})
plan = make_plan([w], [w.shifted(4)], casts=[('float32', np.float16)])
forms: Forms = {'w': Form('a b -> b a'), 'v': Part('v'), 'u': (Part('u'),), 't': None}
whole = np.zeros((4, 6), np.float32)
run_in_process(plan, {r: {'w': local_array(w, r, whole)} for r in plan.src_ranks})
"""

# Programs by name; those of TORCH import it.
PROGRAMS = {
    "laptop": (ROOT / "examples" / "laptop.py").read_text(),
    "torch_redistribute": (ROOT / "examples" / "torch_redistribute.py").read_text(),
    "layouts_page": shown(ROOT / "docs" / "layouts.md"),
    "ends_page": shown(ROOT / "docs" / "ends.md"),
    "ways_to_give_arguments": WAYS_TO_GIVE_ARGUMENTS,
    "slips": SLIPS,
}
TORCH = {"torch_redistribute", "ends_page"}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a strict type checker says of each program; one run, as its start is what takes time."""
    folder = tmp_path_factory.mktemp("programs")
    has_torch = importlib.util.find_spec("torch") is not None
    names = [name for name in PROGRAMS if has_torch or name not in TORCH]
    for name in names:
        (folder / f"{name}.py").write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(str(folder / f"{n}.py") for n in names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines and f"checked {len(names)} source files" in lines[-1], done.stdout + done.stderr
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in lines[:-1]:
        found[Path(line.split(":")[0]).stem].append(line)
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.torch] if name in TORCH else [])
        for name in PROGRAMS
        if name != "slips"
    ],
)
def test_what_is_shown_passes(errors: dict[str, list[str]], name: str) -> None:
    if name not in errors:
        pytest.skip("needs PyTorch: pip install torch")
    assert errors[name] == []


def test_slips_are_seen_by_the_type_checker(errors: dict[str, list[str]]) -> None:
    found = {int(line.split(":")[1]) for line in errors["slips"] if ": error:" in line}
    assert found == {6, 7, 8, 9}
