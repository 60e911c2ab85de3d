"""Memory of local arrays, and what is checked of it before anything moves."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest

from reshard import (
    Box,
    BoxLayout,
    Buffer,
    DType,
    Layout,
    LayoutError,
    Mesh,
    Replicate,
    Shard,
    TensorSpec,
    check_buffers,
    devices_of,
)
from reshard.buffers import BufferChecks, BufferSnapshot
from reshard.loopback import buffer_of_array

ROWS = Layout(Mesh.of(x=2), (Shard(0),))
SPECS = [TensorSpec(name, (5, 4), DType.FLOAT32, ROWS) for name in ("a", "b")]


def arrays(rank):
    rows = 3 if rank == 0 else 2
    return {(rank, name): np.zeros((rows, 4), np.float32) for name in ("a", "b")}


def buffers(rank, **changes):
    found = {key: buffer_of_array(array) for key, array in arrays(rank).items()}
    return {**found, **{(rank, name): buffer for name, buffer in changes.items()}}


@pytest.mark.parametrize(
    ("view", "extent"),
    [
        (np.zeros((3, 4), np.int16), (0, 24)),
        (np.zeros((3, 4), np.int16).T, (0, 24)),
        (np.zeros((3, 4), np.int16)[::-1], (-16, 8)),
        (np.zeros((6, 8), np.int16)[::2, 1::3], (0, 78)),
        (np.zeros((), np.int16), (0, 2)),
        (np.zeros((0, 4), np.int16), (0, 0)),
        (np.broadcast_to(np.int16(1), (3, 4)), (0, 2)),
    ],
)
def test_the_extent_covers_every_element(view, extent):
    buffer = buffer_of_array(view)
    assert buffer.extent == extent
    assert buffer.is_empty == (view.size == 0)


def test_lists_become_tuples_and_the_owner_is_no_part_of_the_value():
    one = Buffer(64, [2, 3], [12, 4], DType.FLOAT32, owner=object())
    assert one == Buffer(64, (2, 3), (12, 4), DType.FLOAT32)
    assert "owner" not in repr(one)


def test_shape_and_strides_have_one_entry_per_dim():
    with pytest.raises(LayoutError, match=r"shape \(2, 3\) has strides \(4,\); give one per dim"):
        Buffer(0, (2, 3), (4,), DType.FLOAT32)


def test_the_owner_is_kept_alive():
    array = np.zeros(4)
    reference = weakref.ref(array)
    buffer = buffer_of_array(array)
    del array
    gc.collect()
    assert reference() is not None
    del buffer
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("writes", [True, False])
def test_what_fits_is_accepted(rank, writes):
    check_buffers(SPECS, [rank], buffers(rank), writes=writes)


def wrong(array, **changes):
    buffer = buffer_of_array(array)
    return Buffer(
        changes.get("address", buffer.address),
        buffer.shape,
        changes.get("strides", buffer.strides),
        changes.get("dtype", buffer.dtype),
        changes.get("is_writable", buffer.is_writable),
        array,
    )


GOOD = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (
            wrong(np.zeros((4, 3), np.float32)),
            r"a: .* rank 0 has shape \(4, 3\).*gives \(3, 4\). Declare",
        ),
        (wrong(GOOD, dtype=DType.INT32), r"a: .* rank 0 is int32, the spec says float32.*cast"),
        (wrong(GOOD, is_writable=False), "a: the local array of rank 0 is read-only"),
        (wrong(GOOD, strides=(0, 4)), r"a: .*strides \(0, 4\).*memory of its own"),
        (None, r"a: rank 0 gave no array, but its layout .* it holds \(3, 4\) of \(5, 4\)"),
    ],
)
def test_what_does_not_fit_is_named_with_both_values(buffer, message):
    given = buffers(0, a=buffer)
    if buffer is None:
        del given[0, "a"]
    with pytest.raises(LayoutError, match=message):
        check_buffers(SPECS, [0], given, writes=True)


def test_a_source_may_be_read_only_and_repeat_elements():
    check_buffers(SPECS, [0], buffers(0, a=wrong(GOOD, is_writable=False)), writes=False)
    check_buffers(SPECS, [0], buffers(0, a=wrong(GOOD, strides=(0, 4))), writes=False)


def test_destination_arrays_have_memory_of_their_own():
    memory = np.zeros((5, 4), np.float32)
    apart = buffers(0, a=buffer_of_array(memory[:3]), b=buffer_of_array(memory[3:]))
    overlapping = buffers(0, a=buffer_of_array(memory[:3]), b=buffer_of_array(memory[2:]))
    specs = [
        TensorSpec(name, (rows, 4), DType.FLOAT32, BoxLayout({0: Box((0, 0), (rows, 4))}))
        for name, rows in (("a", 3), ("b", 2))
    ]
    check_buffers(specs, [0], apart, writes=True)
    specs[1] = TensorSpec("b", (3, 4), DType.FLOAT32, BoxLayout({0: Box((0, 0), (3, 4))}))
    with pytest.raises(LayoutError, match=r"a \(rank 0\) and b \(rank 0\) overlap in memory"):
        check_buffers(specs, [0], overlapping, writes=True)
    check_buffers(specs, [0], overlapping, writes=False)


def test_destination_arrays_may_alternate_in_one_memory():
    memory = np.zeros((3, 8), np.float32)
    columns = buffers(0, a=buffer_of_array(memory[:, :4]), b=buffer_of_array(memory[:, 4:]))
    check_buffers(SPECS, [0], columns, writes=True)
    shared = buffers(0, a=buffer_of_array(memory[:, :4]), b=buffer_of_array(memory[:, 3:7]))
    with pytest.raises(LayoutError, match="overlap in memory"):
        check_buffers(SPECS, [0], shared, writes=True)


def test_every_array_is_compared_and_not_only_its_neighbour():
    memory = np.zeros((3, 12), np.float32)
    specs = [TensorSpec(name, (5, 4), DType.FLOAT32, ROWS) for name in "abc"]
    given = {
        (0, n): buffer_of_array(memory[:, k : k + 4]) for n, k in zip("abc", (0, 4, 2), strict=True)
    }
    with pytest.raises(LayoutError, match="overlap in memory"):
        check_buffers(specs, [0], given, writes=True)


def test_arrays_without_elements_need_not_be_given():
    spec = TensorSpec("a", (1, 4), DType.FLOAT32, ROWS)
    check_buffers([spec], [1], {}, writes=True)


def test_ranks_outside_the_layout_need_no_array():
    check_buffers(SPECS, [7], {}, writes=True)


def test_arrays_of_other_tensors_do_not_matter():
    check_buffers(SPECS, [0], {**buffers(0), (0, "c"): buffer_of_array(GOOD)}, writes=True)


def test_checks_are_worked_out_once_and_used_again():
    checks = BufferChecks(SPECS, [0], writes=True)
    checks.check(buffers(0))
    with pytest.raises(LayoutError):
        checks.check({})
    checks.check(buffers(0))


def test_a_snapshot_knows_the_very_same_buffers_only():
    given = buffers(0)
    snapshot = BufferSnapshot(given)
    assert snapshot.is_of(given)
    assert snapshot.is_of(dict(given))
    assert not snapshot.is_of(buffers(0))
    assert not snapshot.is_of({})
    given[0, "a"] = buffer_of_array(GOOD)
    assert not snapshot.is_of(given)


def test_a_snapshot_keeps_nothing_alive():
    array = np.zeros(4)
    reference = weakref.ref(array)
    given = {(0, "a"): buffer_of_array(array)}
    snapshot = BufferSnapshot(given)
    del array, given
    gc.collect()
    assert reference() is None
    assert not snapshot.is_of({})


def on(device, array=GOOD):
    return dataclasses.replace(buffer_of_array(array), device=device)


def test_memory_is_of_the_host_unless_a_device_is_named():
    assert buffer_of_array(GOOD).device is None
    assert on(1).device == 1
    assert on(0) != on(1) != on(None)


@pytest.mark.parametrize("device", [-1, "cuda:0", 0.0, True])
def test_what_is_no_ordinal_of_a_device_is_refused(device):
    with pytest.raises(LayoutError, match="give the ordinal of a CUDA device, 0 or more, or None"):
        on(device)


def test_all_arrays_of_a_rank_are_in_one_memory():
    one, other = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    devices = BufferChecks(SPECS, [0], writes=True).check({(0, "a"): on(1, one), (0, "b"): on(1)})
    assert devices == {0: 1}
    for first, second in ((on(0, one), on(1, other)), (on(0, one), on(None, other))):
        where = "cuda:1" if second.device else "the host"
        with pytest.raises(
            LayoutError,
            match=f"b: the local array of rank 0 is on {where}, that of a on cuda:0. A rank is one",
        ):
            check_buffers(SPECS, [0], {(0, "a"): first, (0, "b"): second}, writes=False)


def test_ranks_may_be_on_devices_of_their_own():
    layout = Layout(Mesh.of(x=2), (Replicate(),))
    spec = TensorSpec("a", (3, 4), DType.FLOAT32, layout)
    other = np.zeros((3, 4), np.float32)
    given = {(0, "a"): on(1), (1, "a"): on(0, other)}
    assert BufferChecks([spec], [0, 1], writes=True).check(given) == {0: 1, 1: 0}


def test_devices_of_ranks_of_both_sides():
    empty = Buffer(0, (0, 4), (16, 4), DType.FLOAT32)
    assert devices_of({(0, "a"): on(2), (1, "a"): empty}, {(0, "b"): on(2)}) == {0: 2}
    assert devices_of({(0, "a"): on(None)}) == {0: None}
    assert devices_of() == devices_of({}) == {}
    with pytest.raises(LayoutError, match="b: the local array of rank 0 is on the host, that of a"):
        devices_of({(0, "a"): on(2)}, {(0, "b"): on(None)})


def test_addresses_tell_memories_apart():
    """One space of addresses: a device never has one of the host's, nor of another device."""
    first = Buffer(1 << 40, (3, 4), (16, 4), DType.FLOAT32, device=0)
    overlapping = Buffer((1 << 40) + 32, (3, 4), (16, 4), DType.FLOAT32, device=0)
    apart = Buffer((1 << 40) + 48, (3, 4), (16, 4), DType.FLOAT32, device=0)
    check_buffers(SPECS, [0], {(0, "a"): first, (0, "b"): apart}, writes=True)
    with pytest.raises(LayoutError, match="overlap in memory"):
        check_buffers(SPECS, [0], {(0, "a"): first, (0, "b"): overlapping}, writes=True)
