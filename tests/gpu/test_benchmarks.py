"""The benchmarks of GPUs run, on doubles or in host memory where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.source_text import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run(name: str, folder) -> dict:
    output = folder / "results.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--output", str(output)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(output.read_text())
    # Whoever reads a table made without a GPU has to be told.
    assert not results.get("caveat") or results["caveat"] in done.stdout
    return results


def test_packing(tmp_path):
    packs = run("gpu_pack", tmp_path)["packs"]
    assert [pack["operation"] for pack in packs if pack["target"] == 0.8] == [
        f"{way}, {what}"
        for what in ("rows of 64 KiB", "rows of 4 KiB", "rows of 512 B", "bf16 transpose 256 x 256")
        for way in ("pack", "unpack")
    ]


def test_issuing(tmp_path):
    cases = run("gpu_issue", tmp_path)["cases"]
    assert [(case["num_boxes"], case["num_messages"]) for case in cases] == [
        (1000, 2),
        (1000, 2000),
    ]


@pytest.mark.torch
def test_refits(tmp_path):
    pytest.importorskip("torch", reason="install it with: pip install 'reshard[torch]'")
    methods = run("gpu_refit", tmp_path)["methods"]
    assert [method["method"] for method in methods] == ["floor", "ours", "gather_broadcast"]
