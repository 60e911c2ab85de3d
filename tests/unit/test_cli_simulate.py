"""`reshard simulate`: moves, checks, and tells a wrong element."""

from __future__ import annotations

import sys

import pytest
from helpers.command_line import call, write_model

from reshard import simulation
from reshard.parameter import Parameter


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def test_a_right_move(model, capsys):
    done = call(capsys, "simulate", model, "--topology", "dgx-h100")
    assert done.code == 0
    assert "destination arrays are right" in done.out
    assert "moved at hop 0" in done.out


def test_document(model, capsys):
    done = call(capsys, "simulate", model, "--json", "--cast", "float32:bfloat16")
    assert done.code == 0
    assert set(done.document) == {
        *("model", "model_bytes", "num_ranks", "digest", "num_arrays", "num_elements"),
        *("num_wrong_elements", "moved_bytes_per_hop", "copied_bytes", "move_seconds"),
        *("check_seconds", "wrong_arrays", "times_larger"),
        *("striped_bytes", "exchanged_bytes", "relayed_bytes"),
    }
    assert done.document["num_ranks"] == 8
    assert done.document["num_wrong_elements"] == 0


def test_boxes_are_cut_as_those_of_the_large_model(capsys, tmp_path):
    large = Parameter("model.embed_tokens.weight", (1 << 16, 64), "bfloat16", "vocab", "first")
    model = write_model(tmp_path, parameters=[large])
    arguments = ["--from", "dp4", "--to", "dp4", "--topology", "gb200-nvl72:4", "--layers", 2]
    document = call(capsys, "simulate", model, *arguments, "--json").document
    assert document["num_wrong_elements"] == 0
    assert document["times_larger"] == large.nbytes // document["model_bytes"]
    nbytes = document["model_bytes"]
    assert document["striped_bytes"] == document["moved_bytes_per_hop"][0] == nbytes
    assert document["exchanged_bytes"] == 3 * nbytes
    assert document["relayed_bytes"] == 0
    assert "passed on inside domains" in call(capsys, "simulate", model, *arguments).out


def test_a_wrong_element_is_named_and_fails(model, capsys, monkeypatch):
    honest = simulation.run_in_process

    def corrupting(plan, sources, **options):
        results = honest(plan, sources, **options)
        array = results[6]["model.layers.1.self_attn.q_proj.weight"]
        array.view("u2")[0, 3] ^= 1
        return results

    monkeypatch.setattr(simulation, "run_in_process", corrupting)
    done = call(capsys, "simulate", model)
    assert done.code == 1
    assert "WRONG: 1 of 28 destination arrays" in done.out
    row = next(line for line in done.out.splitlines() if line.startswith("model.layers.1"))
    assert row.split()[:4] == ["model.layers.1.self_attn.q_proj.weight", "6", "[0,", "3]"]
    document = call(capsys, "simulate", model, "--json").document
    assert document["num_wrong_elements"] == 1
    assert document["wrong_arrays"][0]["index"] == [0, 3]


def test_fewer_layers(model, capsys):
    arguments = ["simulate", model, "--from", "tp2", "--layers", 1, "--json"]
    assert call(capsys, *arguments).document["num_arrays"] == 4 * 4


def test_a_missing_ml_dtypes_is_told_before_anything_is_planned(model, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    done = call(capsys, "simulate", model, "--layers", 100)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("no bfloat16. Install what adds it: pip install ml_dtypes.\n")


def test_many_arrays_bring_a_hint_at_fewer_layers(model, capsys, monkeypatch):
    monkeypatch.setattr("reshard.cli.simulate._MANY_ARRAYS", 27)
    assert "such as --layers 16" in call(capsys, "simulate", model, "--from", "tp2").err
    assert call(capsys, "simulate", model, "--from", "tp2", "--layers", 2).err == ""
