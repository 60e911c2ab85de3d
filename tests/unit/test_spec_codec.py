"""Specs as bytes; round trips of random specs are in property/test_value_laws.py."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import reshard
from reshard import (
    Box,
    BoxLayout,
    Elementwise,
    Form,
    Layout,
    LayoutError,
    LocalBox,
    Mesh,
    Part,
    SegmentedLayout,
    Shard,
    TensorSpec,
)
from reshard.spec_codec import decode_specs, encode_specs

TP = Layout(Mesh.of(tp=2), (Shard(0),))
FORM = Form("(f i) e -> e f", {"i": 2}, {"i": 1})
SPECS = [
    TensorSpec("a", (8, 4), "float8_e5m2", TP),
    TensorSpec("b", (8, 4), "bool", TP, (Part("c", FORM, ("d",)),), "keep"),
    TensorSpec("g", (8, 4), "bfloat16", TP, Part("h", FORM, (), Elementwise(0.1, 3, -1)), "keep"),
    TensorSpec("i", (8, 4), "float32", TP, Part("j", elementwise=Elementwise(offset=1e-300))),
    TensorSpec("e", (8, 4), "int64", SegmentedLayout(0, (4, 4), (TP, TP))),
    TensorSpec("f", (8, 4), "complex64", BoxLayout({1: Box((0, 0), (8, 4))})),
]


def test_every_kind_of_layout_and_part_survives():
    assert decode_specs(encode_specs(SPECS)) == SPECS


def test_no_specs_are_no_specs():
    assert decode_specs(encode_specs([])) == []


def test_equal_specs_give_equal_bytes_whoever_made_them():
    again = [eval(repr(spec), {**globals(), **vars(reshard)}) for spec in SPECS]
    assert encode_specs(again) == encode_specs(SPECS)


def test_equal_layouts_are_written_once_and_are_one_object_again():
    specs = [
        TensorSpec(f"w{i}", (8, 4), "int8", Layout(Mesh.of(tp=2), (Shard(0),))) for i in range(100)
    ]
    data = encode_specs(specs)
    decoded = decode_specs(data)
    assert len({id(spec.layout) for spec in decoded}) == 1
    assert len(data) < 100 * 30


def test_equal_forms_are_one_object_again():
    specs = [TensorSpec(f"w{i}", (8, 4), "int8", TP, (Part("c", FORM),), "keep") for i in range(2)]
    first, second = decode_specs(encode_specs(specs))
    assert first.parts[0].form is second.parts[0].form


def test_a_layout_of_an_unknown_class_is_refused():
    class Other:
        ranks = (0,)

        def check(self, shape):
            pass

    with pytest.raises(LayoutError, match="w: layout of type Other cannot be sent"):
        encode_specs([TensorSpec("w", (2,), "int8", Other())])


def numbered(number):
    """Returns one spec of every kind, with all its numbers made by `number`."""
    one, two, four = map(number, (1, 2, 4))
    tp = Layout(Mesh(("tp",), (two,), (one, two)), (Shard(number(0), one),))
    boxes = [LocalBox(Box((number(0),), (four,)), (number(0),))]
    segment = Form("f -> f", {"f": two}, start={number(0): two})
    return [
        TensorSpec(
            "a", (two, four), "int8", tp, Part("c", Form("a i -> a", (), {"i": one})), "keep"
        ),
        TensorSpec("b", (four,), "int8", BoxLayout({one: boxes}), Part("d", segment), "keep"),
        TensorSpec("e", (four,), "int8", SegmentedLayout(number(0), (two, two), (tp, tp))),
    ]


@pytest.mark.parametrize("number", [np.int64, np.uint8, np.int16])
def test_numbers_of_any_kind_are_sent_as_plain_ones(number):
    assert encode_specs(numbered(number)) == encode_specs(numbered(int))
    for spec in numbered(number):
        assert eval(repr(spec), vars(reshard)) == spec


class Unknown(Layout):
    __hash__ = None


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("model.w", (2**70,), "int8", TP),
        TensorSpec("model.w", (4,), "int8", Layout(Mesh(("tp",), (1,), (2**64,)), (Shard(0),))),
        TensorSpec("model.w", (4,), "int8", TP, Part("\udc80")),
        TensorSpec("model.w", (4,), "int8", Unknown(TP.mesh, TP.placements)),
    ],
    ids=["shape", "rank", "name", "layout"],
)
def test_what_cannot_be_sent_is_named(spec):
    with pytest.raises(LayoutError, match=r"'model\.w': its spec cannot be sent .* Make it of"):
        encode_specs([*SPECS, spec])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"hello",
        msgspec.msgpack.encode(1),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([[], [1]]),
        msgspec.msgpack.encode([[], [["w", [2], 0, 0, [], "keep"]]]),
        msgspec.msgpack.encode([[["odd"]], []]),
        msgspec.msgpack.encode([[["mesh", 1, 2, 3, 4]], []]),
        encode_specs(SPECS)[:-1],
    ],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(LayoutError):
        decode_specs(data)


def test_values_that_no_spec_can_have_are_refused():
    plain = msgspec.msgpack.decode(encode_specs([TensorSpec("w", (8, 4), "int8", TP)]))
    for column, value in ((1, [-8, 4]), (2, 99), (3, 7), (5, "fill")):
        changed = [plain[0], [list(plain[1][0])]]
        changed[1][0][column] = value
        with pytest.raises(LayoutError):
            decode_specs(msgspec.msgpack.encode(changed))
