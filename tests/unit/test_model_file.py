"""Model files that people wrote: what may be in them, and what is refused."""

from __future__ import annotations

import json

import pytest

from reshard import LayoutError, Model

ROW = {"name": "l.{layer}.w", "shape": [4, 2], "rule": "column", "layers": "0-1,3"}
LAST = {"name": "head", "shape": [4], "rule": "replicated", "layer": "last"}
FILE = {
    "format": "reshard-model-1",
    "name": "mine",
    "dtype": "bfloat16",
    "num_layers": 4,
    "layer_sets": {"even": "0,2"},
    "parameters": [ROW, {**ROW, "name": "l.{layer}.v", "layers": "even"}, LAST],
}


def load(tmp_path, found):
    path = tmp_path / "model.json"
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    return Model.load(path)


def test_rows_are_laid_out_layer_by_layer(tmp_path):
    model = load(tmp_path, FILE)
    names = [parameter.name for parameter in model.parameters]
    assert names == ["l.0.w", "l.0.v", "l.1.w", "l.2.v", "l.3.w", "head"]
    assert [parameter.layer for parameter in model.parameters] == [0, 0, 1, 2, 3, "last"]


def test_optional_fields(tmp_path):
    row = {**ROW, "rule": "kv", "num_kv_heads": 2, "dtype": "float32"}
    more = {"source": "here", "trainer": "tp2", "generator": "tp4", "pipeline_splits": [[1, 3]]}
    model = load(tmp_path, {**FILE, **more, "parameters": [row]})
    assert (model.source, model.trainer, model.generator) == ("here", "tp2", "tp4")
    assert model.pipeline_splits == ((1, 3),)
    assert {(p.num_kv_heads, str(p.dtype)) for p in model.parameters} == {(2, "float32")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "reshard-model-9"}, "nor a model of format 'reshard-model-1'"),
        ({"format": None}, "neither an index of a checkpoint"),
        ({"color": "red"}, "it has color.* may have"),
        ({"num_layers": "4"}, "num_layers is '4'. Give a whole number"),
        ({"num_layers": -1, "layer_sets": {}, "parameters": []}, "num_layers=-1 is not from 0"),
        ({"num_layers": 10**9}, "is not from 0 to"),
        ({"name": 3}, "name is 3"),
        ({"parameters": {}}, "parameters is {}"),
        ({"parameters": [3]}, r"parameters\[0\]: 3 is no object"),
        ({"layer_sets": []}, r"layer_sets is \[\]"),
        ({"layer_sets": {"a": "9"}}, "'9' are outside of the 4 layers"),
        ({"layer_sets": {"a": "0-999999999999"}}, "outside of the 4 layers"),
        ({"pipeline_splits": [4]}, "is no list of lists of numbers"),
        ({"pipeline_splits": [[1, 2]]}, "are 3 layers, the model has 4"),
        ({"trainer": 3}, "trainer is 3"),
        ({"notes": "x"}, "notes is 'x'"),
        ({"experts": "bundled"}, "experts='bundled' is unknown"),
        ({"parameters": [LAST, LAST]}, "comes twice"),
    ],
)
def test_files_that_are_refused(changes, message, tmp_path):
    with pytest.raises(LayoutError, match=message):
        load(tmp_path, {**FILE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, r"parameters\[0\] 'l.{layer}.w': it has colour"),
        ({"rule": "odd"}, "rule 'odd' is unknown"),
        ({"layer": 0}, "give either 'layers'"),
        ({"layers": "odd"}, "'odd' are no set of layers"),
        ({"layers": 3}, "3 are no set of layers"),
        ({"layers": ["0"]}, "are no set of layers"),
        ({"layers": "2-1"}, "must ascend"),
        ({"layers": "1,1"}, "must ascend"),
        ({"layers": "0-4"}, "'0-4' are outside"),
        ({"name": "w"}, "its name has no {layer}"),
        ({"name": None}, "name is None"),
        ({"shape": "big"}, "shape is 'big'"),
        ({"shape": [4, -2]}, "its shape is"),
    ],
)
def test_rows_that_are_refused(changes, message, tmp_path):
    with pytest.raises(LayoutError, match=message):
        load(tmp_path, {**FILE, "parameters": [{**ROW, **changes}]})


@pytest.mark.parametrize("missing", ["name", "dtype", "num_layers", "parameters"])
def test_fields_that_are_needed(missing, tmp_path):
    with pytest.raises(LayoutError, match=f"it lacks {missing}"):
        load(tmp_path, {key: value for key, value in FILE.items() if key != missing})


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[]", "holds a list"), ("[" * 100_000, "not JSON")]
)
def test_texts_that_are_no_json_object(text, message, tmp_path):
    with pytest.raises(LayoutError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("reshard.json_file.MAX_JSON_BYTES", 10)
    with pytest.raises(LayoutError, match="more than the 10 bytes"):
        load(tmp_path, FILE)
