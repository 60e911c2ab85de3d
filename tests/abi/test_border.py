"""Header = cdef = library: declarations, symbols, struct sizes, status names, generated files."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reshard import _native, _native_bindings

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "native/include/reshard/reshard.h").read_text()
CDEF = (ROOT / "native/bindings/_native_bindings.cdef.txt").read_text()
FUNCTION = re.compile(r"\b(reshard_\w+)\(")
STRUCT = re.compile(r"typedef struct (\w+) \{")

ffi, lib = _native_bindings.ffi, _native_bindings.lib


def library_path():
    return Path(_native_bindings.__file__).with_name("libreshard.so")


def code_of_header():
    return re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)


def test_generated_files_are_current():
    script = ROOT / "native/bindings/generate.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_check_for_current_files_can_fail(tmp_path):
    folder = tmp_path / "native"
    shutil.copytree(ROOT / "native/bindings", folder / "bindings")
    shutil.copytree(ROOT / "native/include", folder / "include")
    header = folder / "include/reshard/reshard.h"
    header.write_text(HEADER.replace("int64_t chunk_bytes;", "int32_t chunk_bytes;"))
    done = subprocess.run(
        [sys.executable, folder / "bindings/generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "_native_bindings.c" in done.stderr


def test_every_function_of_the_header_is_declared_and_bound():
    functions = set(FUNCTION.findall(code_of_header()))
    assert functions == set(FUNCTION.findall(CDEF))
    assert functions == {name for name in dir(lib) if name.startswith("reshard_")}


def test_the_library_exports_the_functions_of_the_header_and_nothing_else():
    if shutil.which("nm") is None:
        pytest.skip("nm is missing; install binutils")
    command = ["nm", "--dynamic", "--defined-only", "--extern-only", library_path()]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    exported = {line.split()[-1] for line in lines if line.split()[-2] in "TDBR"}
    assert exported == set(FUNCTION.findall(code_of_header()))


def test_every_function_of_the_header_has_a_contract():
    for line in re.findall(r"^RESHARD_API .*$", HEADER, flags=re.MULTILINE):
        before = HEADER[: HEADER.index(line)].rstrip()
        assert before.endswith("*/"), line


def test_struct_sizes_of_library_and_binding_agree():
    structs = STRUCT.findall(code_of_header())
    count = lib.reshard_abi_sizes(ffi.NULL, 0)
    sizes = ffi.new("size_t[]", count)
    lib.reshard_abi_sizes(sizes, count)
    assert [(name, ffi.sizeof(name)) for name in structs] == list(
        zip(structs, list(sizes), strict=True)
    )


def test_the_library_checks_itself_by_these_structs():
    assert _native.has_equal_structs()
    source = inspect.getsource(_native.has_equal_structs)
    names = [name.removeprefix("reshard_") for name in STRUCT.findall(code_of_header())]
    assert all(f'"{name}"' in source for name in names)


def test_every_struct_starts_with_its_size():
    for name in STRUCT.findall(code_of_header()):
        field, _ = ffi.typeof(name).fields[0]
        assert field == "size", name


def test_status_names_are_those_of_the_header():
    codes = {name: getattr(lib, name) for name in dir(lib) if name.startswith("RESHARD_STATUS_")}
    assert len(codes) == 12
    for name, code in codes.items():
        text = ffi.string(lib.reshard_status_name(code)).decode()
        assert text == name.removeprefix("RESHARD_STATUS_").lower()


def test_versions_of_package_and_library_agree():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{ffi.string(lib.reshard_version()).decode()}"' in text
