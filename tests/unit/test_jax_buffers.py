"""Memory of arrays as it is sent, and received memory as arrays: no copies, no surprises."""

from __future__ import annotations

import gc
import resource
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.dlpack_capsules import Capsule
from helpers.jax_devices import use_cpu_devices
from helpers.jax_in_process import array_of_buffer

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental.layout import Format  # noqa: E402
from jax.experimental.layout import Layout as MemoryLayout  # noqa: E402
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from reshard import DType, LayoutError, UnsupportedError  # noqa: E402
from reshard_jax.buffers import ReceiveBuffers, _buffer_of_shard, source_buffers  # noqa: E402
from reshard_jax.description import Description  # noqa: E402
from reshard_jax.tree import NamedTree  # noqa: E402

pytestmark = pytest.mark.jax

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz"),
]
DTYPES_64 = ["int64", "uint64", "float64", "complex128"]


def sharding_of(spec=None, order=(0, 1, 2, 3)):
    devices = np.array(jax.devices())[list(order)].reshape(2, 2)
    return NamedSharding(Mesh(devices, ("x", "y")), P("x", "y") if spec is None else spec)


def description_of(tree):
    return Description(NamedTree(tree))


def sent(**arrays):
    return source_buffers(description_of(arrays), list(arrays.values()))


def check_sent(name, array):
    """Compares what the buffers of all shards show with the pattern."""
    numbers = {device: rank for rank, device in enumerate(jax.devices())}
    buffers = sent(**{name: array})
    for shard in array.addressable_shards:
        found = array_of_buffer(buffers[numbers[shard.device], name], array.dtype)
        offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
        jax_patterns.check(name, found, array.shape, offset)
    return buffers


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read_as_it_is(dtype):
    whole = jax_patterns.values("w", (4, 6), jnp.dtype(dtype))
    check_sent("w", jax.device_put(whole, sharding_of()))


@pytest.mark.parametrize("dtype", DTYPES_64)
def test_64_bit_types_are_read_as_they_are(dtype):
    with jax.enable_x64(True):
        array = jax.device_put(jax_patterns.values("w", (4, 6), dtype), sharding_of())
    assert array.dtype == dtype
    check_sent("w", array)


def test_case_c19_bfloat16_bits_pass_without_arithmetic():
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    array = jax.device_put(bits.view(jnp.bfloat16), sharding_of())
    for rank, (row, column) in enumerate([(0, 0), (0, 128), (128, 0), (128, 128)]):
        found = array_of_buffer(sent(w=array)[rank, "w"], np.uint16)
        np.testing.assert_array_equal(found, bits[row : row + 128, column : column + 128])


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_dtypes_of_less_than_a_byte_are_refused(dtype):
    array = jnp.zeros((4, 4), dtype)
    with pytest.raises(UnsupportedError, match=f"w: dtype '{dtype}': elements of less than one"):
        description_of({"w": array})


def test_the_address_is_that_of_the_shard():
    array = jax.device_put(np.zeros((4, 6), np.float32), sharding_of())
    buffers = sent(w=array)
    for rank, shard in enumerate(array.addressable_shards):
        assert buffers[rank, "w"].address == shard.data.unsafe_buffer_pointer()
        assert not buffers[rank, "w"].is_writable


def test_replicas_are_ranks_of_their_own():
    array = jax.device_put(np.zeros((4, 6), np.float32), sharding_of(P("x")))
    buffers = sent(w=array)
    assert [buffers[rank, "w"].shape for rank in range(4)] == [(2, 6)] * 4


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_case_a1_column_major_memory_is_honoured(order):
    whole = jax_patterns.values("w", (4, 6), "float32")
    array = jax.device_put(whole, Format(MemoryLayout(order), sharding_of()))
    buffers = check_sent("w", array)
    assert buffers[0, "w"].strides == ((4, 8) if order == (1, 0) else (12, 4))


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 2, 1), (2, 1, 0)])
def test_case_a6_any_order_of_three_dims_is_honoured(order):
    whole = jax_patterns.values("w", (2, 3, 4), "bfloat16")
    array = jax.device_put(whole, Format(MemoryLayout(order), sharding_of(P("x", None, "y"))))
    check_sent("w", array)


def test_shards_of_one_array_may_differ_in_memory_layout():
    """JAX 0.10 reports the first shard's layout for both, and even computes wrong values then."""
    whole = jax_patterns.values("w", (4, 3), "float32")
    mesh = Mesh(np.array(jax.devices())[:2], ("x",))
    pieces = [
        jax.device_put(
            whole[2 * i : 2 * i + 2],
            Format(MemoryLayout(order), SingleDeviceSharding(mesh.devices[i])),
        )
        for i, order in enumerate([(1, 0), (0, 1)])
    ]
    array = jax.make_array_from_single_device_arrays((4, 3), NamedSharding(mesh, P("x")), pieces)
    buffers = check_sent("w", array)
    assert [buffers[rank, "w"].strides for rank in range(2)] == [(4, 8), (12, 4)]


def test_case_a2_transposed_numpy_is_read_right():
    whole = jax_patterns.values("w", (6, 4), "float32")
    array = jnp.asarray(np.asfortranarray(whole))
    check_sent("w", array)
    check_sent("w", jax.device_put(np.ascontiguousarray(whole.T), jax.devices()[1]).T)


def test_case_a3_a_slice_has_memory_of_its_own():
    whole = jax_patterns.values("w", (4, 6), "int32")
    wide = np.concatenate([whole, whole], axis=1)
    check_sent("w", jax.device_put(wide, jax.devices()[0])[:, :6])
    check_sent("w", jax.device_put(wide[:, :6], jax.devices()[3]))


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_host_memory_of_every_kind_is_read(kind):
    sharding = sharding_of().with_memory_kind(kind)
    array = jax.device_put(jax_patterns.values("w", (4, 6), "float32"), sharding)
    assert array.sharding.memory_kind == kind
    check_sent("w", array)


def test_scalars_are_read():
    check_sent("s", jax.device_put(jax_patterns.values("s", (), "float32"), sharding_of(P())))


def test_case_b16_shards_without_elements_are_skipped_and_nothing_leaks():
    array = jax.device_put(np.zeros((0, 4), np.float32), sharding_of(P(None, "y")))
    assert sent(w=array) == {}
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        sent(w=array)
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_case_b14_waits_for_the_computation():
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x)

    x = jax.device_put(np.eye(256, dtype=np.float32), jax.devices()[2])
    slow(x).block_until_ready()
    y = slow(x)
    found = array_of_buffer(sent(w=y)[2, "w"], np.float32).copy()
    np.testing.assert_array_equal(found, np.asarray(slow(x)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3b11fnuz", "float8_e8m0fnu"])
def test_case_b11_donation_does_not_change_what_is_being_sent(dtype):
    whole = jax_patterns.values("w", (64, 64), jnp.dtype(dtype))
    array = jax.device_put(whole, sharding_of())
    buffers = sent(w=array)
    addresses = {buffer.address for buffer in buffers.values()}
    overwrite = jax.jit(lambda x: jnp.ones_like(x) + x, donate_argnums=0)
    results = [overwrite(array)]
    results += [jax.device_put(np.zeros_like(whole), sharding_of()) for _ in range(8)]
    jax.block_until_ready(results)
    for rank, (row, column) in enumerate([(0, 0), (0, 32), (32, 0), (32, 32)]):
        found = array_of_buffer(buffers[rank, "w"], whole.dtype)
        jax_patterns.check("w", found, (64, 64), (row, column))
    for result in results:
        for shard in result.addressable_shards:
            assert shard.data.unsafe_buffer_pointer() not in addresses


def test_memory_is_held_no_longer_than_the_buffers():
    array = jax.device_put(np.ones((64, 64), np.float32), sharding_of())
    pointers = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
    sent(w=array)
    gc.collect()
    result = jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert [s.data.unsafe_buffer_pointer() for s in result.addressable_shards] == pointers


def test_case_b12_one_array_is_exported_as_often_as_wanted():
    array = jax.device_put(jax_patterns.values("w", (4, 6), "float32"), sharding_of())
    first, second = sent(w=array), sent(w=array)
    assert {b.address for b in first.values()} == {b.address for b in second.values()}
    del first
    check_sent("w", array)
    assert not array.is_deleted()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("called on deleted or donated buffer", LayoutError),
        ("Array has been deleted with shape=float32", LayoutError),
        ("x", RuntimeError),
    ],
)
def test_an_array_that_another_thread_donates_meanwhile(text, expected, monkeypatch):
    """JAX says so of the buffer before `is_deleted` of the array does."""
    array = jax.device_put(np.ones((4, 4), np.float32), sharding_of())

    def fail(arrays):
        raise RuntimeError(text)

    monkeypatch.setattr(jax, "block_until_ready", fail)
    with pytest.raises(expected, match=text):
        source_buffers(description_of({"w": array}), [array])


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError, AttributeError])
def test_an_array_that_is_gone_halfway_is_told_by_name(kind, monkeypatch):
    """Whatever JAX trips over then: its list of shards, for one, is None all of a sudden."""
    array = jax.device_put(np.ones((4, 4), np.float32), sharding_of())
    description = description_of({"w": array})

    def lose(arrays):
        array.delete()
        raise kind("'NoneType' object is not iterable")

    monkeypatch.setattr(jax, "block_until_ready", lose)
    with pytest.raises(LayoutError, match="w: the array was deleted or donated"):
        source_buffers(description, [array])


def test_an_error_of_another_origin_is_not_taken_for_donation(monkeypatch):
    array = jax.device_put(np.ones((4, 4), np.float32), sharding_of())

    def fail(arrays):
        raise TypeError("'NoneType' object is not iterable")

    monkeypatch.setattr(jax, "block_until_ready", fail)
    with pytest.raises(TypeError, match="not iterable"):
        source_buffers(description_of({"w": array}), [array])


def test_donated_arrays_are_refused_by_name():
    array = jax.device_put(np.ones((4, 4), np.float32), sharding_of())
    description = description_of({"w": array})
    array.delete()
    with pytest.raises(LayoutError, match="w: the array was deleted or donated"):
        source_buffers(description, [array])


def test_published_from_many_threads_at_once():
    array = jax.device_put(jax_patterns.values("w", (64, 64), "float32"), sharding_of())
    errors = []

    def export():
        try:
            for _ in range(20):
                check_sent("w", array)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=export) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


class OnGpu:
    """Stands in for a shard on a GPU that is not here: what is asked of one."""

    shape, ndim, size = (2, 3), 2, 6

    def __init__(self, kind="device"):
        self.capsule = Capsule(2, self.shape, (1, 2), device=3)
        gpu = types.SimpleNamespace(platform="gpu")
        self.sharding = types.SimpleNamespace(memory_kind=kind, device_set=[gpu])
        self.streams = []

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.capsule.object


def test_a_shard_on_a_gpu_is_sent_from_where_it_is():
    data = OnGpu()
    buffer = _buffer_of_shard("w", data, DType.FLOAT32)
    assert (buffer.address, buffer.strides, buffer.device) == (4096, (4, 8), 3)
    assert not buffer.is_writable and buffer.owner is data.capsule.object
    assert data.streams == [None]  # JAX waits on the host; no stream of ours is known yet


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_host_memory_that_jax_calls_a_gpus_is_the_hosts(kind):
    assert _buffer_of_shard("w", OnGpu(kind), DType.FLOAT32).device is None


# ---- receiving


@pytest.fixture(params=["NumPy's", "XLA's"])
def pool(request, monkeypatch):
    """Where memory comes from: on GPUs it is XLA's; here too if none is said to be the host's."""
    if request.param == "XLA's":
        monkeypatch.setattr("reshard_jax.buffers.is_host_memory", lambda sharding: False)
    return request.param


def received(**template):
    return ReceiveBuffers(description_of(template), {})


def write_pattern(buffers, name, array_shape, sharding, dtype, version=0):
    """Writes what a refit would write into every shard."""
    whole = jax_patterns.values(name, array_shape, dtype, version=version)
    numbers = {device: rank for rank, device in enumerate(jax.devices())}
    for device, index in sharding.devices_indices_map(array_shape).items():
        array_of_buffer(buffers[numbers[device], name], whole.dtype)[...] = whole[index]
    return whole


def bits(array):
    return np.asarray(array).view(f"u{array.dtype.itemsize}" if array.dtype.itemsize < 16 else "u8")


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_type_the_sharding_and_the_values(dtype):
    sharding = sharding_of(P("y", "x"), (3, 1, 2, 0))
    template = jax.ShapeDtypeStruct((4, 6), jnp.dtype(dtype), sharding=sharding)
    memory = received(w=template)
    whole = write_pattern(memory.buffers, "w", (4, 6), sharding, jnp.dtype(dtype))
    (array,) = memory.to_arrays()
    assert array.dtype == dtype
    assert array.sharding == sharding
    np.testing.assert_array_equal(bits(array), bits(whole))


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("spec", [P(), P("x"), P("y", "x"), P(None, ("y", "x"))], ids=str)
def test_results_are_the_received_memory_itself(spec, kind, pool):
    if pool == "XLA's" and kind != "device":
        return  # memory of the host is always NumPy's
    sharding = sharding_of(spec, (7, 5, 2, 0)).with_memory_kind(kind)
    memory = received(w=jax.ShapeDtypeStruct((4, 8), np.float32, sharding=sharding))
    addresses = {rank: buffer.address for (rank, _), buffer in memory.buffers.items()}
    assert sorted(addresses) == [0, 2, 5, 7]
    assert all(address % 64 == 0 for address in addresses.values())
    (array,) = memory.to_arrays()
    assert array.sharding == sharding
    numbers = {device: rank for rank, device in enumerate(jax.devices())}
    for shard in array.addressable_shards:
        assert shard.data.unsafe_buffer_pointer() == addresses[numbers[shard.device]]
        assert shard.data.format.layout.major_to_minor == (0, 1)


@pytest.mark.usefixtures("pool")
def test_case_b10_arrays_of_round_one_stay_unchanged_after_round_two():
    sharding = sharding_of()
    template = jax.ShapeDtypeStruct((4, 6), np.float32, sharding=sharding)
    arrays = []
    for version in (1, 2):
        memory = received(w=template)
        write_pattern(memory.buffers, "w", (4, 6), sharding, "float32", version)
        arrays += memory.to_arrays()
    for version, array in zip((1, 2), arrays, strict=True):
        jax_patterns.check("w", np.asarray(array), (4, 6), version=version)


@pytest.mark.usefixtures("pool")
def test_case_b18_every_result_is_on_the_devices_of_the_template():
    sharding = sharding_of(P("x"), (6, 7, 4, 5))
    (array,) = received(w=jax.ShapeDtypeStruct((4,), np.int32, sharding=sharding)).to_arrays()
    assert array.sharding.device_set == set(np.array(jax.devices())[[4, 5, 6, 7]])
    assert array.devices() == sharding.device_set
    assert array.committed


@pytest.mark.usefixtures("pool")
def test_case_e40_type_and_sharding_of_a_result_agree_inside_jit():
    types = (jax.sharding.AxisType.Explicit,)
    mesh = Mesh(np.array(jax.devices())[[3, 2]], ("new",), axis_types=types)
    sharding = NamedSharding(mesh, P("new"))
    (array,) = received(w=jax.ShapeDtypeStruct((4, 2), np.float32, sharding=sharding)).to_arrays()
    assert jax.typeof(array).sharding.spec == P("new", None)
    seen = []

    @jax.jit
    def doubled(x):
        seen.append(jax.typeof(x).sharding.mesh.axis_names)
        return x * 2

    with jax.set_mesh(mesh):
        assert doubled(array).sharding.is_equivalent_to(sharding, 2)
    assert seen == [("new",)]


@pytest.mark.usefixtures("pool")
def test_scalars_and_empty_arrays_are_received():
    sharding = sharding_of(P())
    memory = received(
        scalar=jax.ShapeDtypeStruct((), np.float32, sharding=sharding),
        empty=jax.ShapeDtypeStruct((0, 4), np.float32, sharding=sharding),
    )
    write_pattern(memory.buffers, "scalar", (), sharding, "float32")
    empty, scalar = memory.to_arrays()
    assert empty.shape == (0, 4)
    jax_patterns.check("scalar", np.asarray(scalar), ())


def test_case_c23_64_bit_types_are_not_narrowed():
    template = jax.ShapeDtypeStruct((2,), np.int64, sharding=sharding_of(P()))
    with pytest.raises(LayoutError, match="w: JAX narrowed int64 to int32"):
        received(w=template).to_arrays()
    with jax.enable_x64(True):
        memory = received(w=template)
        for rank in range(4):
            array_of_buffer(memory.buffers[rank, "w"], np.int64)[...] = (1 << 40) + 5
        (array,) = memory.to_arrays()
    assert np.asarray(array).tolist() == [(1 << 40) + 5] * 2


@pytest.mark.usefixtures("pool")
def test_results_can_be_donated_and_deleted_like_any_array():
    sharding = sharding_of()
    memory = received(w=jax.ShapeDtypeStruct((4, 6), np.float32, sharding=sharding))
    whole = write_pattern(memory.buffers, "w", (4, 6), sharding, np.float32)
    (array,) = memory.to_arrays()
    result = jax.jit(lambda x: x + 3, donate_argnums=0)(array)
    assert array.is_deleted()
    np.testing.assert_array_equal(np.asarray(result), whole + np.float32(3))


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.usefixtures("pool")
def test_memory_is_freed_with_the_arrays():
    template = jax.ShapeDtypeStruct((1 << 22,), np.float32, sharding=sharding_of(P("x")))

    def receive():
        memory = received(w=template)
        for buffer in memory.buffers.values():
            array_of_buffer(buffer, np.float32)[...] = 1
        return memory.to_arrays()

    receive()
    gc.collect()
    before = resident_bytes()
    for _ in range(30):
        receive()
    gc.collect()
    grown = resident_bytes() - before
    assert grown < 8 * 32 << 20, f"{grown >> 20} MiB of 30 * 32 MiB stayed"


@pytest.mark.usefixtures("pool")
def test_weights_that_may_be_missing_start_with_given_values():
    sharding = sharding_of(P("x"))
    kept = jax.device_put(jax_patterns.values("kept", (4,), "float32"), sharding)
    struct = jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding)
    tree = {"kept": kept, "zero": struct}
    memory = ReceiveBuffers(description_of(tree), {"kept": kept, "zero": None})
    got_kept, got_zero = memory.to_arrays()
    jax_patterns.check("kept", np.asarray(got_kept), (4,))
    np.testing.assert_array_equal(np.asarray(got_zero), np.zeros(4))


@pytest.mark.usefixtures("pool")
def test_single_device_results():
    place = SingleDeviceSharding(jax.devices()[6])
    memory = received(w=jax.ShapeDtypeStruct((3,), np.uint8, sharding=place))
    (array,) = memory.to_arrays()
    assert array.sharding == place


def test_memory_of_xla_is_clear_and_ready_and_its_arrays_are_nobody_elses(monkeypatch):
    monkeypatch.setattr("reshard_jax.buffers.is_host_memory", lambda sharding: False)
    sharding = sharding_of(P())
    template = {n: jax.ShapeDtypeStruct((64, 8), np.float32, sharding=sharding) for n in "abc"}
    memory = received(**template)
    addresses = {buffer.address for buffer in memory.buffers.values()}
    assert len(addresses) == len(memory.buffers) == 12  # three arrays, four devices
    for buffer in memory.buffers.values():
        assert buffer.is_writable
        assert not array_of_buffer(buffer, np.float32).any()
    arrays = memory.to_arrays()
    found = {s.data.unsafe_buffer_pointer() for a in arrays for s in a.addressable_shards}
    assert found == addresses


def test_kept_values_are_copied_into_memory_of_xla_not_shared(monkeypatch):
    monkeypatch.setattr("reshard_jax.buffers.is_host_memory", lambda sharding: False)
    kept = jax.device_put(jax_patterns.values("kept", (4, 6), "float32"), sharding_of(P("x")))
    memory = ReceiveBuffers(description_of({"kept": kept}), {"kept": kept})
    for buffer in memory.buffers.values():
        array_of_buffer(buffer, np.float32)[...] = 7
    (array,) = memory.to_arrays()
    np.testing.assert_array_equal(np.asarray(array), np.full((4, 6), 7, np.float32))
    jax_patterns.check("kept", np.asarray(kept), (4, 6))


def test_case_c23_memory_of_xla_is_not_narrowed_either(monkeypatch):
    monkeypatch.setattr("reshard_jax.buffers.is_host_memory", lambda sharding: False)
    template = jax.ShapeDtypeStruct((2,), np.int64, sharding=sharding_of(P()))
    with pytest.raises(LayoutError, match="w: JAX narrowed int64 to int32"):
        received(w=template)
