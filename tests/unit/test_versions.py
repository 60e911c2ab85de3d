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


def test_a_missing_native_library_is_told_and_not_raised(capsys, monkeypatch):
    for name in ("_native", "_native_border"):
        monkeypatch.delitem(sys.modules, f"reshard.{name}", raising=False)
        monkeypatch.delattr(reshard, name, raising=False)
    monkeypatch.setitem(sys.modules, "reshard._native_bindings", None)
    reshard.show_versions()
    assert "cannot load the native library of reshard" in capsys.readouterr().out
