"""All ranks in one process on NumPy arrays; results of random layouts are in property/."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from reshard import (
    Box,
    BoxLayout,
    Form,
    Layout,
    LayoutError,
    Mesh,
    Part,
    Replicate,
    Shard,
    TensorSpec,
    UnsupportedError,
    local_array,
    make_plan,
    run_in_process,
)
from reshard.dtypes import DType
from reshard.loopback import buffer_of_array, numpy_dtype
from reshard.topology import Topology

ROWS = Layout(Mesh.of(x=2), (Shard(0),))
COLUMNS = Layout(Mesh.of(y=2), (Shard(1),)).shifted(2)
W = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def plan():
    src = TensorSpec("w", (4, 6), "float32", ROWS)
    return make_plan([src], [TensorSpec("w", (4, 6), "float32", COLUMNS)])


SOURCES = {0: {"w": W[:2]}, 1: {"w": W[2:]}}


def test_new_arrays_are_made_for_the_destination(plan):
    found = run_in_process(plan, SOURCES)
    assert sorted(found) == [2, 3]
    np.testing.assert_array_equal(found[2]["w"], W[:, :3])
    np.testing.assert_array_equal(found[3]["w"], W[:, 3:])


def test_given_arrays_are_written_in_place(plan):
    arrays = {rank: {"w": np.full((4, 3), -1, np.float32)} for rank in (2, 3)}
    found = run_in_process(plan, SOURCES, arrays)
    assert found[2]["w"] is arrays[2]["w"]
    np.testing.assert_array_equal(arrays[3]["w"], W[:, 3:])


@pytest.mark.parametrize("chunk_bytes", [16, 17, 4096, 1 << 30])
def test_the_size_of_messages_does_not_matter(plan, chunk_bytes):
    found = run_in_process(plan, SOURCES, chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(found[3]["w"], W[:, 3:])


def test_a_wrong_array_is_named_before_anything_is_written(plan):
    arrays = {2: {"w": np.zeros((4, 3), np.float32)}, 3: {"w": np.zeros((3, 4), np.float32)}}
    with pytest.raises(LayoutError, match=r"w: the local array of rank 3 has shape \(3, 4\)"):
        run_in_process(plan, SOURCES, arrays)
    assert not arrays[2]["w"].any()


def test_a_missing_source_array_is_named(plan):
    with pytest.raises(LayoutError, match="w: rank 1 gave no array"):
        run_in_process(plan, {0: {"w": W[:2]}})


def test_local_array_is_what_a_rank_stores():
    spec = TensorSpec("w", (4, 6), "float32", COLUMNS)
    np.testing.assert_array_equal(local_array(spec, 3, W), W[:, 3:])
    assert local_array(spec, 0, W) is None
    with pytest.raises(LayoutError, match=r"w: array of shape \(6, 4\), spec of shape \(4, 6\)"):
        local_array(spec, 2, W.T)


def test_local_array_puts_boxes_at_their_places():
    layout = BoxLayout.concatenated({0: [Box((3, 0), (1, 6)), Box((0, 0), (1, 6))]}, 0)
    found = local_array(TensorSpec("w", (4, 6), "float32", layout), 0, W)
    np.testing.assert_array_equal(found, W[[3, 0]])


def test_names_of_types():
    assert numpy_dtype(DType.BFLOAT16) == np.dtype(ml_dtypes.bfloat16)
    assert numpy_dtype(DType.BOOL) == np.dtype(bool)
    with pytest.raises(UnsupportedError, match="unknown"):
        buffer_of_array(np.zeros(2, "U3"))


def test_without_ml_dtypes_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert numpy_dtype(DType.FLOAT32) == np.dtype(np.float32)
    with pytest.raises(UnsupportedError, match=r"no bfloat16.*: pip install ml_dtypes"):
        numpy_dtype(DType.BFLOAT16)


def test_one_rank_may_be_on_both_sides():
    src = TensorSpec("w", (4, 6), "float32", ROWS)
    dst = TensorSpec("w", (4, 6), "float32", Layout(Mesh.of(y=2), (Shard(1),)))
    found = run_in_process(make_plan([src], [dst]), SOURCES)
    np.testing.assert_array_equal(found[1]["w"], W[:, 3:])


def test_offsets_beyond_four_gigabytes_reach_the_memory():
    """A source of 2^32 + 2^31 bytes of which almost no page is ever touched."""
    size = (1 << 32) + (1 << 31)
    one = Layout(Mesh.of(x=1), (Replicate(),))
    src = TensorSpec("w", (size,), "uint8", one)
    places = [0, (1 << 31) - 5, (1 << 31), (1 << 32) - 5, (1 << 32), size - 10]
    boxes = {1 + i: Box((place,), (10,)) for i, place in enumerate(places)}
    dst = TensorSpec("w", (size,), "uint8", BoxLayout(boxes))
    sparse = np.zeros(size, np.uint8)
    for place in places:
        sparse[place : place + 10] = np.arange(10) + place % 199
    found = run_in_process(make_plan([src], [dst]), {0: {"w": sparse}})
    for rank, place in enumerate(places, 1):
        np.testing.assert_array_equal(found[rank]["w"], sparse[place : place + 10])


def test_layout_case_c13_strided_views_are_read_by_index():
    src = TensorSpec("w", (2,), "int32", Layout(Mesh.of(x=1), (Replicate(),)))
    plan = make_plan([src], [src.shifted(1)])
    found = run_in_process(plan, {0: {"w": np.array([0, 1, 2, 3], np.int32)[::2]}})
    assert found[1]["w"].tolist() == [0, 2]


def test_layout_case_c11_kernels_of_jax_and_torch():
    """[in=4, heads=2, dim=3] cut over the heads to [out=6, in=4] cut over the rows."""
    kernel = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    part = Part("w", Form("inner heads dim -> (heads dim) inner"))
    src = TensorSpec("kernel", (4, 2, 3), "float32", Layout(Mesh.of(tp=2), (Shard(1),)), (part,))
    dst = TensorSpec("w", (6, 4), "float32", Layout(Mesh.of(tp=3), (Shard(0),)).shifted(2))
    plan = make_plan([src], [dst])
    found = run_in_process(plan, {r: {"kernel": kernel[:, r : r + 1]} for r in (0, 1)})
    rows = np.concatenate([found[rank]["w"] for rank in (2, 3, 4)])
    np.testing.assert_array_equal(rows, kernel.reshape(4, 6).T)


def test_a_destination_that_shares_memory_with_a_source_is_refused():
    whole = Layout(Mesh.of(x=1), (Replicate(),))
    src = TensorSpec("w", (6,), "int32", whole)
    plan = make_plan([src], [src.shifted(1)])
    memory = np.arange(12, dtype=np.int32)
    with pytest.raises(LayoutError, match="w: the destination array of rank 1 shares memory"):
        run_in_process(plan, {0: {"w": memory[:6]}}, {1: {"w": memory[5::-1]}})
    run_in_process(plan, {0: {"w": memory[::2]}}, {1: {"w": memory[1::2]}})
    assert memory[1::2].tolist() == [0, 2, 4, 6, 8, 10]


def test_a_destination_whose_elements_overlap_is_refused():
    whole = Layout(Mesh.of(x=1), (Replicate(),))
    src = TensorSpec("w", (3, 3), "float32", whole)
    plan = make_plan([src], [src.shifted(1)])
    steps = np.lib.stride_tricks.as_strided(np.zeros(5, np.float32), (3, 3), (4, 4))
    with pytest.raises(LayoutError, match="one byte stands for several elements"):
        run_in_process(plan, {0: {"w": np.ones((3, 3), np.float32)}}, {1: {"w": steps}})


def test_ranks_outside_a_layout_have_no_array():
    """What `local_array` returns for them may stay in the mapping."""
    specs = [
        TensorSpec("w", (4, 6), "float32", ROWS),
        TensorSpec("v", (4, 6), "float32", ROWS.shifted(1)),
    ]
    plan = make_plan(specs, [TensorSpec(spec.name, (4, 6), "float32", COLUMNS) for spec in specs])
    shards = {r: {s.name: local_array(s, r, W) for s in specs} for r in plan.src_ranks}
    assert shards[2]["w"] is None
    found = run_in_process(plan, shards)
    np.testing.assert_array_equal(found[3]["v"], W[:, 3:])
    with pytest.raises(LayoutError, match="v: rank 2 gave no array"):
        run_in_process(plan, {**shards, 2: {"v": None}})


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (W, "sources is of type ndarray"),
        ({0: W}, r"sources\[0\] is of type ndarray"),
        ({0: {"w": [[1.0]]}}, r"sources\[0\]\['w'\] is of type list"),
    ],
)
def test_arrays_are_given_per_rank_and_name(plan, sources, message):
    with pytest.raises(LayoutError, match=f"{message}. Give NumPy arrays per rank and stored name"):
        run_in_process(plan, sources)


def test_local_array_is_of_a_numpy_array():
    with pytest.raises(LayoutError, match=r"whole is of type list\. Give NumPy arrays"):
        local_array(TensorSpec("w", (4, 6), "float32", ROWS), 0, W.tolist())


def test_arrays_in_the_order_of_another_machine_are_refused(plan):
    other = W.astype(W.dtype.newbyteorder())
    with pytest.raises(UnsupportedError, match="in the order of another machine"):
        run_in_process(plan, {0: {"w": other[:2]}, 1: {"w": other[2:]}})


def test_without_numpy_the_names_are_there_and_the_remedy_is_told():
    code = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from reshard import *\n"
        "for call in (lambda: local_array(None, 0, None), lambda: run_in_process(None, {})):\n"
        "    try:\n"
        "        call()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("reshard.local_array works on NumPy arrays, and NumPy is not installed")
    assert second.startswith("reshard.run_in_process")
    assert "pip install numpy" in first


def relayed(num_ranks, src, dst, **options):
    """Returns a plan in which each rank is a domain of its own, so that few holders need relays."""
    places = tuple(range(num_ranks))
    return make_plan([src], [dst], topology=Topology(places, places, 1, 1.0, 1.0), **options)


def test_a_tensor_goes_from_rank_to_rank_hop_by_hop():
    src = TensorSpec("w", (4, 6), "float32", Layout.replicated(Mesh.of(x=1)))
    dst = TensorSpec("w", (4, 6), "float32", Layout.replicated(Mesh.of(x=4)).shifted(1))
    plan = relayed(5, src, dst)
    assert plan.num_hops == 4
    found = run_in_process(plan, {0: {"w": W}})
    assert sorted(found) == [1, 2, 3, 4]
    for arrays in found.values():
        np.testing.assert_array_equal(arrays["w"], W)


def test_given_arrays_of_any_strides_are_passed_on():
    src = TensorSpec("w", (4, 6), "float32", Layout.replicated(Mesh.of(x=1)))
    dst = TensorSpec("w", (4, 6), "float32", Layout.replicated(Mesh.of(x=3)).shifted(1))
    arrays = {
        1: {"w": np.zeros((6, 4), np.float32).T},
        2: {"w": np.zeros((4, 6), np.float32)[::-1, ::-1]},
        3: {"w": np.zeros((8, 12), np.float32)[::2, ::2]},
    }
    run_in_process(relayed(4, src, dst), {0: {"w": W}}, arrays, chunk_bytes=16)
    for rank in arrays:
        np.testing.assert_array_equal(arrays[rank]["w"], W)


@pytest.mark.parametrize(
    ("cast", "num_hops"), [(("float32", "bfloat16"), 3), (("bfloat16", "float32"), 1)]
)
def test_all_ranks_of_a_cast_have_the_same_bits(cast, num_hops):
    """NaN payloads too: what was cast once goes on bit by bit, whoever sends it.

    What is stored wider than it is sent is not passed on to other domains.
    """
    values = np.array([1.00390625, 3.0e38, np.nan, -0.0, 1e-40], np.float32)
    values[2:3].view(np.uint32)[:] = 0x7FC10000
    whole = values.astype(numpy_dtype(DType.of(cast[0])))
    src = TensorSpec("w", (5,), cast[0], Layout.replicated(Mesh.of(x=1)))
    dst = TensorSpec("w", (5,), cast[1], Layout.replicated(Mesh.of(x=3)).shifted(1))
    alone = TensorSpec("w", (5,), cast[1], Layout.replicated(Mesh.of(x=1)).shifted(1))
    expected = run_in_process(make_plan([src], [alone], casts=[cast]), {0: {"w": whole}})[1]["w"]
    plan = relayed(4, src, dst, casts=[cast])
    assert plan.num_hops == num_hops
    for arrays in run_in_process(plan, {0: {"w": whole}}).values():
        assert arrays["w"].tobytes() == expected.tobytes()


def test_sources_are_only_read_though_their_ranks_receive_and_pass_on():
    """Rank 1 holds one half, receives the other, and is on both sides."""
    src = TensorSpec("w", (4, 6), "float32", ROWS)
    dst = TensorSpec("w", (4, 6), "float32", Layout.replicated(Mesh.of(y=5)).shifted(1))
    plan = relayed(6, src, dst)
    assert any(transfer.hop and transfer.src_rank == 1 for transfer in plan.transfers())
    sources = {0: {"w": W[:2].copy()}, 1: {"w": W[2:].copy()}}
    for arrays in run_in_process(plan, sources).values():
        np.testing.assert_array_equal(arrays["w"], W)
    np.testing.assert_array_equal(sources[1]["w"], W[2:])


def test_pieces_of_a_rank_that_overlap_are_told_apart_at_each_hop():
    """One of them comes from a holder, another one from a rank that has received it."""

    def box(start, stop):
        return Box((start,), (stop - start,))

    src = BoxLayout({0: box(0, 2), 3: box(2, 4)})
    pieces = {1: [box(3, 4), box(2, 4), box(0, 3)], 2: [box(2, 4)]}
    dst = BoxLayout.concatenated(pieces, 0)
    topology = Topology((0, 1, 1, 0), (0, 1, 1, 0), 1, 50e9, 450e9)
    names = ("w0", "w1")
    plan = make_plan(
        [TensorSpec(name, (4,), "uint8", src) for name in names],
        [TensorSpec(name, (4,), "uint8", dst) for name in names],
        topology=topology,
    )
    whole = np.array([10, 11, 12, 13], np.uint8)
    given = {0: dict.fromkeys(names, whole[:2]), 3: dict.fromkeys(names, whole[2:])}
    results = run_in_process(plan, given)
    assert {t.hop for t in plan.transfers()} == {0, 1}
    for name in names:
        assert results[1][name].tolist() == [13, 12, 13, 10, 11, 12]
        assert results[2][name].tolist() == [12, 13]


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ((0, 1, 9), (2, 3), r"sources\[9\]: the plan has no such rank .* has ranks 0 to 1. Give"),
        ((0, 1), (0, 1), r"destinations\[0\]: the plan has no such rank .* has ranks 2 to 3. Give"),
    ],
)
def test_arrays_of_a_rank_that_the_side_has_not_are_refused(sources, destinations, message):
    spec = TensorSpec("w", (2, 4), "int32", Layout(Mesh.of(x=2), (Shard(0),)))
    plan = make_plan([spec], [spec.shifted(2)])
    rows = np.zeros((1, 4), np.int32)
    with pytest.raises(LayoutError, match=message):
        run_in_process(
            plan,
            {rank: {"w": rows} for rank in sources},
            {rank: {"w": rows.copy()} for rank in destinations},
        )


def test_no_array_of_another_rank_is_no_array():
    spec = TensorSpec("w", (2, 4), "int32", Layout(Mesh.of(x=2), (Shard(0),)))
    rows = {rank: {"w": np.full((1, 4), rank, np.int32)} for rank in range(2)}
    found = run_in_process(make_plan([spec], [spec.shifted(2)]), rows | {2: {"w": None}})
    assert found[3]["w"].tolist() == [[1] * 4]
