"""Cells of grids: which ranks hold a region is found by addition."""

from __future__ import annotations

import pytest

from reshard import Box, BoxLayout, Form, Layout, Mesh, Replicate, Shard
from reshard.grid import GridSide, NotAGrid, components_of
from reshard.logical_space import Side, make_logical_space

R = Replicate()


def sides(src_layout, dst_layout, shape=(12, 6), src_form=None, dst_form=None):
    identity = Form.identity(len(shape))
    src, dst = (src_form or identity), (dst_form or identity)
    space = make_logical_space(src.resolve(shape), dst.resolve(shape))
    return (
        len(space.shape),
        Side(shape, src_layout, space.src_rows),
        Side(shape, dst_layout, space.dst_rows),
    )


def grid_side(layout, shape=(12, 6), form=None):
    ndim, side, other = sides(layout, layout, shape, form, form)
    return GridSide(side, components_of(side, other, ndim))


def test_dims_that_no_stored_dim_merges_are_apart():
    layout = Layout(Mesh.of(x=2), (R,))
    ndim, src, dst = sides(layout, layout)
    assert components_of(src, dst, ndim) == [(0,), (1,)]


def test_dims_that_one_side_merges_belong_together():
    layout = Layout(Mesh.of(x=2), (R,))
    merged = Form("(a b) c -> a b c", {"a": 3})
    ndim, src, _ = sides(layout, layout, (12, 6), merged, merged)
    assert components_of(src, src, ndim) == [(0, 1), (2,)]


@pytest.mark.parametrize(
    ("placements", "expected"),
    [
        ((Shard(0), Shard(1)), {0: [0], 1: [1], 2: [2], 3: [3], 4: [4], 5: [5]}),
        ((R, Shard(1)), {0: [0, 3], 1: [1, 4], 2: [2, 5]}),
        ((Shard(0), R), {0: [0, 1, 2], 3: [3, 4, 5]}),
        ((R, R), {0: [0, 1, 2, 3, 4, 5]}),
        ((Shard(0), Shard(0)), {0: [0], 4: [4]}),
    ],
)
def test_holders_of_the_region_of_each_rank(placements, expected):
    side = grid_side(Layout(Mesh.of(a=2, b=3), placements))
    for position, holders in expected.items():
        assert list(side.positions_of(side.cells_at(position))) == holders


def test_ranks_of_empty_shards_hold_nothing():
    side = grid_side(Layout(Mesh.of(a=4), (Shard(0),)), (5, 6))
    assert side.cells_at(2) is not None
    assert side.cells_at(3) is None


def test_ranks_without_the_slice_of_a_stack_hold_nothing():
    form = Form("layers a -> a", index={"layers": 3})
    side = grid_side(Layout(Mesh.of(pp=4), (Shard(0),)), (4, 6), form)
    assert [side.cells_at(position) is not None for position in range(4)] == [
        False,
        False,
        False,
        True,
    ]
    assert side.is_complete


def test_layout_case_d5_fewer_heads_than_ranks():
    """2 heads on 4 ranks: rank 2h and 2h + 1 hold head h."""
    form = Form("(heads r dim) -> (heads dim)", {"heads": 2, "r": 2}, repeat=("r",))
    side = grid_side(Layout(Mesh.of(tp=4), (Shard(0),)), (8,), form)
    found = [list(side.positions_of(side.cells_at(position))) for position in range(4)]
    assert found == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    ("layout", "form"),
    [
        (BoxLayout({0: Box((0,), (8,))}), None),
        (
            Layout(Mesh.of(tp=2), (Shard(0),)),
            Form("(heads r) -> heads", {"heads": 4}, repeat=("r",)),
        ),
        (
            Layout(Mesh.of(tp=3), (Shard(0),)),
            Form("(r n) -> n", {"r": 2}, repeat=("r",)),
        ),
    ],
    ids=["boxes", "one rank holds two copies", "copies that overlap in part"],
)
def test_what_has_no_product_structure_is_told(layout, form):
    with pytest.raises(NotAGrid):
        grid_side(layout, (8,), form)
