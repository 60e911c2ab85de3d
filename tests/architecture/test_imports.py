"""Who may import whom, read from the sources; and what importing loads, in a fresh process."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reshard

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"torch", "jax", "jaxlib", "cupy", "flax", "transformers"}
PLANNING = [
    "box",
    "mesh",
    "placement",
    "division",
    "layout",
    "segmented_layout",
    "form",
    "tensor_spec",
    "dtypes",
    "errors",
    "transfer",
    "logical_space",
    "matching",
    "holders",
    "grid",
    "geometry_plan",
    "legs",
    "sweep",
    "planner",
    "reference_planner",
    "plan",
    "plan_text",
    "schedule",
    "spec_codec",
    "spec_merge",
    "padding",
    "program_table",
    "verification",
    "fingerprint",
]
IMPURE = {"os", "time", "random", "threading", "socket", "subprocess", "zmq", "logging", "datetime"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Full names of imported modules, wherever in the file they are imported."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def top(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", sources("reshard"), ids=lambda path: path.name)
def test_the_core_imports_no_framework(path):
    imported = top(imports_of(path))
    assert imported & FRAMEWORKS == set()
    assert imported & {"reshard_torch", "reshard_jax"} == set()
    if path.name not in {"loopback.py", "simulation.py"}:
        assert imported & {"numpy", "ml_dtypes"} == set()


def test_only_the_command_line_draws_tables():
    users = {path.parent.name for path in sources("reshard") if "rich" in top(imports_of(path))}
    assert users == {"cli"}


@pytest.mark.parametrize(
    ("package", "framework", "other"),
    [("reshard_torch", "torch", "jax"), ("reshard_jax", "jax", "torch")],
)
def test_adapters_import_public_names_and_their_own_framework(package, framework, other):
    public = {f"reshard.{name}" for name in reshard.__all__} | {"reshard"}
    seen: set[str] = set()
    for path in sources(package):
        imported = imports_of(path)
        seen |= top(imported)
        assert other not in top(imported), path
        core = {name for name in imported if name.partition(".")[0] == "reshard"}
        allowed = public | ({"reshard.exchange", "reshard.error_report"} & core)
        extra = {name for name in core - allowed if not name.startswith("reshard.error_report.")}
        assert {n for n in extra if not n.startswith("reshard.exchange.")} == set(), path
    assert framework in seen


@pytest.mark.parametrize("name", PLANNING)
def test_planning_is_pure(name):
    path = ROOT / "reshard" / f"{name}.py"
    imported = imports_of(path)
    assert top(imported) & IMPURE == set()
    assert not any(n.startswith(("reshard._native", "reshard.store")) for n in imported)


def test_only_native_modules_see_the_native_library():
    for path in sources("reshard"):
        text = path.read_text()
        if not path.name.startswith("_native"):
            assert not re.search(r"\b_?(ffi|lib)\b\.", text), path


def test_native_sources_name_no_python_and_no_library_of_a_transport():
    native = ROOT / "native" / "src"
    files = [*native.rglob("*.cc"), *native.rglob("*.h")]
    assert files
    for path in files:
        text = path.read_text()
        assert "Python.h" not in text, path
        assert not re.search(r'#include\s*[<"](nccl|cuda)(\.h|/)', text), path
        if not re.fullmatch(r"c_api\w*\.(cc|h)", path.name):
            assert "reshard/reshard.h" not in text, path


def test_importing_loads_no_framework_and_nothing_native():
    code = (
        "import sys, reshard\n"
        "bad = {'torch', 'jax', 'numpy', 'zmq', 'reshard._native', 'reshard._native_bindings'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_import_checks_can_fail(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("def f():\n    import torch.nn\n    from jax import numpy\n")
    assert top(imports_of(path)) & FRAMEWORKS == {"torch", "jax"}
