"""`reshard_jax.device_put` and `Redistribution` in one process of eight devices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices
from hypothesis import given, settings
from hypothesis import strategies as st

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental.layout import Format  # noqa: E402
from jax.experimental.layout import Layout as MemoryLayout  # noqa: E402
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard_jax  # noqa: E402
from reshard import LayoutError, UnsupportedError, VerificationError  # noqa: E402

pytestmark = pytest.mark.jax


def mesh_of(shape, names, order=None):
    numbers = range(math.prod(shape)) if order is None else order
    return Mesh(np.array(jax.devices())[list(numbers)].reshape(shape), names)


def array_of(name, shape, sharding, dtype=np.float32, version=0):
    # A copy, because on CPU an array may be the very memory of the NumPy array it was made of.
    return jnp.copy(
        jax.device_put(jax_patterns.values(name, shape, dtype, version=version), sharding)
    )


def check(name, array, version=0):
    for shard in array.addressable_shards:
        offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
        jax_patterns.check(name, np.asarray(shard.data), array.shape, offset, version=version)


def addresses(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


MESHES = [
    (("x", "y"), (2, 4), None),
    (("x", "y"), (4, 2), (7, 6, 5, 4, 3, 2, 1, 0)),
    (("x", "y"), (2, 2), (5, 1, 3, 0)),
    (("x", "y"), (1, 2), (6, 2)),
]
SPECS = [P(), P("x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]


@st.composite
def shardings(draw):
    names, shape, order = draw(st.sampled_from(MESHES))
    return NamedSharding(mesh_of(shape, names, order), draw(st.sampled_from(SPECS)))


@settings(max_examples=40, deadline=None)
@given(src=shardings(), dst=shardings(), dtype=st.sampled_from(["float32", "bfloat16", "int8"]))
def test_every_pair_of_shardings(src, dst, dtype):
    x = array_of("w", (8, 16), src, jnp.dtype(dtype))
    y = reshard_jax.device_put(x, dst)
    assert y.sharding == dst
    assert y.dtype == x.dtype
    check("w", y)
    check("w", x)


def test_a_prefix_tree_of_shardings_says_where_each_leaf_goes():
    mesh, other = mesh_of((8,), ("x",)), mesh_of((2, 2), ("a", "b"), (4, 0, 6, 2))
    tree = {
        "layers": [{"w": array_of(f"layers.{i}.w", (16, 8), NamedSharding(mesh, P("x")))}
                   for i in range(3)],
        "norm": array_of("norm", (8,), NamedSharding(mesh, P())),
    }  # fmt: skip
    places = {"layers": NamedSharding(other, P("b", "a")), "norm": jax.devices()[3]}
    moved = reshard_jax.device_put(tree, places)
    assert jax.tree.structure(moved) == jax.tree.structure(tree)
    for i, layer in enumerate(moved["layers"]):
        assert layer["w"].sharding == places["layers"]
        check(f"layers.{i}.w", layer["w"])
    assert moved["norm"].sharding == SingleDeviceSharding(jax.devices()[3])
    check("norm", moved["norm"])


def test_arrays_and_shape_structs_stand_for_their_shardings():
    x = array_of("w", (8, 4), NamedSharding(mesh_of((8,), ("x",)), P("x")))
    place = NamedSharding(mesh_of((2, 2), ("a", "b")), P("a"))
    like = jax.ShapeDtypeStruct((8, 4), np.float32, sharding=place)
    assert reshard_jax.device_put(x, like).sharding == place
    assert (
        reshard_jax.device_put({"w": x}, {"w": array_of("o", (8, 4), place)})["w"].sharding == place
    )
    with pytest.raises(LayoutError, match=r"w: float32\[8, 4\] is to become int32\[8, 4\]"):
        reshard_jax.device_put(
            {"w": x}, {"w": jax.ShapeDtypeStruct((8, 4), np.int32, sharding=place)}
        )


def test_what_is_in_place_is_returned_as_it_is():
    mesh = mesh_of((8,), ("x",))
    here, away = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P(None, "x"))
    tree = {
        "a": array_of("a", (8, 8), NamedSharding(mesh, P("x"))),
        "b": array_of("b", (8, 8), here),
    }
    moved = reshard_jax.device_put(tree, {"a": here, "b": away}, donate=True)
    assert addresses(moved["a"]) == addresses(tree["a"])
    assert moved["a"].sharding == here
    assert not tree["a"].is_deleted()
    assert tree["b"].is_deleted()
    check("b", moved["b"])
    again = reshard_jax.device_put(moved, {"a": here, "b": away})
    assert again["a"] is moved["a"]
    assert again["b"] is moved["b"]


def test_what_is_in_place_gets_exactly_the_sharding_asked_for():
    devices = np.array(jax.devices())
    explicit = jax.make_mesh((8,), ("x",))
    x = array_of("w", (8, 4), NamedSharding(Mesh(devices, ("x",)), P("x")))
    y = reshard_jax.device_put(x, NamedSharding(explicit, P("x", None)))
    assert str(jax.typeof(y)) == str(jax.typeof(jax.device_put(x, NamedSharding(explicit, P("x")))))
    z = reshard_jax.device_put(x, NamedSharding(Mesh(devices, ("y",)), P("y")))
    assert z.sharding.mesh.axis_names == ("y",)
    check("w", z)
    loose = jnp.zeros(3)
    assert not loose.committed
    assert reshard_jax.device_put(loose, jax.devices()[0]).committed


def test_donation_spares_what_is_returned():
    mesh = mesh_of((4,), ("x",))
    rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    x = array_of("w", (8, 4), rows)
    moved = reshard_jax.device_put({"a": x, "b": x}, {"a": whole, "b": rows}, donate=True)
    check("w", moved["b"])
    moved = reshard_jax.device_put(
        {"a": x, "b": x}, whole, leaves=lambda name, _: name == "a", donate=True
    )
    assert moved["b"] is x
    check("w", x)


def test_donation_frees_arrays_that_somebody_looked_at():
    mesh = mesh_of((4,), ("x",))
    place = NamedSharding(mesh_of((2,), ("y",)), P("y"))
    for sharding in (NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))):
        x = array_of("w", (8, 4), sharding)
        np.asarray(x)
        reshard_jax.device_put(x, place, donate=True)
        assert x.is_deleted()


def test_interop_18_and_40_the_result_is_on_the_new_devices_in_jit_too():
    """google/tunix#1704, jax-ml/jax#31793: arrays stayed on the old mesh, or kept its type."""
    old, new = mesh_of((4,), ("x",)), mesh_of((2, 2), ("a", "b"), (7, 5, 6, 4))
    x = array_of("w", (8, 8), NamedSharding(old, P("x")))
    y = reshard_jax.device_put(x, NamedSharding(new, P("a", "b")))
    assert y.devices() == set(new.devices.flat)
    turned = jax.jit(lambda v: v.T, out_shardings=NamedSharding(new, P("b")))(y)
    assert turned.sharding.mesh == new
    np.testing.assert_array_equal(np.asarray(turned), np.asarray(x).T)


def test_what_is_no_array_of_numbers_stays_where_leaves_says_so():
    mesh = mesh_of((8,), ("x",))
    tree = {"w": array_of("w", (8,), NamedSharding(mesh, P())), "key": jax.random.key(0), "step": 3}
    with pytest.raises(LayoutError, match="key: a PRNG key, which is no weight"):
        reshard_jax.device_put(tree, NamedSharding(mesh, P("x")))
    moved = reshard_jax.device_put(
        tree, NamedSharding(mesh, P("x")), leaves=lambda name, _: name == "w"
    )
    assert moved["key"] is tree["key"]
    assert moved["step"] == 3
    check("w", moved["w"])


def test_memory_layouts_that_are_not_row_major():
    mesh = mesh_of((2, 2), ("a", "b"))
    place = NamedSharding(mesh, P("a"))
    x = jax.device_put(
        jax_patterns.values("w", (8, 6), np.float32), Format(MemoryLayout((1, 0)), place)
    )
    target = NamedSharding(mesh, P("b", "a"))
    y = reshard_jax.device_put(x, Format(MemoryLayout((0, 1)), target))
    assert y.format.layout.major_to_minor == (0, 1)
    check("w", y)
    with pytest.raises(UnsupportedError, match="asks for a memory layout, but arrays are made row"):
        reshard_jax.device_put(x, Format(MemoryLayout((1, 0)), target))


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_memory_kinds(kind):
    mesh = mesh_of((2, 2), ("a", "b"))
    x = array_of("w", (8, 6), NamedSharding(mesh, P("a")))
    y = reshard_jax.device_put(x, NamedSharding(mesh, P("b"), memory_kind=kind))
    assert y.sharding.memory_kind == kind
    check("w", y)
    z = reshard_jax.device_put(y, NamedSharding(mesh, P("b")))
    assert z.sharding.memory_kind == x.sharding.memory_kind
    check("w", z)


def test_donation_frees_what_nobody_else_uses():
    mesh, other = mesh_of((4,), ("x",)), mesh_of((2, 2), ("a", "b"))
    x = {n: array_of(n, (8, 8), NamedSharding(mesh, P("x"))) for n in ("alone", "shared")}
    twin = jax.device_put(x["shared"], NamedSharding(mesh_of((4,), ("other",)), P("other")))
    assert addresses(twin) == addresses(x["shared"])  # two arrays, one memory
    moved = reshard_jax.device_put(x, NamedSharding(other, P("a", "b")), donate=True)
    assert x["alone"].is_deleted()
    assert not x["shared"].is_deleted()
    check("shared", twin)
    for name, array in moved.items():
        check(name, array)


def test_without_donation_nothing_is_deleted():
    x = array_of("w", (8, 8), NamedSharding(mesh_of((4,), ("x",)), P("x")))
    y = reshard_jax.device_put(x, NamedSharding(mesh_of((2, 2), ("a", "b")), P("a")))
    assert not x.is_deleted()
    assert set(addresses(y)).isdisjoint(addresses(x))


def test_a_redistribution_plans_once_and_leaves_nothing():
    mesh, other = mesh_of((4,), ("x",)), mesh_of((2, 4), ("a", "b"))
    place = NamedSharding(other, P("b", "a"))
    first = {"w": array_of("w", (16, 8), NamedSharding(mesh, P("x")))}
    with reshard_jax.Redistribution(first, place) as plan:
        num_live = None
        for version in range(100):
            x = {"w": array_of("w", (16, 8), NamedSharding(mesh, P("x")), version=version)}
            y = plan.run(x, donate=True)
            assert x["w"].is_deleted()
            check("w", y["w"], version)
            if version == 1:
                num_live = len(jax.live_arrays())
        assert len(jax.live_arrays()) == num_live
        assert plan.report.version == 100
        assert "in process 0 of 1" in repr(plan)
    with pytest.raises(LayoutError, match="is closed; make a new one"):
        plan.run(first)


def test_other_arrays_than_planned_are_refused_and_named():
    mesh = mesh_of((4,), ("x",))
    place = NamedSharding(mesh, P(None, "x"))
    first = {"w": array_of("w", (8, 8), NamedSharding(mesh, P("x"))),
             "v": array_of("v", (8, 8), place)}  # fmt: skip
    for name, other in [
        ("w", array_of("w", (8, 4), NamedSharding(mesh, P("x")))),
        ("w", array_of("w", (8, 8), NamedSharding(mesh, P()))),
        ("v", array_of("v", (8, 8), NamedSharding(mesh, P()))),
    ]:
        plan = reshard_jax.Redistribution(first, place)
        with pytest.raises(LayoutError, match=f"(?s){name}: was .*, is .*Make a new one"):
            plan.run({**first, name: other})
    plan = reshard_jax.Redistribution(first, place)
    with pytest.raises(LayoutError, match="w: gone"):
        plan.run({"v": first["v"]})


@pytest.mark.parametrize(
    ("shardings_of", "words"),
    [
        (lambda place: {"u": place}, "shardings: not a prefix of the tree of arrays"),
        (lambda place: {"w": [place, place]}, "shardings: not a prefix of the tree of arrays"),
        (lambda place: {"w": "cpu:0"}, "w: 'cpu:0' is no place"),
        (lambda place: NamedSharding(place.mesh, P(None, None, "x")), "w: "),
        (lambda place: NamedSharding(mesh_of((3,), ("x",)), P("x")), "w: .*does not fit shape"),
    ],
)
def test_wrong_shardings_are_explained(shardings_of, words):
    place = NamedSharding(mesh_of((4,), ("x",)), P("x"))
    x = {"w": array_of("w", (8, 8), place)}
    with pytest.raises(LayoutError, match=words):
        reshard_jax.device_put(x, shardings_of(place))
    assert not x["w"].is_deleted()


def test_an_array_that_is_gone_is_named_and_nothing_is_deleted():
    mesh = mesh_of((4,), ("x",))
    x = {n: array_of(n, (8, 8), NamedSharding(mesh, P("x"))) for n in ("a", "b")}
    x["b"].delete()
    with pytest.raises(LayoutError, match="b: the array was deleted or donated"):
        reshard_jax.device_put(x, NamedSharding(mesh, P(None, "x")), donate=True)
    assert not x["a"].is_deleted()


def test_inside_jit_it_says_so():
    place = NamedSharding(mesh_of((4,), ("x",)), P("x"))
    with pytest.raises(LayoutError, match="called while JAX traces a function"):
        jax.jit(lambda x: reshard_jax.device_put({"w": x}, place))(jnp.zeros((8, 8)))


def test_while_jit_traces_it_says_so_whatever_the_arguments_are():
    x = array_of("w", (8, 4), NamedSharding(mesh_of((4,), ("x",)), P("x")))
    place = NamedSharding(mesh_of((2,), ("y",)), P("y"))
    with pytest.raises(LayoutError, match="called while JAX traces a function"):
        jax.jit(lambda: reshard_jax.device_put(x, place))()


def test_replicas_that_differ_are_found():
    mesh = mesh_of((2,), ("x",))
    devices = enumerate(mesh.devices.flat)
    halves = [jax.device_put(np.full(4, i, np.float32), device) for i, device in devices]
    x = jax.make_array_from_single_device_arrays((4,), NamedSharding(mesh, P()), halves)
    place = NamedSharding(mesh_of((4,), ("y",)), P("y"))
    with pytest.raises(VerificationError, match="array"):
        reshard_jax.device_put(x, place)
    reshard_jax.device_put(x, place, verify=False)
