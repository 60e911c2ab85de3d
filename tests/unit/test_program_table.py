"""The flat tables that native code walks: where boxes lie in memory, in which order."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from reshard import (
    Box,
    BoxLayout,
    Buffer,
    DType,
    Elementwise,
    Form,
    Layout,
    Mesh,
    Part,
    Replicate,
    Shard,
    TensorSpec,
    make_plan,
)
from reshard.logical_space import LogicalDigit, LogicalRow, Piece
from reshard.loopback import buffer_of_array
from reshard.program_table import Endpoint, Slot, locate, make_program_tables
from reshard.topology import Topology

BF16, F32 = int(DType.BFLOAT16), int(DType.FLOAT32)
ROWS = Layout(Mesh.of(x=2), (Shard(0),))
COLUMNS = Layout(Mesh.of(y=2), (Shard(1),)).shifted(2)


def plan_of(src, dst, **options):
    return make_plan([src], [dst], **options)


def buffers_of(specs, order="C"):
    return {
        (rank, spec.name): buffer_of_array(
            np.zeros(
                spec.layout.local_shape(rank, spec.shape), f"V{spec.dtype.itemsize}", order
            ).view({2: np.uint16, 4: np.uint32}[spec.dtype.itemsize])
        )
        for spec in specs
        for rank in spec.layout.ranks
    }


def with_dtype(buffers, dtype):
    return {
        key: Buffer(b.address, b.shape, b.strides, dtype, True, b.owner)
        for key, b in buffers.items()
    }


@pytest.fixture
def tables():
    src = TensorSpec("w", (4, 6), DType.FLOAT32, ROWS)
    dst = TensorSpec("w", (4, 6), DType.FLOAT32, COLUMNS)
    plan = plan_of(src, dst)
    src_buffers = with_dtype(buffers_of([src]), DType.FLOAT32)
    dst_buffers = with_dtype(buffers_of([dst]), DType.FLOAT32)
    return lambda ranks: make_program_tables(plan, ranks, src_buffers, dst_buffers)


def test_a_source_process(tables):
    found = tables([1])
    assert found.endpoints == (Endpoint(0, 1, "w"),)
    assert list(found.streams) == [0, 1, 2, 0, 1, 3]
    assert list(found.operations) == [
        *(0, 0, 0, F32, F32, 2, 2, 3, 24, 4),
        *(1, 0, 12, F32, F32, 2, 2, 3, 24, 4),
    ]
    assert list(found.extents) == [0, 48]
    assert list(found.zeros) == []
    assert dict(found.bytes_out) == {(1, 2): 24, (1, 3): 24}
    assert dict(found.bytes_in) == {}


def test_a_destination_process(tables):
    found = tables([3])
    assert found.endpoints == (Endpoint(1, 3, "w"),)
    assert list(found.streams) == [1, 0, 3, 1, 1, 3]
    assert list(found.operations) == [
        *(0, 0, 0, F32, F32, 2, 2, 3, 12, 4),
        *(1, 0, 24, F32, F32, 2, 2, 3, 12, 4),
    ]
    assert dict(found.bytes_in) == {(0, 3): 24, (1, 3): 24}


def test_a_process_of_all_ranks_has_both_ends_of_every_stream(tables):
    streams = list(tables([0, 1, 2, 3]).streams)
    rows = [tuple(streams[i : i + 3]) for i in range(0, len(streams), 3)]
    assert rows == sorted(rows)
    assert {row[1:] for row in rows if row[0] == 0} == {row[1:] for row in rows if row[0] == 1}
    assert len(rows) == 8


def test_tables_are_flat_arrays_of_64_bits(tables):
    found = tables([0])
    for table in (found.streams, found.operations, found.zeros, found.extents):
        assert isinstance(table, array)
        assert table.typecode == "q"


def test_a_transposed_destination_takes_the_order_of_the_logical_dims():
    src = TensorSpec("w", (4, 6), DType.FLOAT32, Layout(Mesh.of(x=1), (Replicate(),)))
    part = Part("w", Form("b a -> a b"))
    dst = TensorSpec("w", (6, 4), DType.FLOAT32, src.layout.shifted(1), (part,))
    tables = make_program_tables(
        plan_of(src, dst),
        [0, 1],
        with_dtype(buffers_of([src]), DType.FLOAT32),
        with_dtype(buffers_of([dst]), DType.FLOAT32),
    )
    assert list(tables.operations) == [
        *(0, 0, 0, F32, F32, 2, 4, 6, 24, 4),
        *(1, 1, 0, F32, F32, 2, 4, 6, 4, 16),
    ]


def test_a_cast_has_the_wire_type_on_both_ends():
    one = Layout(Mesh.of(x=1), (Replicate(),))
    src = TensorSpec("w", (3,), DType.FLOAT32, one)
    dst = TensorSpec("w", (3,), DType.BFLOAT16, one.shifted(1))
    plan = plan_of(src, dst, casts=[("float32", "bfloat16")])
    tables = make_program_tables(
        plan,
        [0, 1],
        with_dtype(buffers_of([src]), DType.FLOAT32),
        with_dtype(buffers_of([dst]), DType.BFLOAT16),
    )
    assert list(tables.operations) == [
        *(0, 0, 0, F32, BF16, 1, 3, 4),
        *(1, 1, 0, BF16, BF16, 1, 3, 2),
    ]
    assert dict(tables.bytes_in) == {(0, 1): 6}


def test_padding_is_zeroed_once_per_array():
    parts = tuple(
        Part(name, Form("a -> a", {"a": 3}, start={0: start}))
        for name, start in (("p", 0), ("q", 4))
    )
    one = Layout(Mesh.of(x=1), (Replicate(),))
    src = [TensorSpec(name, (3,), DType.BFLOAT16, one) for name in "pq"]
    dst = TensorSpec("pq", (9,), DType.BFLOAT16, one.shifted(1), parts, "zero")
    tables = make_program_tables(
        make_plan(src, [dst]),
        [1],
        {},
        with_dtype(buffers_of([dst]), DType.BFLOAT16),
    )
    assert list(tables.zeros) == [*(0, 6, 2, 1, 1, 2), *(0, 14, 2, 1, 2, 2)]


def test_negative_strides_begin_at_the_element_of_index_zero():
    one = Layout(Mesh.of(x=1), (Replicate(),))
    src, dst = (TensorSpec("w", (4,), DType.FLOAT32, one.shifted(i)) for i in (0, 1))
    backwards = Buffer(1000, (4,), (-4,), DType.FLOAT32)
    forwards = Buffer(2000, (4,), (4,), DType.FLOAT32)
    tables = make_program_tables(
        plan_of(src, dst), [0, 1], {(0, "w"): backwards}, {(1, "w"): forwards}
    )
    assert list(tables.operations[:8]) == [0, 0, 0, F32, F32, 1, 4, -4]
    assert list(tables.extents) == [-12, 4, 0, 16]


def test_several_copies_of_one_rank_have_places_of_their_own():
    one = Layout(Mesh.of(x=1), (Replicate(),))
    src = TensorSpec("w", (3,), DType.FLOAT32, one)
    part = Part("w", Form("r a -> a", repeat=("r",)))
    dst = TensorSpec("w", (2, 3), DType.FLOAT32, one.shifted(1), (part,))
    tables = make_program_tables(
        plan_of(src, dst),
        [0, 1],
        with_dtype(buffers_of([src]), DType.FLOAT32),
        with_dtype(buffers_of([dst]), DType.FLOAT32),
    )
    assert list(tables.operations) == [
        *(0, 0, 0, F32, F32, 1, 3, 4),
        *(0, 0, 0, F32, F32, 1, 3, 4),
        *(1, 1, 0, F32, F32, 1, 3, 4),
        *(1, 1, 12, F32, F32, 1, 3, 4),
    ]


def test_a_rank_without_part_in_it_has_empty_tables():
    src = TensorSpec("w", (4, 6), DType.FLOAT32, ROWS)
    dst = TensorSpec("w", (4, 6), DType.FLOAT32, BoxLayout({2: Box((0, 0), (2, 6))}))
    tables = make_program_tables(
        plan_of(src, dst), [1], with_dtype(buffers_of([src]), DType.FLOAT32), {}
    )
    assert (tables.endpoints, len(tables.streams), len(tables.operations)) == ((), 0, 0)


def test_locate_adds_up_bases_and_strides():
    rows = (
        LogicalRow(0, (LogicalDigit(1, 4, 0, 4),)),
        LogicalRow(0, (LogicalDigit(0, 3, 0, 3), LogicalDigit(2, 5, 0, 5))),
    )
    piece = Piece((0, 1, 0), (3, 4, 5), (-1, 2))
    found = locate(rows, piece, (1, 2, 3), (3, 3, 5), (100, 8))
    assert found == Slot((2 - 1) * 100 + (1 * 5 + 3 + 2) * 8, (2, 1, 2), (40, 100, 8))


def test_layout_case_f2_offsets_are_64_bits_wide():
    """[256, 7168, 2048] bf16: the last element lies 7.5 GB from the first."""
    shape = (256, 7168, 2048)
    one = Layout(Mesh.of(x=1), (Replicate(),))
    src = TensorSpec("w", shape, DType.BFLOAT16, one)
    last = Box((255, 7167, 2000), (1, 1, 48))
    dst = TensorSpec("w", shape, DType.BFLOAT16, BoxLayout({1: last}))
    whole = Buffer(0, shape, (7168 * 2048 * 2, 2048 * 2, 2), DType.BFLOAT16)
    own = Buffer(0, (1, 1, 48), (96, 96, 2), DType.BFLOAT16)
    tables = make_program_tables(plan_of(src, dst), [0, 1], {(0, "w"): whole}, {(1, "w"): own})
    assert tables.operations[2] == (256 * 7168 * 2048 - 48) * 2 > 2**32
    assert list(tables.extents[:2]) == [0, 256 * 7168 * 2048 * 2]


# ---- hops: what a destination rank sends on it reads from its own array --------------------------

TWO_DOMAINS = Topology((0, 1, 1), (0, 1, 1), 1, 1.0, 9.0)


def hop_tables(src, dst, hop, ranks=(0, 1, 2), topology=TWO_DOMAINS, **options):
    plan = plan_of(src, dst, topology=topology, **options)
    src_buffers = with_dtype(buffers_of([src]), src.dtype)
    dst_buffers = with_dtype(buffers_of([dst]), dst.dtype)
    return make_program_tables(plan, ranks, src_buffers, dst_buffers, hop)


def test_each_hop_has_tables_of_its_own():
    src = TensorSpec("w", (4, 6), DType.FLOAT32, Layout.replicated(Mesh.of(x=1)))
    dst = TensorSpec("w", (4, 6), DType.FLOAT32, Layout.replicated(Mesh.of(x=2)).shifted(1))
    first, second = (hop_tables(src, dst, hop) for hop in (0, 1))
    assert first.endpoints == (Endpoint(0, 0, "w"), Endpoint(1, 2, "w"))
    assert list(first.streams) == [0, 0, 2, 1, 0, 2]
    assert (dict(first.bytes_out), dict(first.bytes_in)) == ({(0, 2): 96}, {(0, 2): 96})
    assert second.endpoints == (Endpoint(1, 1, "w"), Endpoint(1, 2, "w"))
    assert list(second.streams) == [0, 2, 1, 1, 2, 1]
    assert list(second.operations) == [
        *(0, 1, 0, F32, F32, 2, 4, 6, 24, 4),
        *(1, 0, 0, F32, F32, 2, 4, 6, 24, 4),
    ]
    assert (dict(second.bytes_out), dict(second.bytes_in)) == ({(2, 1): 96}, {(2, 1): 96})


def test_a_rank_without_part_in_a_hop_has_empty_tables():
    src = TensorSpec("w", (4, 6), DType.FLOAT32, Layout.replicated(Mesh.of(x=1)))
    dst = TensorSpec("w", (4, 6), DType.FLOAT32, Layout.replicated(Mesh.of(x=2)).shifted(1))
    for hop, rank in ((0, 1), (1, 0), (2, 2)):
        tables = hop_tables(src, dst, hop, [rank])
        assert (tables.endpoints, len(tables.streams), len(tables.operations)) == ((), 0, 0)


@pytest.mark.parametrize(
    ("before", "after"), [(DType.FLOAT32, DType.BFLOAT16), (DType.BFLOAT16, DType.FLOAT32)]
)
def test_a_cast_is_made_once_and_passed_on_as_it_is_stored(before, after):
    """A wider type travels as the narrow one only until it is stored."""
    src = TensorSpec("w", (3,), before, Layout.replicated(Mesh.of(x=1)))
    dst = TensorSpec("w", (3,), after, Layout.replicated(Mesh.of(x=2)).shifted(1))
    casts = [(str(before), str(after))]
    first, second = (hop_tables(src, dst, hop, casts=casts) for hop in (0, 1))
    size, old, new = after.itemsize, int(before), int(after)
    assert list(first.operations) == [
        *(0, 0, 0, old, BF16, 1, 3, before.itemsize),
        *(1, 1, 0, new, BF16, 1, 3, size),
    ]
    assert list(second.operations) == [
        *(0, 1, 0, new, new, 1, 3, size),
        *(1, 0, 0, new, new, 1, 3, size),
    ]
    assert dict(first.bytes_in) == {(0, 2): 6}
    assert dict(second.bytes_in) == {(2, 1): 3 * size}


def test_of_two_equal_pieces_of_a_rank_one_is_filled_from_the_other():
    src = TensorSpec("w", (3,), DType.FLOAT32, Layout.replicated(Mesh.of(x=1)))
    part = Part("w", Form("r a -> a", repeat=("r",)))
    dst = TensorSpec("w", (2, 3), DType.FLOAT32, src.layout.shifted(1), (part,))
    first, second = (hop_tables(src, dst, hop, [0, 1]) for hop in (0, 1))
    assert list(first.operations) == [
        *(0, 0, 0, F32, F32, 1, 3, 4),
        *(1, 1, 12, F32, F32, 1, 3, 4),
    ]
    assert list(second.streams) == [0, 1, 1, 1, 1, 1]
    assert list(second.operations) == [
        *(0, 0, 12, F32, F32, 1, 3, 4),
        *(1, 0, 0, F32, F32, 1, 3, 4),
    ]
    assert dict(second.bytes_in) == {}


def test_padding_is_zeroed_before_anything_is_passed_on():
    part = Part("w", Form("a -> a", {"a": 3}))
    src = TensorSpec("w", (3,), DType.FLOAT32, Layout.replicated(Mesh.of(x=1)))
    everywhere = Layout.replicated(Mesh.of(x=2)).shifted(1)
    dst = TensorSpec("w", (4,), DType.FLOAT32, everywhere, (part,), "zero")
    assert len(hop_tables(src, dst, 0).zeros) == 2 * 6
    assert len(hop_tables(src, dst, 1).zeros) == 0


RULE = Elementwise(scale=2, divisor=3, offset=5)
NONE = [1.0, 1.0, 0.0]


def ruled(dtype, layout, rule):
    return TensorSpec("w", (4, 6), dtype, layout, Part("w", elementwise=rule))


@pytest.mark.parametrize(
    ("before", "after", "at_source"),
    [(DType.FLOAT32, DType.FLOAT32, True), (F32, BF16, True), (BF16, F32, False)],
)
def test_values_change_at_one_end_of_a_stream(before, after, at_source):
    before, after = DType(before), DType(after)
    src, dst = ruled(before, ROWS, RULE), ruled(after, COLUMNS, None)
    plan = plan_of(src, dst, casts=[(before, after)])
    sides = buffers_of([src]), buffers_of([dst])
    sides = with_dtype(sides[0], before), with_dtype(sides[1], after)
    ends = [make_program_tables(plan, ranks, *sides) for ranks in ((0, 1), (2, 3))]
    for tables, is_changed in zip(ends, (at_source, not at_source), strict=True):
        assert list(tables.rules) == ([2.0, 3.0, 5.0, *NONE] if is_changed else [])
        assert list(tables.changes) == ([0] * 4 if is_changed else [])
        if is_changed:
            assert tables.first_cast == "w: x * 2 / 3 + 5"


def test_the_rule_of_a_destination_is_the_second_half_of_a_row():
    src, dst = ruled(DType.FLOAT32, ROWS, None), ruled(DType.FLOAT32, COLUMNS, RULE)
    plan = plan_of(src, dst)
    tables = make_program_tables(plan, [0], buffers_of([src]), buffers_of([dst]))
    assert list(tables.rules) == [*NONE, 2.0, 3.0, 5.0]


def test_operations_without_a_rule_have_none_beside_others():
    src = [ruled(DType.FLOAT32, ROWS, RULE), TensorSpec("v", (4, 6), DType.FLOAT32, ROWS)]
    dst = [TensorSpec(name, (4, 6), DType.FLOAT32, COLUMNS) for name in ("v", "w")]
    plan = make_plan(src, dst)
    tables = make_program_tables(plan, plan.ranks, buffers_of(src), buffers_of(dst))
    assert sorted(tables.changes) == [-1] * 12 + [0] * 4
    assert list(tables.changes).count(-1) + 4 == len(list(tables.operations)) // 10


def test_equal_rules_leave_tables_as_they_are():
    src, dst = ruled(DType.FLOAT32, ROWS, RULE), ruled(DType.FLOAT32, COLUMNS, RULE)
    plain = [TensorSpec("w", (4, 6), DType.FLOAT32, layout) for layout in (ROWS, COLUMNS)]
    buffers = [with_dtype(buffers_of([spec]), DType.FLOAT32) for spec in (src, dst)]
    tables = make_program_tables(plan_of(src, dst), range(4), *buffers)
    assert (len(tables.rules), len(tables.changes), tables.first_cast) == (0, 0, "")
    assert tables == make_program_tables(plan_of(*plain), range(4), *buffers)


def test_what_is_passed_on_has_changed_already():
    """Hops above 0 move what destinations store, bit by bit."""
    src = ruled(DType.FLOAT32, Layout.replicated(Mesh.of(x=1)), RULE)
    dst = ruled(DType.FLOAT32, Layout.replicated(Mesh.of(y=2)).shifted(1), None)
    plan = plan_of(src, dst, topology=Topology.dgx_h100(3))
    buffers = buffers_of([src]), buffers_of([dst])
    assert plan.num_hops == 2
    assert set(make_program_tables(plan, range(3), *buffers, 0).changes) == {-1, 0}
    assert len(make_program_tables(plan, range(3), *buffers, 1).changes) == 0
