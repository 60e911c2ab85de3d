"""What all commands have in common: help, errors of one line, exit codes, quiet output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import call, write_model

from reshard import LayoutError
from reshard.cli import main
from reshard.cli.arguments import read_bytes, read_topology
from reshard.cli.console import Steps, printable
from reshard.plan_text import format_seconds
from reshard.topology import Topology

COMMANDS = ("plan", "explain", "lint", "diff", "simulate", "doctor")


def script(*arguments, **options):
    path = Path(sys.executable).parent / "reshard"
    return subprocess.run(
        [path, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    done = call(capsys, command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"usage: reshard {command}")
    assert "--json" in done.out
    assert not done.err


def test_help_names_every_command_with_a_summary(capsys):
    text = call(capsys, "--help").out
    for command in COMMANDS:
        line = next(line for line in text.splitlines() if line.split()[:1] == [command])
        assert len(line.split()) > 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("plan",), "the following arguments are required: MODEL"),
        (("plan", "no-such"), "model 'no-such' is no ready-made one and no file"),
        (("plan", "{model}", "--from", "x3"), "'x3' is no degree"),
        (("plan", "{model}", "--to", "pp3"), "pp=3 stages for 2 layers"),
        (("plan", "{model}", "--topology", "moon"), "--topology moon: no ready-made one"),
        (("plan", "{model}", "--topology", "gb200-nvl72:99"), "is not from 1 to 72"),
        (("plan", "{model}", "--topology", "{model}"), "not an object with the fields"),
        (("plan", "{model}", "--topology", "{folder}"), "cannot be read"),
        (("plan", "{model}", "--staging", "much"), "--staging much: not a number of bytes"),
        (("plan", "{model}", "--staging", "1KiB"), "is too small for"),
        (("plan", "{model}", "--cast", "float32"), "--cast float32: not two dtypes"),
        (("plan", "{model}", "--cast", "float33:bfloat16"), "dtype 'float33' is unknown"),
        (("plan", "{model}", "--output", "{folder}/no/plan.json"), "no does not exist. Give"),
        (("plan", "{model}", "--html", "{folder}"), "--html {folder}: is a folder"),
        (("plan", "deepseek-v4"), "Did you mean 'deepseek-v3'?"),
        (("plan", "{model}", "--topology", "dgx-h10"), "Did you mean 'dgx-h100'?"),
        (("plan", "{model}", "--topology", "{model}"), "{model}: topology: not an"),
        (("plan", "{model}", "--from", "tpp2"), "Did you mean 'tp'?"),
        (("explain", "{model}", "model.norm.weight", "0"), "mean 'model."),
        (("explain", "{model}", "nobody", "0"), "no tensor of this plan is called 'nobody'"),
        (("explain", "{model}", "model.embed_tokens.weight", "99"), "no rank of this plan is 99"),
        (("explain", "{model}", "model.embed_tokens.weight", "x"), "invalid int value: 'x'"),
        (("explain", "{model}", "nobody"), "no rank was given, and 'nobody' is none"),
        (("explain", "{model}", "99"), "no rank of this plan is 99"),
        (("diff", "{model}"), "only one plan"),
        (("diff", "{model}", "{model}"), "no plan of format"),
        (("diff", "{model}", "{model}", "--other-to", "tp2"), "--other-to has no meaning"),
        (("diff", "{folder}", "{model}"), "diff: '{folder}' is no file. A second argument asks"),
        (("simulate", "{model}", "--layers", "9"), "num_layers=9"),
        (("simulate", "{model}", "--layers", "1"), "--layers 1 are fewer than the 2 pipeline"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, capsys, tmp_path):
    model = write_model(tmp_path)
    places = {"model": model, "folder": tmp_path}
    done = call(capsys, *[text.format(**places) for text in arguments])
    assert done.code == 2
    assert message.format(**places) in done.err
    assert done.err.startswith("reshard")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    assert not done.out


def test_a_model_without_published_degrees_needs_them(capsys, tmp_path):
    model = write_model(tmp_path, trainer=None)
    done = call(capsys, "plan", model)
    assert done.code == 2
    assert "no published parallelism. Give --from" in done.err
    assert call(capsys, "plan", model, "--from", "tp2").code == 0


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("64MiB", 64 << 20), ("1.5 KiB", 1536), ("2gb", 2 * 10**9), ("7B", 7)],
)
def test_bytes_have_units(text, nbytes):
    assert read_bytes(text, "--staging") == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 parsec", "0x10", "1MiB1"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(LayoutError, match="not a number of bytes"):
        read_bytes(text, "--staging")


def test_topologies_by_name_and_from_files(tmp_path):
    assert read_topology("none", 8) is None
    assert read_topology("dgx-h100", 16) == Topology.dgx_h100(16)
    assert read_topology("one-host", 3) == Topology.one_host(3)
    assert read_topology("gb200-nvl72", 80) == Topology.gb200_nvl72(80)
    racks = Topology.gb200_nvl72(128, ranks_per_domain=64)
    assert read_topology("gb200-nvl72:64", 128) == racks
    (tmp_path / "racks.json").write_text(racks.to_json())
    assert read_topology(str(tmp_path / "racks.json"), 128) == racks


def test_rates_of_a_topology_file_are_bytes_per_second(tmp_path):
    path = tmp_path / "slow.json"
    path.write_text(Topology((0,) * 8, (0,) * 8, 8, 400, 450e9).to_json())
    with pytest.raises(LayoutError, match=r"nic_bytes_per_second=400 is less .* Give bytes per"):
        read_topology(str(path), 8)


def test_a_topology_file_places_all_ranks(tmp_path):
    path = tmp_path / "few.json"
    path.write_text(Topology.one_host(3).to_json())
    with pytest.raises(LayoutError, match=r"few.json: places 3 ranks, .* have 8"):
        read_topology(str(path), 8)


def test_files_are_checked_before_anything_is_planned(monkeypatch, capsys, tmp_path):
    def planned(request):
        raise ZeroDivisionError

    monkeypatch.setattr("reshard.cli.arguments.Request.plan", planned)
    for option in ("--output", "--html"):
        path = tmp_path / "no" / "file"
        done = call(capsys, "plan", write_model(tmp_path), option, path)
        assert (done.code, done.err.partition(":")[0]) == (2, "reshard")
        assert f"{option} {path}: its folder" in done.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (2.5, "2.5 s"), (0.0419, "41.9 ms"), (3e-6, "3 us")]
)
def test_times_have_units(seconds, text):
    assert format_seconds(seconds) == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_silent_where_nobody_watches(monkeypatch, capsys):
    assert list(Steps().each("working", [1, 2])) == [1, 2]
    with Steps().step("working"):
        pass
    assert capsys.readouterr().err == ""


def test_progress_is_shown_on_a_terminal_after_a_moment(monkeypatch):
    monkeypatch.setattr("reshard.cli.console._DELAY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    steps = Steps()
    for _ in steps.each("planning each rank", [1]):
        # The bar comes from a thread of its own, which this waits for.
        deadline = 10**7
        while "planning each rank" not in sys.stderr.getvalue() and deadline:
            deadline -= 1
    assert "planning each rank" in sys.stderr.getvalue()


def test_progress_of_something_quick_is_not_shown(monkeypatch):
    monkeypatch.setattr("reshard.cli.console._DELAY_S", 60.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(Steps().each("working", [1])) == [1]
    assert "working" not in sys.stderr.getvalue()


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("reshard.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130


def test_defects_are_not_hidden(monkeypatch):
    def defect(arguments):
        raise ZeroDivisionError

    monkeypatch.setattr("reshard.cli.doctor.run", defect)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


@pytest.mark.processes
def test_the_installed_script(tmp_path):
    model = write_model(tmp_path)
    done = script("plan", model, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["format"] == "reshard plan 1"
    assert done.stderr == ""
    assert script("plan", "nowhere").returncode == 2
    assert script("--version").stdout.startswith("reshard ")


@pytest.mark.processes
def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "reshard", "--version"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.startswith("reshard ")


@pytest.mark.processes
@pytest.mark.parametrize("command", ["plan", "lint"])
def test_a_reader_that_goes_away_is_no_traceback(command, tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    path = Path(sys.executable).parent / "reshard"
    done = subprocess.run(
        [path, command, write_model(tmp_path)],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.processes
def test_tables_for_an_old_terminal_are_plain_text(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = script("plan", write_model(tmp_path), env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_numbers_of_hundreds_of_digits_are_refused(tmp_path, capsys):
    model = write_model(tmp_path)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert call(capsys, "plan", model, "--output", first).code == 0
    document = json.loads(first.read_text())
    document["moved_bytes"] = 10**400
    second.write_text(json.dumps(document))
    done = call(capsys, "diff", first, second)
    assert done.code == 2
    assert "too large to work with" in done.err


def test_names_that_would_steer_a_terminal_are_written_with_escapes():
    """They come from files that somebody else made."""
    assert printable("plain \u00e9") == "plain \u00e9"
    assert printable("a\x1b[31mb\tc\nd") == "a\\x1b[31mb\\tc\nd"
