"""Builds and runs the native benchmark of pack and unpack, and reads its table.

The native program verifies every case element by element before it times it, and compares with
memcpy in the same process on one thread. A case is cut in three ways: `whole` is one call for all
of it; `chunked` is one call per chunk of the executor's size, which is what the targets are about;
`slots` has the chunks pass through the slots of a ring.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

from benchmarks import report
from benchmarks.machine import ROOT, describe_machine
from benchmarks.results import PackResult, PackResults
from benchmarks.targets import judge_packs

__all__ = ["main", "measure"]

_BUILD = ROOT / "build" / "native-benchmarks"
_BUILD_LIMIT_S = 600.0
_RUN_LIMIT_S = 300.0
_ROW = re.compile(
    r"(?P<operation>\S.*?)\s+(?P<cut>whole|chunked|slots)\s+(?P<low>[\d.]+)\s+(?P<median>[\d.]+)"
    r"\s+(?P<high>[\d.]+)\s+(?P<speed>[\d.]+)\s+(?P<ratio>[\d.]+)(?:\s+(?P<target>[\d.]+))?"
)


def measure(*, quick: bool) -> PackResults:
    """Runs the native benchmark.

    Raises:
        RuntimeError: if it cannot be built or gives wrong bytes; with its output.
    """
    machine = describe_machine()
    command = [str(_build()), *(["--quick"] if quick else [])]
    output = _run(command, _RUN_LIMIT_S)
    packs = [_parsed(match) for match in map(_ROW.match, output.splitlines()) if match]
    if not packs:
        message = f"{command[0]} printed no table:\n{output}"
        raise RuntimeError(message)
    return PackResults(machine, packs)


def _parsed(row: re.Match[str]) -> PackResult:
    return PackResult(
        operation=row["operation"],
        cut=row["cut"],
        ratio=float(row["ratio"]),
        target=float(row["target"] or 0),
        milliseconds=(float(row["low"]), float(row["median"]), float(row["high"])),
        bytes_per_second=float(row["speed"]) * 1e9,
    )


def _build() -> pathlib.Path:
    """Compiles the program with optimisation, once; returns its path."""
    search = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    cmake, ninja = (shutil.which(tool, path=search) for tool in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        message = "cmake or ninja is missing: pip install cmake ninja"
        raise RuntimeError(message)
    configure = [cmake, "-S", str(ROOT / "native"), "-B", str(_BUILD), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Release"]
    report.progress("  building the native benchmark")
    _run(configure, _BUILD_LIMIT_S)
    _run([cmake, "--build", str(_BUILD), "--target", "pack_speed", "-j2"], _BUILD_LIMIT_S)
    return _BUILD / "benchmarks" / "pack_speed"


def _run(command: list[str], limit_s: float) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode != 0:
        message = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
        raise RuntimeError(message)
    return done.stdout


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "pack_speed.json")
    options = parser.parse_args(arguments)
    results = measure(quick=options.quick)
    report.write(results, options.output)
    report.print_packs(results)
    report.print_verdicts(judge_packs(results.packs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
