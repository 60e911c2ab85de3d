"""Reads the source of this repository: tracked files, imports, functions. Nothing is imported."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = [
    "LIBRARIES",
    "ROOT",
    "functions",
    "imports_of",
    "library_files",
    "module_name",
    "native_files",
    "tracked_files",
    "tree_of",
]

ROOT = Path(__file__).parents[2]
LIBRARIES = ("reshard", "reshard_torch", "reshard_jax")


@cache
def tracked_files() -> tuple[Path, ...]:
    """Returns all tracked files, or all files where the source did not come with its history."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False, text=True
    )
    if found.returncode == 0:
        names = [name for name in found.stdout.split("\0") if name]
        return tuple(path for name in names if (path := ROOT / name).is_file())
    skipped = {"build", "dist", "__pycache__"}
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and not skipped & set(path.parts)
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts[:-1])
    )


def library_files(*packages: str) -> list[Path]:
    """Returns the Python files of some packages; all three if none is named."""
    chosen = packages or LIBRARIES
    return [path for name in chosen for path in sorted((ROOT / name).rglob("*.py"))]


def native_files(*suffixes: str) -> list[Path]:
    """Returns the C++ sources of the library and of its device kernels."""
    folders = [ROOT / "native" / "src", ROOT / "native" / "kernels"]
    return [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix in (suffixes or (".cc", ".h", ".cu"))
    ]


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the syntax tree of a Python file."""
    return ast.parse(path.read_text(), str(path))


def module_name(path: Path) -> str:
    """Returns the dotted name of a library file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, with_type_checking: bool = False) -> Iterator[tuple[str, str]]:
    """Yields (module, imported name or empty) of every import in a file, those in functions too.

    Args:
        path: a Python file.
        with_type_checking: also imports that run in type checkers only.
    """
    skipped: set[int] = set()
    if not with_type_checking:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped |= {id(inner) for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree_of(path)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            for alias in node.names:
                yield node.module or "", alias.name


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields every function and method of a file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
