"""`reshard doctor`: what it says, what it loads, when it fails."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.command_line import call

from reshard.cli import machine_checks
from reshard.cli.machine_checks import Check


def test_sections_and_verdict(capsys):
    done = call(capsys, "doctor")
    assert done.code == 0
    for section in ("python", "reshard", "packages", "libraries", "machine", "transports"):
        assert f"\n{section}\n" in f"\n{done.out}"
    assert "not built yet" in done.out
    assert done.out.endswith("reshard works here\n")


def test_document(capsys):
    document = call(capsys, "doctor", "--json").document
    assert set(document) == {"is_usable", "checks"}
    assert document["is_usable"] is True
    assert all(set(check) == {"section", "name", "value", "status"} for check in document["checks"])
    names = {check["name"] for check in document["checks"]}
    assert {"native library", "cffi", "libnccl.so.2", "libcuda.so.1", "cores", "shm"} <= names
    assert {check["status"] for check in document["checks"]} <= {"ok", "missing", "error"}


def test_a_native_library_that_cannot_be_loaded_is_a_failure(capsys, monkeypatch):
    broken = Check("reshard", "native library", "cannot load", "error")
    monkeypatch.setattr(machine_checks, "_native", lambda: [broken])
    done = call(capsys, "doctor")
    assert done.code == 1
    assert "cannot load [error]" in done.out
    assert "needs the native library" in done.out
    assert done.out.endswith("reshard does not work here\n")


def test_the_missing_native_library_is_told_from_the_import(monkeypatch):
    monkeypatch.delitem(sys.modules, "reshard._native", raising=False)
    monkeypatch.delattr("reshard._native", raising=False)
    monkeypatch.setitem(sys.modules, "reshard._native_bindings", None)
    monkeypatch.setattr(machine_checks.importlib.util, "find_spec", lambda name: None)
    (check,) = [each for each in machine_checks._native() if each.name == "native library"]
    assert check.status == "error"
    assert "cannot load the native library" in check.value


def test_a_library_of_another_build_is_a_failure(capsys, monkeypatch):
    monkeypatch.setattr("reshard._native.has_equal_structs", lambda: False)
    done = call(capsys, "doctor")
    assert done.code == 1
    assert "binding and library are of different builds" in done.out


def test_a_library_of_another_version_is_a_failure(capsys, monkeypatch):
    monkeypatch.setattr(machine_checks, "library_version", lambda: "9.9.9")
    done = call(capsys, "doctor")
    assert done.code == 1
    assert "but the Python side is 9.9.9" in done.out


def test_the_file_of_the_native_library_is_named(capsys):
    checks = {check["name"]: check for check in call(capsys, "doctor", "--json").document["checks"]}
    assert "libreshard" in checks["native library"]["value"]
    assert machine_checks._loaded_file("libnonesuch") is None


def test_libraries_are_found_in_wheels_and_on_the_path(tmp_path, monkeypatch):
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").write_bytes(b"")
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = {check.name: check for check in machine_checks._libraries()}
    assert found["libnccl.so.2"].value == str(folder / "libnccl.so.2")
    assert found["libcuda.so.1"].value == str(tmp_path / "libcuda.so.1")


def test_shared_memory_that_does_not_work(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_checks, "_SHARED_MEMORY", tmp_path / "nowhere")
    found = [check for check in machine_checks._machine() if check.name.endswith("nowhere")]
    assert [check.status for check in found] == ["missing"]
    assert next(machine_checks._usable(True, True)).status == "ok"
    usable = {check.name: check.status for check in machine_checks._usable(True, False)}
    assert usable["shm"] == "missing"


@pytest.mark.processes
def test_no_framework_and_no_cuda_is_loaded():
    code = """
import sys
from reshard.cli import main
main(["doctor"])
maps = open("/proc/self/maps").read()
unwanted = {"torch", "jax", "jaxlib", "numpy", "ml_dtypes"}
sys.stderr.write(f"{sorted(unwanted & set(sys.modules))} {'libcuda' in maps}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stderr == "[] False"
