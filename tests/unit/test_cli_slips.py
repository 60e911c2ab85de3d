"""Slips on the command line: what was meant is said, and nothing that was given is ignored."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.command_line import call, tiny_model, write_model

from reshard import Model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("plna",), "'plan'"),
        (("plan", "deepseek-v3", "--topolgy", "none"), "'--topology'"),
        (("plan", "deepseek-v3", "--experts", "seperate"), "'separate'"),
        (("lint", "deepseek-v3", "--srict"), "'--strict'"),
    ],
)
def test_what_was_meant_is_said(capsys, arguments, meant):
    done = call(capsys, *arguments)
    assert done.code == 2
    assert f"Did you mean {meant}?" in done.err


def test_nothing_is_meant_by_what_is_like_nothing(capsys):
    assert "Did you mean" not in call(capsys, "qqqq").err
    assert "Did you mean" not in call(capsys, "plan", "deepseek-v3", "--zzzzzz", "1").err


def test_an_empty_text_is_not_a_default(model, capsys):
    done = call(capsys, "plan", model, "--from", "")
    assert done.code == 2
    assert "--from '': parallelism '': '' is no degree" in done.err


def test_two_casts_of_one_type_are_refused(model, capsys):
    casts = ["--cast", "float32:bfloat16", "--cast", "float16:bfloat16"]
    done = call(capsys, "plan", model, *casts)
    assert done.code == 2
    assert "--cast float32:bfloat16 and --cast float16:bfloat16" in done.err
    assert call(capsys, "plan", model, *casts[:2], *casts[:2]).code == 0


def test_a_cast_without_use_is_told(model, capsys):
    done = call(capsys, "plan", model, "--cast", "bfloat16:float8_e4m3fn")
    assert "--cast bfloat16:float8_e4m3fn changes nothing" in done.out
    assert "changes nothing" not in call(capsys, "plan", model, "--cast", "float32:bfloat16").out


@pytest.mark.parametrize("text", ["1.5", "0", "0.0001KiB", "MiB", "12 potatoes"])
def test_a_budget_is_a_whole_number_of_bytes(model, capsys, text):
    done = call(capsys, "plan", model, "--staging", text)
    assert done.code == 2
    assert f"--staging {text}: not a number of bytes" in done.err


def test_a_part_of_a_unit_is_a_number_of_bytes(model, capsys):
    done = call(capsys, "plan", model, "--staging", "1.5MiB", "--json")
    assert done.document["planned"]["staging_bytes"] == 3 << 19


def test_what_describes_a_model_has_no_meaning_for_two_files(model, capsys, tmp_path):
    path = tmp_path / "plan.json"
    call(capsys, "plan", model, "--output", path)
    done = call(capsys, "diff", path, path, "--from", "tp2", "--topology", "dgx-h100")
    assert done.code == 2
    assert "two plans were given, so --from, --topology has no meaning" in done.err
    assert call(capsys, "diff", path, path).code == 0


def test_written_files_are_named(model, capsys, tmp_path):
    page, document = tmp_path / "page.html", tmp_path / "plan.json"
    done = call(capsys, "plan", model, "--html", page, "--output", document)
    assert done.out.rstrip().endswith(f"Written: {document}, {page}")
    assert "Written" not in call(capsys, "plan", model).out


def test_a_full_disk_names_the_file(model, capsys):
    done = call(capsys, "plan", model, "--output", "/dev/full")
    assert done.code == 2
    assert "--output /dev/full: No space left on device" in done.err


def test_all_types_of_a_kind_are_told(capsys, tmp_path):
    """Of two layers, one stores another type."""
    model = tiny_model()
    parameters = [
        dataclasses.replace(each, dtype="float32")
        if each.name == "model.layers.1.self_attn.q_proj.weight"
        else each
        for each in model.parameters
    ]
    path = tmp_path / "mixed.json"
    path.write_text(dataclasses.replace(model, parameters=tuple(parameters)).to_json())
    rows = call(capsys, "plan", path).out.splitlines()
    (row,) = [row for row in rows if "q_proj" in row]
    assert row.rstrip().endswith("bfloat16, float32")
    assert Model.load(str(path)).num_layers == 2
