"""Shardings become layouts that put on every device what JAX puts there."""

from __future__ import annotations

import itertools
import math
import types

import numpy as np
import pytest
from helpers.jax_devices import use_cpu_devices
from hypothesis import given, settings
from hypothesis import strategies as st

use_cpu_devices()

import jax  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from reshard import BoxLayout, Layout, LayoutError, Replicate, Shard, UnsupportedError  # noqa: E402
from reshard_jax.compat import is_host_memory  # noqa: E402
from reshard_jax.layout import LayoutTable, check_supported  # noqa: E402
from reshard_jax.ranks import Ranks  # noqa: E402

pytestmark = pytest.mark.jax


def mesh_of(shape, names, order=None, axis_types=None):
    numbers = range(math.prod(shape)) if order is None else order
    devices = np.array(jax.devices())[list(numbers)]
    return Mesh(devices.reshape(shape), names, axis_types=axis_types)


def table():
    return LayoutTable(Ranks("cpu"))


def held_by_jax(sharding, shape):
    """Which whole-array indices each device holds, read off the shards of a real array."""
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    array = jax.device_put(whole, sharding)
    ranks = {device: rank for rank, device in enumerate(jax.devices())}
    return {ranks[shard.device]: np.asarray(shard.data) for shard in array.addressable_shards}


def held_by_layout(layout, shape):
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    held = {}
    for rank in layout.ranks:
        local = np.full(layout.local_shape(rank, shape), -1, np.int32)
        for box, at in layout.local_boxes(rank, shape):
            here = tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))
            there = tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
            local[here] = whole[there]
        held[rank] = local
    return held


def assert_same(sharding, shape):
    layout = table().layout(sharding, shape)
    expected, actual = held_by_jax(sharding, shape), held_by_layout(layout, shape)
    assert actual.keys() == expected.keys()
    for rank, array in expected.items():
        np.testing.assert_array_equal(actual[rank], array)
    return layout


SPECS = [
    P(),
    P(None),
    P("data"),
    P("data", None),
    P(None, "data"),
    P("data", "model"),
    P("model", "data"),
    P(("data", "model")),
    P(("model", "data")),
    P(None, ("model", "data")),
    P(("model",), ("data",)),
    P((), "model"),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_kind_of_spec(spec):
    assert_same(NamedSharding(mesh_of((2, 4), ("data", "model")), spec), (8, 16))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("order", [(7, 6, 5, 4, 3, 2, 1, 0), (0, 4, 1, 5, 2, 6, 3, 7)])
def test_permuted_meshes(spec, order):
    mesh = mesh_of((2, 4), ("data", "model"), order)
    assert_same(NamedSharding(mesh, spec), (8, 16))


def test_case_e39_device_order_is_part_of_the_layout():
    there, here = (
        NamedSharding(mesh_of((4,), ("x",), order), P("x"))
        for order in ((3, 2, 1, 0), (0, 1, 2, 3))
    )
    layouts = table()
    assert layouts.layout(there, (8,)) != layouts.layout(here, (8,))
    assert layouts.boxes(there, (8,))[3].offset == (0,)
    assert_same(there, (8,))


def test_first_name_of_a_tuple_is_major():
    mesh = mesh_of((2, 4), ("data", "model"))
    layout = table().layout(NamedSharding(mesh, P(("model", "data"))), (8,))
    assert isinstance(layout, Layout)
    assert layout.order == ("model", "data")
    assert layout.local_boxes(1, (8,))[0].box.offset == (2,)
    assert layout.local_boxes(4, (8,))[0].box.offset == (1,)


def test_a_named_sharding_keeps_its_mesh_and_axes():
    mesh = mesh_of((2, 1, 4), ("data", "one", "model"))
    layout = table().layout(NamedSharding(mesh, P("data", ("one", "model"))), (2, 4))
    assert isinstance(layout, Layout)
    assert layout.mesh.axis_names == ("data", "one", "model")
    assert layout.placements == (Shard(0), Shard(1), Shard(1))


def test_trailing_none_and_tuple_of_one_give_the_same_layout():
    mesh = mesh_of((2, 4), ("data", "model"))
    layouts = table()
    specs = (P("data"), P("data", None), P(("data",)))
    found = {id(layouts.layout(NamedSharding(mesh, spec), (4, 4))) for spec in specs}
    assert len(found) == 1


def test_axis_names_that_are_no_strings():
    mesh = mesh_of((2, 2), (("a", 1), "b"))
    layout = assert_same(NamedSharding(mesh, P(None, "b")), (4, 4))
    assert layout.mesh.axis_names == ("('a', 1)", "b")


@pytest.mark.parametrize("shape", [(), (0, 4), (4, 0), (8,), (1, 2, 3, 4)])
def test_scalars_and_shapes_without_elements(shape):
    assert_same(NamedSharding(mesh_of((2, 2), ("data", "model")), P()), shape)


def test_a_sharded_dim_without_elements():
    assert_same(NamedSharding(mesh_of((2, 2), ("data", "model")), P("data")), (0, 4))


def test_a_mesh_without_axes():
    mesh = Mesh(np.array(jax.devices()[2]), ())
    assert assert_same(NamedSharding(mesh, P()), (2, 3)).ranks == (2,)


def test_explicit_axes():
    types = (AxisType.Explicit,) * 2
    mesh = mesh_of((2, 4), ("data", "model"), axis_types=types)
    assert_same(NamedSharding(mesh, P("model", "data")), (8, 16))


def test_single_device():
    layout = assert_same(SingleDeviceSharding(jax.devices()[5]), (3, 4))
    assert isinstance(layout, Layout)
    assert layout.ranks == (5,)


def test_replicated_over_some_devices():
    layout = assert_same(NamedSharding(mesh_of((3,), ("x",), (6, 2, 4)), P()), (3, 4))
    assert layout.ranks == (6, 2, 4)
    assert layout.placements == (Replicate(),)


class HalfAndHalf(Sharding):
    """Rows of an array over devices 1 and 6, the second half first: no NamedSharding."""

    @property
    def device_set(self):
        return {jax.devices()[1], jax.devices()[6]}

    @property
    def memory_kind(self):
        return "device"

    @property
    def is_fully_replicated(self):
        return False

    def devices_indices_map(self, global_shape):
        half = global_shape[0] // 2
        rest = (slice(None),) * (len(global_shape) - 1)
        return {
            jax.devices()[1]: (slice(half, None), *rest),
            jax.devices()[6]: (slice(0, half), *rest),
        }


def test_other_shardings_become_explicit_boxes():
    layout = table().layout(HalfAndHalf(), (4, 3))
    assert isinstance(layout, BoxLayout)
    assert [str(layout.local_boxes(rank, (4, 3))[0].box) for rank in (1, 6)] == [
        "[2:4, 0:3]",
        "[0:2, 0:3]",
    ]


class ReplicatedElsewhere(HalfAndHalf):
    """Says that it is replicated, which its map denies."""

    @property
    def is_fully_replicated(self):
        return True


def test_a_layout_that_differs_from_the_map_of_jax_is_refused():
    with pytest.raises(UnsupportedError, match=r"puts \[2:4, 0:3\] on rank 1, but read as"):
        table().layout(ReplicatedElsewhere(), (4, 3))


def test_uneven_dims_are_refused_with_the_reason():
    sharding = NamedSharding(mesh_of((4,), ("x",)), P("x"))
    with pytest.raises(LayoutError, match="JAX shards evenly: choose another spec"):
        table().layout(sharding, (6, 2))


def test_unconstrained_is_refused():
    sharding = NamedSharding(mesh_of((2,), ("x",)), P(P.UNCONSTRAINED, "x"))
    with pytest.raises(
        UnsupportedError, match=r"UNCONSTRAINED.*jax\.sharding\.reshard\(x, P\(\)\)"
    ):
        table().layout(sharding, (4, 4))


def test_unreduced_is_refused():
    mesh = mesh_of((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(mesh, P("data", unreduced={"model"}))
    with pytest.raises(UnsupportedError, match=r"'model'.*partial sum.*reshard\(x, P\(\)\)"):
        table().layout(sharding, (4, 4))


def test_an_abstract_mesh_is_refused():
    sharding = NamedSharding(jax.sharding.AbstractMesh((2,), ("x",)), P("x"))
    with pytest.raises(UnsupportedError, match="abstract mesh, which has no devices"):
        table().layout(sharding, (4,))


def test_host_memory_kinds_are_accepted():
    mesh = mesh_of((2,), ("x",))
    for kind in ("device", "pinned_host", "unpinned_host"):
        assert_same(NamedSharding(mesh, P("x"), memory_kind=kind), (4,))


class OnAccelerator(HalfAndHalf):
    """A sharding over devices that are not here; only what is asked of them."""

    def __init__(self, platform, version="", kind="device"):
        client = types.SimpleNamespace(platform_version=version)
        self._device = types.SimpleNamespace(platform=platform, client=client)
        self._kind = kind

    @property
    def device_set(self):
        return {Hashable(self._device)}

    @property
    def memory_kind(self):
        return self._kind


class Hashable:
    def __init__(self, device):
        self.platform, self.client = device.platform, device.client


def test_memory_of_nvidia_gpus_is_accepted():
    for platform in ("gpu", "cuda"):
        sharding = OnAccelerator(platform, "PJRT C API\ncuda 12080")
        check_supported(sharding)
        assert not is_host_memory(sharding)


@pytest.mark.parametrize(
    ("platform", "version", "name"),
    [
        ("tpu", "", "'tpu'"),
        ("METAL", "", "'METAL'"),
        ("gpu", "rocm 60000", r"'AMD GPU \(ROCm\)'"),
    ],
)
def test_other_memory_is_refused_with_its_platform_and_the_way_out(platform, version, name):
    with pytest.raises(
        UnsupportedError, match=rf"memory of platform {name}; .*with_memory_kind\('pinned_host'\)"
    ):
        check_supported(OnAccelerator(platform, version))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_host_memory_of_accelerators_is_accepted(platform, kind):
    sharding = OnAccelerator(platform, kind=kind)
    check_supported(sharding)
    assert is_host_memory(sharding)


def test_each_distinct_sharding_is_verified_once(monkeypatch):
    calls = []
    original = NamedSharding.devices_indices_map

    def counted(self, shape):
        calls.append(shape)
        return original(self, shape)

    monkeypatch.setattr(NamedSharding, "devices_indices_map", counted)
    layouts, mesh = table(), mesh_of((2, 4), ("data", "model"))
    for _ in range(10):
        layouts.layout(NamedSharding(mesh, P("data")), (8, 16))
        layouts.layout(NamedSharding(mesh, P("data")), (8, 32))
    assert len(calls) == 2


@st.composite
def shardings(draw):
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (2, 1, 3), (1, 1), (3, 2)]))
    names = tuple("abc"[: len(sizes)])
    order = draw(st.permutations(range(math.prod(sizes))))
    ndim = draw(st.integers(0, 4))
    used = draw(st.permutations(names))
    used = used[: draw(st.integers(0, len(used)))] if ndim else []
    entries = [[] for _ in range(ndim)]
    for name in used:
        entries[draw(st.integers(0, ndim - 1))].append(name)
    size_of = dict(zip(names, sizes, strict=True))
    shape = tuple(
        math.prod(size_of[name] for name in entry) * draw(st.integers(0, 3)) for entry in entries
    )
    parts = [
        None if not entry else entry[0] if len(entry) == 1 else tuple(entry) for entry in entries
    ]
    while parts and parts[-1] is None and draw(st.booleans()):
        parts.pop()
    return NamedSharding(mesh_of(sizes, names, order), P(*parts)), shape


@settings(max_examples=150, deadline=None)
@given(shardings())
def test_any_mesh_and_spec(case):
    assert_same(*case)


def test_ranks_number_the_devices_of_all_processes():
    ranks = Ranks("cpu")
    assert [ranks.of(device) for device in jax.devices()] == list(range(ranks.size))
    assert ranks.local == tuple(range(ranks.size))
    assert (ranks.process, ranks.num_processes) == (0, 1)
    with pytest.raises(LayoutError, match="not one of the 8 devices of this job"):
        ranks.of(Hashable(types.SimpleNamespace(platform="gpu", client=None)))


def test_permutations_of_four_devices_all_differ():
    layouts = table()
    found = {
        tuple(box.offset for _, box in sorted(layouts.boxes(sharding, (4,)).items()))
        for order in itertools.permutations(range(4))
        for sharding in [NamedSharding(mesh_of((4,), ("x",), order), P("x"))]
    }
    assert len(found) == 24
