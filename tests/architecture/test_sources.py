"""Sizes, habits and public names, read from the sources."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

import reshard

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ("reshard", "reshard_torch", "reshard_jax")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def library_files() -> list[Path]:
    return [path for package in LIBRARY for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", library_files(), ids=name_of)
def test_python_files_and_functions_are_short(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            # A docstring is not what makes a function long.
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < MAX_FUNCTION_LINES, node.name


def test_native_files_are_short():
    for path in tracked("native/src/*", "native/include/*", "native/tests/*", "native/kernels/*"):
        count = len(path.read_text().splitlines())
        assert count <= MAX_FILE_LINES or path.name == "reshard.h", (path, count)


@pytest.mark.parametrize("path", library_files(), ids=name_of)
def test_library_code_has_no_assert_print_or_bare_except(path):
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Assert), node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", node.lineno
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, node.lineno


def test_no_forbidden_file_names():
    for path in library_files():
        assert path.stem not in {"utils", "common", "helpers", "core", "manager"}, path


def test_no_path_of_a_machine_in_the_project():
    pattern = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|home|farm)/")
    for path in tracked("*.py", "*.md", "*.toml", "*.cc", "*.h", "Makefile", "*.txt", ".ci/run"):
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not pattern.search(line), f"{path}:{number}: {line}"


# Promised names that are no classes or functions; the text below them is their documentation.
ALIASES = {
    *(
        "BufferKey",
        "Casts",
        "DEFAULT_STAGING_BYTES",
        "Forms",
        "Padding",
        "Paddings",
        "Placement",
        "Transport",
    ),
}


def test_every_promised_name_exists_and_is_documented():
    assert sorted(reshard.__all__) == sorted(set(reshard.__all__))
    for name in reshard.__all__:
        value = getattr(reshard, name)
        assert name in ALIASES or (value.__doc__ or "").strip(), name
