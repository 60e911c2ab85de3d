"""What each module says of itself, and what must not be written in any."""

from __future__ import annotations

import ast
import re

import pytest
from helpers.source_text import (
    LIBRARIES,
    ROOT,
    library_files,
    module_name,
    native_files,
    tracked_files,
    tree_of,
)

MAX_WIDTH = 100


def relative(path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*library_files(), *native_files()], ids=relative)
def test_lines_are_ascii_and_not_wide(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert line.isascii(), number
        assert len(line) <= MAX_WIDTH or "http" in line, number


@pytest.mark.parametrize("path", library_files(), ids=module_name)
def test_the_library_neither_swallows_errors_nor_runs_text(path):
    for node in ast.walk(tree_of(path)):
        where = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"breakpoint", "exec", "eval"}, where
        if isinstance(node, ast.ExceptHandler):
            caught = "" if node.type is None else ast.unparse(node.type)
            if re.search(r"\b(Base)?Exception\b", caught):
                ends = [inner for inner in ast.walk(node) if isinstance(inner, ast.Raise)]
                assert ends, f"{where}: except {caught} that does not raise"


@pytest.mark.parametrize("path", library_files(), ids=module_name)
def test_nothing_unpickles(path):
    text = path.read_text()
    assert not re.search(r"^\s*(import|from)\s+(pickle|marshal|shelve|dill)\b", text, re.MULTILINE)


def exported(path) -> list[str]:
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found = ast.literal_eval(node.value)
            assert isinstance(found, list)
            return found
    return []


@pytest.mark.parametrize("path", library_files(), ids=module_name)
def test_every_module_says_what_it_gives_and_what_it_is_for(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree), "no module docstring"
    defined = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    if defined:
        assert exported(path), "no __all__"
    assert set(defined) <= set(exported(path)) | {"main"}
    assert exported(path) == sorted(exported(path), key=isort_order)


def isort_order(name: str) -> tuple[int, str]:
    """Constants first, then classes, then the rest, as ruff sorts __all__."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


@pytest.mark.parametrize("path", library_files("reshard"), ids=module_name)
def test_every_exported_name_is_documented(path):
    """A docstring, or a string below an assignment."""
    tree = tree_of(path)
    documented = set()
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            documented.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            is_plain = isinstance(node.value, ast.Constant | ast.BinOp | ast.Subscript)
            if is_text or is_plain:
                documented.add(ast.unparse(target))
    defined = {
        name
        for name in exported(path)
        if not any(
            isinstance(node, ast.ImportFrom) and name in {a.asname or a.name for a in node.names}
            for node in ast.walk(tree)
        )
    }
    assert defined - documented == set()


@pytest.mark.parametrize("package", LIBRARIES)
def test_packages_are_typed(package):
    assert (ROOT / package / "py.typed").is_file()


def test_there_is_no_large_file():
    """The largest is the upstream matrix."""
    large = [relative(path) for path in tracked_files() if path.stat().st_size > 200_000]
    assert large == []


def test_no_todo_without_an_issue():
    found = [
        f"{relative(path)}:{number}"
        for path in [*library_files(), *native_files()]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX)\b", line) and not re.search(r"#\d+", line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "reshard" / "page" / "assets").iterdir()), ids=lambda path: path.name
)
def test_assets_of_the_page_are_short_and_ask_for_nothing(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    for number, line in enumerate(lines, 1):
        assert line.isascii() and len(line) <= MAX_WIDTH, number
        assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(|\.innerHTML", line) or (
            "www.w3.org/2000/svg" in line  # a name space, which is never opened
        ), number
