"""Which local elements are padding."""

from __future__ import annotations

from reshard import Box, BoxLayout, Form, Layout, LocalBox, Mesh, Part, Replicate, Shard, TensorSpec
from reshard.padding import padding_regions


def vocabulary(layout, stored=16, logical=10):
    part = Part("embed", Form("rows e -> rows e", {"rows": logical}))
    return TensorSpec("embed", (stored, 4), "float32", layout, (part,), "zero")


def test_layout_case_d8_padding_lies_on_the_last_ranks():
    spec = vocabulary(Layout(Mesh.of(tp=4), (Shard(0),)))
    assert [padding_regions(spec, rank) for rank in range(4)] == [
        [],
        [],
        [Box((2, 0), (2, 4))],
        [Box((0, 0), (4, 4))],
    ]


def test_replicas_have_all_of_it():
    spec = vocabulary(Layout(Mesh.of(dp=2), (Replicate(),)))
    assert padding_regions(spec, 1) == [Box((10, 0), (6, 4))]


def test_places_are_those_of_the_local_array():
    box = LocalBox(Box((8, 0), (4, 4)), (3, 0))
    spec = vocabulary(BoxLayout({0: [box]}))
    assert padding_regions(spec, 0) == [Box((5, 0), (2, 4))]


def test_ranks_outside_have_none():
    assert padding_regions(vocabulary(Layout(Mesh.of(tp=4), (Shard(0),))), 9) == []


def test_what_parts_cover_is_no_padding():
    spec = TensorSpec("w", (16, 4), "float32", Layout(Mesh.of(tp=4), (Shard(0),)))
    assert padding_regions(spec, 3) == []
