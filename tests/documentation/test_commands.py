"""docs/cli.md shows what the commands write, and names every field of their documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import call, write_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pages_show_what_commands_write():
    done = subprocess.run(
        [sys.executable, "docs/commands.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_has_an_example():
    shown = re.findall(r"^\$ reshard (\w+)", PAGE, re.MULTILINE)
    assert list(dict.fromkeys(shown)) == ["plan", "explain", "lint", "diff", "simulate", "doctor"]


def fields_of(document):
    """Yields the names of all fields, however deep."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield name
            yield from fields_of(value)
    elif isinstance(document, list):
        for value in document[:3]:
            yield from fields_of(value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "MODEL", "--topology", "dgx-h100"],
        ["explain", "MODEL", "model.embed_tokens.weight", "5"],
        ["lint", "MODEL"],
        ["diff", "MODEL", "--other-to", "tp2,dp2"],
        ["simulate", "MODEL"],
        ["doctor"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_field_is_explained(arguments, capsys, tmp_path):
    model = write_model(tmp_path)
    done = call(capsys, *[model if each == "MODEL" else each for each in arguments], "--json")
    section = re.search(rf"^## {arguments[0]}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    explained = set(re.findall(r"`(\w+)`", section[1]))
    values = {"v", "tiny"}
    assert set(fields_of(done.document)) - explained - values == set()


def test_every_option_is_explained(capsys):
    options = set(re.findall(r"(--[\w-]+)", call(capsys, "plan", "--help").out))
    assert {option for option in options if option not in PAGE} == {"--help"}


def test_the_example_of_doctor_has_its_sections(capsys):
    example = PAGE[PAGE.index("$ reshard doctor") :]
    for line in call(capsys, "doctor").out.splitlines():
        if line and not line.startswith(" "):
            assert f"\n{line}\n" in example
