"""What show_versions tells for bug reports."""

from __future__ import annotations

import platform
import sys

import reshard


def test_versions_of_what_is_installed(capsys):
    reshard.show_versions()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"python {platform.python_version()} on ")
    assert any(line.startswith("msgspec ") for line in lines)
    assert any(line.startswith("native version: ") for line in lines)


def test_what_is_not_there_of_nvidia_is_told(capsys, monkeypatch):
    for name in ("nccl_copies.find_nccl", "device_kernels.find_nvrtc"):
        monkeypatch.setattr(f"reshard.{name}", list)
    monkeypatch.setattr("reshard.nccl_copies.loaded_files", lambda stem: [])
    reshard.show_versions()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "nccl: found nowhere",
        "nvrtc: found nowhere",
        "cuda: no driver is loaded",
    ]


def test_a_missing_native_library_is_told_and_not_raised(capsys, monkeypatch):
    for name in ("_native", "_native_border"):
        monkeypatch.delitem(sys.modules, f"reshard.{name}", raising=False)
        monkeypatch.delattr(reshard, name, raising=False)
    monkeypatch.setitem(sys.modules, "reshard._native_bindings", None)
    reshard.show_versions()
    assert "cannot load the native library of reshard" in capsys.readouterr().out
