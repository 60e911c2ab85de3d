"""`reshard diff`: two plans by their arguments, or from files."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import call, write_model

from reshard.cli.diff import differences
from reshard.cli.field_words import words_of


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def written(capsys, model, path, *arguments):
    call(capsys, "plan", model, "--json", "--output", path, *arguments)
    return path


def test_equal_plans(model, capsys):
    done = call(capsys, "diff", model, "--other-to", "tp4")
    assert done.code == 0
    assert done.out.startswith("equal, digest ")


def test_other_degrees(model, capsys):
    done = call(capsys, "diff", model, "--other-to", "tp2,dp2")
    assert done.code == 1
    assert "moved between ranks" in done.out
    assert "model.layers.*.self_attn.q_proj.weight" in done.out
    assert "+100.0 %" in done.out


def test_document(model, capsys):
    done = call(capsys, "diff", model, "--other-to", "tp2,dp2", "--json")
    document = done.document
    assert set(document) == {"is_equal", "first_digest", "second_digest", "differences"}
    assert document["is_equal"] is False
    assert all(
        set(each) == {"subject", "field", "first", "second"} for each in document["differences"]
    )
    fields = {each["field"] for each in document["differences"] if not each["subject"]}
    assert {"moved_bytes", "sums.received_by_destinations.total_bytes"} <= fields


def test_another_topology(model, capsys):
    done = call(capsys, "diff", model, "--other-topology", "one-host", "--json")
    fields = {each["field"] for each in done.document["differences"]}
    assert done.code == 1
    assert {"topology.name", "floor.seconds"} <= fields


def test_topologies_of_one_name_are_told_apart(model, capsys):
    arguments = ["diff", model, "--topology", "gb200-nvl72:4", "--other-topology", "gb200-nvl72:5"]
    done = call(capsys, *arguments)
    assert done.code == 1
    row = next(line for line in done.out.splitlines() if line.startswith("topology "))
    assert row.split() == ["topology", "gb200-nvl72:4", "gb200-nvl72:5"]
    other = call(capsys, "diff", model, "--topology", "dgx-h100", *arguments[4:])
    assert sum(line.startswith("topology ") for line in other.out.splitlines()) == 1


def test_another_budget(model, capsys):
    done = call(capsys, "diff", model, "--staging", "64MiB", "--other-staging", "32MiB")
    assert done.code == 1
    row = next(line for line in done.out.splitlines() if line.startswith("staging of each rank"))
    assert row.split()[4:] == ["64", "MiB", "32", "MiB", "-50.0", "%"]
    assert call(capsys, "diff", model, "--staging", "1MiB", "--other-staging", "1024KiB").code == 0


def test_what_was_asked_for_may_be_told_in_two_ways(model, capsys, tmp_path):
    one = written(capsys, model, tmp_path / "one.json")
    document = json.loads(one.read_text())
    document["planned"]["model"] = "the same by another name"
    (tmp_path / "other.json").write_text(json.dumps(document))
    assert call(capsys, "diff", one, tmp_path / "other.json").code == 0


@pytest.mark.parametrize("topology", ["none", "dgx-h100"])
def test_every_field_has_words_of_its_own(topology, model, capsys):
    document = call(capsys, "plan", model, "--topology", topology, "--json").document
    other = call(capsys, "plan", model, "--from", "tp2", "--to", "tp2", "--json").document
    nothing = {"kinds": [], "loads": {}}
    fields = [each.field for each in differences(document | other, nothing)]
    fields += [each.field for each in differences(document, nothing)]
    words = {field: words_of(field) for field in fields}
    assert len(words) > 40
    assert {field for field, text in words.items() if set("_.") & set(text)} == set()
    assert len(set(words.values())) == len(words)


def test_words_of_the_fields_of_kinds(model, capsys):
    (kind, *_) = call(capsys, "plan", model, "--json").document["kinds"]
    texts = {words_of(name) for name in kind if name not in ("name", "src", "dst")}
    assert all("_" not in text for text in texts)


def test_ranks_and_lists_are_words(model, capsys):
    out = call(capsys, "diff", model, "--other-to", "tp2").out
    assert "4 (4 to 7)" in out
    assert "2 (4 to 5)" in out
    assert "[" not in out


def test_files(model, capsys, tmp_path):
    one = written(capsys, model, tmp_path / "one.json")
    same = written(capsys, model, tmp_path / "same.json")
    other = written(capsys, model, tmp_path / "other.json", "--from", "tp4")
    assert call(capsys, "diff", one, same).code == 0
    done = call(capsys, "diff", one, other)
    assert done.code == 1
    assert done.out == call(capsys, "diff", model, "--other-from", "tp4").out


def test_plans_that_differ_in_their_digest_alone(model, capsys, tmp_path):
    one = written(capsys, model, tmp_path / "one.json")
    document = json.loads(one.read_text()) | {"digest": "0" * 64}
    (tmp_path / "other.json").write_text(json.dumps(document))
    done = call(capsys, "diff", one, tmp_path / "other.json")
    assert done.code == 1
    assert "what they move and carry is the same" in done.out


def test_a_file_that_lacks_something(model, capsys, tmp_path):
    one = written(capsys, model, tmp_path / "one.json")
    document = json.loads(one.read_text())
    del document["kinds"]
    (tmp_path / "other.json").write_text(json.dumps(document))
    done = call(capsys, "diff", one, tmp_path / "other.json")
    assert done.code == 2
    assert "field 'kinds' is missing" in done.err
