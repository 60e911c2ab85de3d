"""`reshard doctor`: what it says, what it loads, when it fails."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from helpers.command_line import call
from helpers.library_doubles import cuda_double, nccl_double

from reshard.cli import machine_checks
from reshard.cli.machine_checks import Check
from reshard.errors import UnsupportedError
from reshard.nccl_copies import NcclCopy


def test_sections_and_verdict(capsys, monkeypatch):
    def no_driver():
        raise UnsupportedError("there is none")

    monkeypatch.setattr("reshard._native_libraries.CudaLibrary", no_driver)
    done = call(capsys, "doctor")
    assert done.code == 0
    for section in ("python", "reshard", "packages", "libraries", "machine", "transports"):
        assert f"\n{section}\n" in f"\n{done.out}"
    assert re.search(r"\n  nccl +needs (NCCL and )?a GPU with its driver \[missing\]\n", done.out)
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
    assert done.out.endswith("reshard does not work here as it is set up\n")


def test_the_missing_native_library_is_told_from_the_import(monkeypatch):
    for name in ("_native", "_native_border"):
        monkeypatch.delitem(sys.modules, f"reshard.{name}", raising=False)
        monkeypatch.delattr(f"reshard.{name}", raising=False)
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


def test_copies_of_nccl_are_told_with_their_versions(tmp_path, monkeypatch):
    good = nccl_double(tmp_path / "good", "NCCL_DOUBLE_VERSION=22705")
    old = nccl_double(tmp_path / "old", "NCCL_DOUBLE_VERSION=21000")
    copies = [NcclCopy(str(good), "wheel"), NcclCopy(str(old), "system")]
    monkeypatch.setattr(machine_checks, "find_nccl", lambda: copies)
    found = {check.name: check for check in machine_checks._libraries(True)}
    first, second = found["libnccl.so.2"], found["libnccl.so.2 (2)"]
    assert (first.status, first.value) == ("ok", f"2.27.5 in {good}, of an installed wheel")
    assert second.status == "missing"
    assert "is NCCL 2.10.0, but 2.18.0 or newer is needed" in second.value
    assert second.value.endswith("It is of the system.")


def test_without_the_native_library_nothing_is_opened(monkeypatch):
    copies = [NcclCopy("/nowhere/libnccl.so.2", "named")]
    monkeypatch.setattr(machine_checks, "find_nccl", lambda: copies)
    monkeypatch.setattr(machine_checks, "several_loaded", lambda: "")
    found = {check.name: check for check in machine_checks._libraries(False)}
    assert found["libnccl.so.2"].value == "/nowhere/libnccl.so.2, named by RESHARD_NCCL_LIBRARY"
    statuses = {name: check.status for name, check in found.items() if name != "libnvrtc"}
    assert set(statuses.values()) == {"missing"}


def test_shared_memory_that_does_not_work(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_checks, "_SHARED_MEMORY", tmp_path / "nowhere")
    found = [check for check in machine_checks._machine() if check.name.endswith("nowhere")]
    assert [check.status for check in found] == ["missing"]
    assert next(machine_checks._usable(True, True, [])).status == "ok"
    usable = {check.name: check.status for check in machine_checks._usable(True, False, [])}
    assert usable["shm"] == "missing"


def test_nccl_is_usable_where_its_libraries_are():
    libraries = [Check("libraries", name, "") for name in ("libnccl.so.2", "libcuda.so.1")]
    usable = {check.name: check for check in machine_checks._usable(True, True, libraries)}
    assert usable["nccl"].status == "ok"
    usable = {check.name: check for check in machine_checks._usable(True, True, libraries[:1])}
    assert usable["nccl"].value == "needs a GPU with its driver"


def test_one_usable_copy_of_nccl_is_enough():
    libraries = [
        Check("libraries", "libnccl.so.2", "", "missing"),
        Check("libraries", "libnccl.so.2 (2)", ""),
        Check("libraries", "libcuda.so.1", ""),
    ]
    usable = {check.name: check for check in machine_checks._usable(True, True, libraries)}
    assert usable["nccl"].status == "ok"


def test_a_copy_for_a_later_cuda_than_the_drivers_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RESHARD_CUDA_LIBRARY", str(cuda_double(tmp_path)))  # of CUDA 12.8
    copies = [NcclCopy("/w/13/libnccl.so.2", "wheel", 22705, 13)]
    monkeypatch.setattr(machine_checks, "find_nccl", lambda: copies)
    found = {check.name: check for check in machine_checks._libraries(True)}
    assert found["libcuda.so.1"].value.startswith("CUDA 12.8, 2 GPUs")
    assert found["libnccl.so.2"].status == "missing"
    assert found["libnccl.so.2"].value == (
        "/w/13/libnccl.so.2, of an installed wheel, is for CUDA 13, which this driver does not "
        "support"
    )


@pytest.mark.parametrize("library", ["NCCL", "NVRTC", "CUDA"])
def test_what_a_variable_names_and_does_not_work_is_an_error(capsys, monkeypatch, library):
    variable = f"RESHARD_{library}_LIBRARY"
    monkeypatch.setenv(variable, "/nowhere")
    result = call(capsys, "doctor", "--json")
    assert result.code == 1
    (check,) = [c for c in result.document["checks"] if c["status"] == "error"]
    assert check["section"] == "libraries"
    assert "/nowhere cannot be loaded" in check["value"]
    assert variable in check["value"]
    assert "nset" in check["value"]


def test_variables_that_do_nothing_are_told(capsys, monkeypatch):
    monkeypatch.setenv("RESHARD_NCCL_LIBARY", "/opt/libnccl.so.2")
    result = call(capsys, "doctor", "--json")
    (check,) = [c for c in result.document["checks"] if c["section"] == "environment"]
    assert check["name"] == "RESHARD_NCCL_LIBARY"
    assert check["value"] == (
        "the environment variable RESHARD_NCCL_LIBARY has no effect. Did you mean "
        "'RESHARD_NCCL_LIBRARY'?"
    )


def test_several_loaded_copies_are_told(monkeypatch):
    monkeypatch.setattr(machine_checks, "several_loaded", lambda: "2 copies of NCCL are loaded")
    found = {check.name: check for check in machine_checks._libraries(False)}
    assert found["copies of NCCL"].value == "2 copies of NCCL are loaded"


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
