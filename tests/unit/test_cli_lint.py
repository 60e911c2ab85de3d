"""`reshard lint`: exit codes, tables, documents."""

from __future__ import annotations

import pytest
from helpers.command_line import call, tiny_model, write_model

from reshard.parameter import Parameter


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def other_model(tmp_path):
    """Returns a model that lacks the last parameter and has one more."""
    model = tiny_model()
    last = model.parameters[-1]
    folder = tmp_path / "other"
    folder.mkdir()
    renamed = type(last)("surprise.weight", last.shape, last.dtype, "replicated", 1)
    return write_model(folder, parameters=(*model.parameters[:-1], renamed))


def test_notes_and_warnings_are_no_failure(model, capsys):
    done = call(capsys, "lint", model)
    assert done.code == 0
    assert "0 errors" in done.out
    assert "small-messages" in done.out


def test_strict_fails_for_warnings(model, capsys):
    assert call(capsys, "lint", model, "--strict").code == 1


def test_names_without_a_partner_are_all_listed(model, capsys, tmp_path):
    done = call(capsys, "lint", model, "--to-model", other_model(tmp_path))
    assert done.code == 1
    assert done.err == ""
    assert "surprise.weight" in done.out
    assert "model.layers.1.self_attn.o_proj.weight" in done.out


def test_other_commands_count_them_in_one_line(model, capsys, tmp_path):
    done = call(capsys, "plan", model, "--to-model", other_model(tmp_path))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert (
        "6 pair up by name, shape and type, 2 problems. 'reshard lint' with the same arguments"
        in done.err
    )


def test_other_commands_name_the_only_one(model, capsys, tmp_path):
    allowed = ["--allow-unmatched", "surprise.*"]
    done = call(capsys, "plan", model, "--to-model", other_model(tmp_path), *allowed)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "1 problem: model.layers.1.self_attn.o_proj.weight: no destination takes" in done.err


def test_document(model, capsys, tmp_path):
    done = call(capsys, "lint", model, "--to-model", other_model(tmp_path), "--json")
    document = done.document
    assert set(document) == {"num_errors", "num_warnings", "num_notes", "findings"}
    assert document["num_errors"] == 2
    assert all(
        set(finding) == {"severity", "code", "subject", "message"}
        for finding in document["findings"]
    )
    assert [finding["code"] for finding in document["findings"]] == ["uncovered", "unused"]


def test_names_may_be_allowed(model, capsys, tmp_path):
    allowed = ["--allow-unmatched", "surprise.*", "--allow-unmatched", "*.1.self_attn.o_proj.*"]
    done = call(capsys, "lint", model, "--to-model", other_model(tmp_path), *allowed)
    assert done.code == 0


def test_rules_that_apply_to_nothing_are_warnings(capsys, tmp_path):
    large = Parameter("w.weight", (4096, 64), "bfloat16", "vocab", "first")
    arguments = ["lint", write_model(tmp_path, parameters=(large,)), "--from", "tp2", "--to", "tp2"]
    given = ["--allow-unmatched", "x.*", "--cast", "float32:float16"]
    document = call(capsys, *arguments, *given, "--json").document
    assert [(f["severity"], f["code"], f["subject"]) for f in document["findings"]] == [
        ("warning", "idle-rule", "float32 to float16"),
        ("warning", "idle-rule", "x.*"),
    ]
    assert call(capsys, *arguments, *given).code == 0
    assert call(capsys, *arguments, *given, "--strict").code == 1


def test_parameters_that_no_rule_knows(capsys, tmp_path):
    names = ["model.layers.0.self_attn.o_proj.weight", "model.layers.1.self_attn.o_proj.weight"]
    model = write_model(tmp_path, unknown_names=names)
    document = call(capsys, "lint", model, "--json").document
    found = [f for f in document["findings"] if f["code"] == "unknown-rule"]
    assert [f["subject"] for f in found] == ["model.layers.*.self_attn.o_proj.weight"]
    assert "(2 tensors)" in found[0]["message"]


def test_a_budget_that_is_too_small_is_an_error(model, capsys):
    done = call(capsys, "lint", model, "--staging", "1KiB", "--json")
    assert done.code == 1
    assert done.document["findings"][0]["code"] == "staging"


def test_what_a_model_notes_is_said(capsys, tmp_path):
    document = call(
        capsys, "lint", write_model(tmp_path, notes=["sizes disagree"]), "--json"
    ).document
    (finding,) = [f for f in document["findings"] if f["code"] == "model"]
    assert (finding["severity"], finding["message"]) == ("note", "sizes disagree")


def test_what_the_models_note_is_said_of_the_one_that_notes_it(capsys, tmp_path):
    (tmp_path / "other").mkdir()
    unknown = "model.layers.1.self_attn.o_proj.weight"
    surprise = Parameter("surprise.weight", (4, 4), "bfloat16", "replicated", "last")
    other = write_model(
        tmp_path / "other",
        notes=["sizes disagree"],
        name="engine",
        unknown_names=[unknown, "surprise.weight"],
        parameters=[*tiny_model().parameters, surprise],
    )
    arguments = ["--to-model", other, "--allow-unmatched", "surprise.*", "--json"]
    document = call(capsys, "lint", write_model(tmp_path), *arguments).document
    (finding,) = [f for f in document["findings"] if f["code"] == "model"]
    assert (finding["subject"], finding["message"]) == ("engine", "sizes disagree")
    unknown = [f["subject"] for f in document["findings"] if f["code"] == "unknown-rule"]
    assert unknown == ["model.layers.*.self_attn.o_proj.weight", "surprise.weight"]


def test_nothing_found(capsys, tmp_path):
    parameter = tiny_model().parameters[0]
    large = type(parameter)(parameter.name, (4096, 64), "bfloat16", "vocab", "first")
    model = write_model(tmp_path, parameters=(large,))
    done = call(capsys, "lint", model, "--from", "tp2", "--to", "tp2", "--strict")
    assert (done.code, done.out) == (0, "nothing found\n")
