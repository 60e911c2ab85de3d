"""Borders of the native code: which files know of the C interface, of Python, of devices."""

from __future__ import annotations

import ast
import re

import pytest
from helpers.source_text import ROOT, library_files, module_name, native_files, tree_of

NATIVE_MODULES = {
    "reshard._native_border",
    "reshard._native",
    "reshard._native_communicator",
    "reshard._native_libraries",
    "reshard._native_mailbox",
}


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def relative(path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", native_files(), ids=relative)
def test_only_the_c_interface_includes_the_public_header(path):
    includes = re.findall(r'#include\s+["<]([^">]+)[">]', path.read_text())
    knows_header = any(name.endswith("reshard/reshard.h") for name in includes)
    assert not knows_header or path.name.startswith("c_api")


@pytest.mark.parametrize("path", native_files(), ids=relative)
def test_native_code_does_not_know_python(path):
    text = without_comments(path.read_text())
    assert not re.search(r"\bPy[A-Z_]\w+|[<\"]Python\.h|\bpybind|\bcffi\b", text)


@pytest.mark.parametrize("path", native_files(), ids=relative)
def test_devices_and_transports_are_known_in_their_own_files_only(path):
    text = without_comments(path.read_text())
    if "transport/nccl" not in relative(path):
        assert not re.search(r"\bnccl[A-Z]\w*|\blibnccl", text)
    if not path.name.startswith("cuda_driver."):
        assert not re.search(r"\bcu[A-Z]\w+\(|\bcuda[A-Z]\w+\(|\blibcuda", text)


@pytest.mark.parametrize("path", native_files(), ids=relative)
def test_native_code_neither_prints_nor_ends_the_process(path):
    text = without_comments(path.read_text())
    assert not re.search(r"\bstd::(cout|cerr|clog)\b|\b(f|v)?printf\s*\(|\bputs\s*\(", text)
    assert not re.search(r"\b(std::)?(abort|exit|_exit|terminate)\s*\(\s*\)?\s*;", text) or (
        ".abort(" in text or "->abort(" in text
    )


@pytest.mark.parametrize("path", library_files(), ids=module_name)
def test_only_native_modules_see_the_native_interface(path):
    """`ffi` and `lib` are the two names that cffi makes."""
    names = {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
    imported = {
        alias.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    sees = bool((names | imported) & {"ffi", "lib", "_ffi", "_lib"})
    assert sees == (module_name(path) in NATIVE_MODULES)
