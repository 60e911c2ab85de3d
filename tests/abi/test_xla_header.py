"""What we write down of XLA's interface for foreign functions is what JAX's header says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.source_text import ROOT

pytestmark = pytest.mark.jax

CHECK = ROOT / "native/tests/headers/xla_header.cc"
OURS = ROOT / "native/src/xla/xla_ffi.h"
CALLED = re.compile(r"\(\*(\w+)\)\(Xla")


def include_dir() -> Path:
    ffi = pytest.importorskip("jax.ffi", reason="needs JAX: pip install 'reshard[jax]'")
    return Path(ffi.include_dir())


def calls() -> dict[str, str]:
    """The symbol of each function that we may call."""
    return {name: f"XLA_FFI_{name}" for name in CALLED.findall(OURS.read_text())}


def complaints(folder: Path, symbols: dict[str, str], own: str | None = None) -> str:
    """Compiles the check, against another text of ours if one is given."""
    import shutil
    import subprocess

    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "these tests need a C++ compiler, as building reshard does"
    lines = [f"CALL({member}, {symbol})" for member, symbol in symbols.items()]
    (folder / "calls.inc").write_text("\n".join(lines) + "\n")
    if own is not None:
        (folder / "xla").mkdir()
        (folder / "xla/xla_ffi.h").write_text(own)
    flags = ["-std=c++17", "-fsyntax-only", f"-I{folder}"]
    flags += [f"-I{ROOT / 'native' / place}" for place in ("src", "tests")]
    flags += ["-isystem", str(include_dir())]
    done = subprocess.run(
        [compiler, *flags, str(CHECK)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


def test_the_header_of_jax_says_what_we_wrote_down(tmp_path):
    assert len(calls()) == 6
    assert complaints(tmp_path, calls()) == ""


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("kXlaStageExecute = 3", "kXlaStageExecute = 2"),
        ("kXlaFfiMinor = 3", "kXlaFfiMinor = 99"),
        ("  void* data;\n  std::int64_t ndim;", "  std::int64_t ndim;\n  void* data;"),
        ("  kAborted = 10,", "  kAborted = 9,"),
        ("  Unused Type_Register;\n", ""),
        ("  std::int32_t device_ordinal;", "  std::int64_t device_ordinal;"),
        ("  void* stream;  // out", "  int stream;"),
    ],
)
def test_another_declaration_is_refused(tmp_path, line, other):
    text = OURS.read_text()
    assert line in text
    assert "static assertion failed" in complaints(tmp_path, calls(), text.replace(line, other))


def test_another_function_is_refused(tmp_path):
    assert "static assertion failed" in complaints(tmp_path, {"RunId_Get": "XLA_FFI_Stream_Get"})
