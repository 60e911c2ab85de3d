"""The reference planner on cases that can be checked by hand."""

from __future__ import annotations

from reshard import (
    Box,
    BoxLayout,
    DType,
    Layout,
    Mesh,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
    reference_transfers,
)

R = Replicate()


def transfers(src_layout, dst_layout, shape=(4, 6)):
    src = TensorSpec("w", shape, DType.UINT8, src_layout)
    dst = TensorSpec("w", shape, DType.UINT8, dst_layout)
    return sorted(map(str, reference_transfers(make_plan([src], [dst]).pairs)))


def test_rows_to_columns_is_all_pairs():
    rows, columns = Layout(Mesh.of(x=2), (Shard(0),)), Layout(Mesh.of(y=2), (Shard(1),)).shifted(2)
    assert transfers(rows, columns) == [
        "[0:2, 0:3] 0 -> 2",
        "[0:2, 3:6] 0 -> 3",
        "[2:4, 0:3] 1 -> 2",
        "[2:4, 3:6] 1 -> 3",
    ]


def test_what_a_rank_holds_stays_with_it():
    everywhere = Layout(Mesh.of(x=2), (R,))
    assert transfers(everywhere, everywhere) == ["[0:4, 0:6] 0 -> 0", "[0:4, 0:6] 1 -> 1"]


def test_one_of_two_holders_sends_a_small_box():
    found = transfers(Layout(Mesh.of(x=2), (R,)), Layout(Mesh(("y",), (1,), (9,)), (R,)))
    assert found in (["[0:4, 0:6] 0 -> 9"], ["[0:4, 0:6] 1 -> 9"])


def test_overlapping_boxes_are_cut():
    src = BoxLayout({0: Box((0, 0), (3, 6)), 1: Box((2, 0), (2, 6))})
    found = transfers(src, Layout(Mesh(("y",), (1,), (9,)), (R,)))
    assert [text.split("]")[0] for text in found] == ["[0:2, 0:6", "[2:3, 0:6", "[3:4, 0:6"]


def test_empty_tensors_have_no_transfers():
    assert transfers(Layout(Mesh.of(x=2), (Shard(0),)), Layout(Mesh.of(y=2), (R,)), (0, 6)) == []


def test_boxes_that_leave_out_a_part_of_the_tensor_are_shared_by_weights_too():
    """Two ranks hold all that is wanted of "a"; one of them has "b" to send besides."""
    half = Box((0, 0), (512, 1024))
    src = [
        TensorSpec("a", (1024, 1024), "float32", BoxLayout({0: half, 1: half})),
        TensorSpec("b", (512, 1024), "float32", Layout.replicated(Mesh.of(x=1))),
    ]
    dst = [
        TensorSpec("a", (1024, 1024), "float32", BoxLayout({9: half})),
        TensorSpec("b", (512, 1024), "float32", Layout.replicated(Mesh(("x",), (1,), (9,)))),
    ]
    plan = make_plan(src, dst)
    assert sorted(plan.transfers()) == sorted(reference_transfers(plan.pairs))
    assert {t.src_rank for t in plan.transfers() if t.pair == 0} == {1}
