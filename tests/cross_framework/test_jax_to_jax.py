"""JAX to JAX in one process: every pair of layouts, then whole refits through both ends."""

from __future__ import annotations

import gc
import math
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices
from helpers.jax_in_process import move
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
from reshard import (  # noqa: E402
    Form,
    LayoutError,
    Part,
    PlanError,
    TransferTimeout,
    UnsupportedError,
    VerificationError,
)

pytestmark = pytest.mark.jax

TIMEOUT_S = 30.0


def mesh_of(shape, names, order=None):
    numbers = range(math.prod(shape)) if order is None else order
    return Mesh(np.array(jax.devices())[list(numbers)].reshape(shape), names)


def array_of(name, shape, dtype, sharding, version=0):
    return jax.device_put(jax_patterns.values(name, shape, dtype, version=version), sharding)


def check(name, array, version=0):
    """Checks the values of every shard, replicas included."""
    for shard in array.addressable_shards:
        offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
        jax_patterns.check(name, np.asarray(shard.data), array.shape, offset, version=version)


# ---- layouts

MESHES = {
    "2x4": ((2, 4), ("a", "b"), (0, 1, 2, 3, 4, 5, 6, 7)),
    "4x2 permuted": ((4, 2), ("a", "b"), (7, 0, 6, 1, 5, 2, 4, 3)),
    "2x2 of the others": ((2, 2), ("a", "b"), (6, 2, 4, 0)),
    "3x1": ((3, 1), ("a", "b"), (5, 1, 3)),
}
SPECS = [P(), P("a"), P(None, "b"), P("b", "a"), P(("b", "a")), P(None, ("a", "b"))]


@pytest.mark.parametrize("is_colocated", [False, True], ids=["disjoint", "colocated"])
@pytest.mark.parametrize("dst_mesh", MESHES)
@pytest.mark.parametrize("src_mesh", MESHES)
def test_all_pairs_of_specs_between_two_meshes(src_mesh, dst_mesh, is_colocated):
    src, dst = mesh_of(*MESHES[src_mesh]), mesh_of(*MESHES[dst_mesh])
    names = [f"{i}.{j}" for i in range(len(SPECS)) for j in range(len(SPECS))]
    specs = dict(zip(names, [(s, d) for s in SPECS for d in SPECS], strict=True))
    params = {
        name: array_of(name, (24, 48), "int16", NamedSharding(src, spec))
        for name, (spec, _) in specs.items()
    }
    template = {
        name: jax.ShapeDtypeStruct((24, 48), np.int16, sharding=NamedSharding(dst, spec))
        for name, (_, spec) in specs.items()
    }
    result = move(params, template, is_colocated=is_colocated)
    for name, array in result.items():
        assert array.sharding == template[name].sharding
        check(name, array)


@st.composite
def placed(draw, shape_factors):
    sizes = draw(st.sampled_from([(8,), (2, 4), (2, 2, 2), (1, 3), (4, 1, 2)]))
    names = tuple("abc"[: len(sizes)])
    order = draw(st.permutations(range(8)))[: math.prod(sizes)]
    entries = [[] for _ in range(shape_factors)]
    used = draw(st.permutations(names))
    for name in used[: draw(st.integers(0, len(used)))]:
        entries[draw(st.integers(0, shape_factors - 1))].append(name)
    parts = [tuple(entry) or None for entry in entries]
    return NamedSharding(mesh_of(sizes, names, order), P(*parts))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_two_shardings(data):
    ndim = data.draw(st.integers(1, 3))
    src, dst = data.draw(placed(ndim)), data.draw(placed(ndim))
    shape = tuple(math.lcm(_cuts(src, dim), _cuts(dst, dim)) for dim in range(ndim))
    params = {"w": array_of("w", shape, "uint16", src)}
    template = {"w": jax.ShapeDtypeStruct(shape, np.uint16, sharding=dst)}
    check("w", move(params, template, is_colocated=data.draw(st.booleans()))["w"])


def _cuts(sharding, dim):
    entry = sharding.spec[dim] if dim < len(sharding.spec) else None
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    return math.prod(sharding.mesh.shape[name] for name in names)


DTYPES = [
    *("bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_c20_every_dtype_moves_as_bytes(dtype):
    src = NamedSharding(mesh_of((2, 2), ("a", "b")), P("a", "b"))
    dst = NamedSharding(mesh_of((3,), ("t",), (7, 5, 6)), P(None, "t"))
    params = {"w": array_of("w", (4, 12), jnp.dtype(dtype), src)}
    template = {"w": jax.ShapeDtypeStruct((4, 12), jnp.dtype(dtype), sharding=dst)}
    check("w", move(params, template)["w"])


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_64_bit_types_move_with_x64_on(dtype):
    sharding = NamedSharding(mesh_of((2,), ("a",)), P("a"))
    with jax.enable_x64(True):
        params = {"w": array_of("w", (4, 6), dtype, sharding)}
        check("w", move(params, params)["w"])


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0), (0, 2, 1)])
def test_case_a7_results_are_row_major_whatever_the_source_was(order):
    sharding = NamedSharding(mesh_of((2, 2), ("a", "b")), P("a", None, "b"))
    whole = jax_patterns.values("w", (4, 6, 8), "bfloat16")
    params = {"w": jax.device_put(whole, Format(MemoryLayout(order), sharding))}
    array = move(params, params)["w"]
    assert array.format.layout.major_to_minor == (0, 1, 2)
    check("w", array)


def test_case_b18_a_single_device_on_the_other_side():
    src = NamedSharding(mesh_of((4,), ("a",)), P("a"))
    place = SingleDeviceSharding(jax.devices()[7])
    template = {"w": jax.ShapeDtypeStruct((8, 2), np.float32, sharding=place)}
    array = move({"w": array_of("w", (8, 2), "float32", src)}, template)["w"]
    assert array.sharding == place
    check("w", array)


# ---- both ends

SHAPES = {"layers.0.w": (64, 32), "layers.1.w": (32, 96), "norm": (32,), "scale": ()}


class Trainer:
    """A tree of weights on a 2x2 mesh."""

    sharding = staticmethod(
        lambda shape: NamedSharding(
            mesh_of((2, 2), ("fsdp", "tp")), P(*("fsdp", "tp")[: len(shape)])
        )
    )

    @classmethod
    def params(cls, version=0, dtype="float32"):
        flat = {
            name: array_of(name, shape, dtype, cls.sharding(shape), version)
            for name, shape in SHAPES.items()
        }
        layers = [{"w": flat["layers.0.w"]}, {"w": flat["layers.1.w"]}]
        return {"layers": layers, "norm": flat["norm"], "scale": flat["scale"]}


def engine_template(dtype=np.float32):
    mesh = mesh_of((2,), ("tp",), (7, 4))

    def leaf(shape):
        spec = P(None, "tp") if len(shape) == 2 else P()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    return {
        "layers": {i: {"w": leaf(SHAPES[f"layers.{i}.w"])} for i in range(2)},
        "norm": leaf(SHAPES["norm"]),
        "scale": leaf(()),
    }


def check_engine(params, version):
    for i in range(2):
        check(f"layers.{i}.w", params["layers"][i]["w"], version)
    check("norm", params["norm"], version)
    check("scale", params["scale"], version)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def ends():
    """Makes sources and destinations, and closes them."""
    opened = []

    def make(params, template, source_options=None, **options):
        source = reshard_jax.Source(
            "tcp://127.0.0.1:0", params, timeout_s=TIMEOUT_S, **(source_options or {})
        )
        opened.append(source)
        destination = reshard_jax.Destination(
            source.address, template, timeout_s=TIMEOUT_S, **options
        )
        opened.append(destination)
        return source, destination

    yield make
    for end in reversed(opened):
        end.close()


@pytest.fixture(params=["NumPy's", "XLA's"])
def memory(request, monkeypatch):
    """Where memory to receive comes from: on GPUs, and here if none is the host's, XLA's pool."""
    if request.param == "XLA's":
        monkeypatch.setattr("reshard_jax.buffers.is_host_memory", lambda sharding: False)


@pytest.mark.usefixtures("memory")
def test_refits_again_and_again(ends, pool):
    source, destination = ends(Trainer.params(), engine_template())
    assert (destination.state, destination.version) == ("empty", None)
    kept = []
    for version in range(1, 4):
        waiting = pool.submit(destination.refit)
        report = source.publish(Trainer.params(version), version=version)
        kept.append(waiting.result())
        assert (destination.state, destination.version) == ("ready", version)
        assert destination.report.fingerprints == report.fingerprints
        assert report.share_resharded == 1.0
    for version, params in enumerate(kept, start=1):
        check_engine(params, version)


def test_case_c21_float32_masters_cross_the_wire_as_bfloat16(ends, pool):
    source, destination = ends(
        Trainer.params(), engine_template(jnp.bfloat16), casts=[("float32", "bfloat16")]
    )
    # Finite values; what a NaN becomes is tested where casts are.
    params = jax.tree.map(
        lambda x: jax.device_put(np.asarray(x).view(np.int32).astype(np.float32) / 3, x.sharding),
        Trainer.params(),
    )
    waiting = pool.submit(destination.refit)
    report = source.publish(params, version=1)
    result = waiting.result()
    local = [shard.data for x in jax.tree.leaves(result) for shard in x.addressable_shards]
    assert report.nbytes == report.nbytes_held == sum(x.nbytes for x in local)
    for found, master in zip(jax.tree.leaves(result), jax.tree.leaves(params), strict=True):
        rounded = np.asarray(master).astype(jnp.bfloat16)
        np.testing.assert_array_equal(np.asarray(found).view(np.uint16), rounded.view(np.uint16))


def test_case_b11_donating_the_parameters_while_they_are_published(ends, pool):
    """The training step runs on, and takes its old parameters' memory, while bytes move."""
    source, destination = ends(Trainer.params(), engine_template())
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 + 1, tree), donate_argnums=0)
    jax.block_until_ready(step(Trainer.params()))
    for version in range(1, 11):
        params = Trainer.params(version)
        waiting = pool.submit(destination.refit)
        publishing = pool.submit(source.publish, params, version=version)
        try:
            for _ in range(50):
                params = step(params)
        except (RuntimeError, ValueError):
            pass  # the step before deleted what it was given
        try:
            publishing.result()
        except LayoutError as error:  # the step was first: told, not moved
            assert "was deleted or donated" in str(error)
            with pytest.raises(LayoutError, match="was deleted or donated"):
                waiting.result()
            waiting = pool.submit(destination.refit)
            source.publish(Trainer.params(version), version=version)
        check_engine(waiting.result(), version)


def test_memory_is_not_held_between_publishes(ends, pool):
    source, destination = ends(Trainer.params(), engine_template())
    params = Trainer.params(1)
    waiting = pool.submit(destination.refit)
    source.publish(params, version=1)
    waiting.result()
    gc.collect()
    pointers = [
        shard.data.unsafe_buffer_pointer() for shard in params["layers"][0]["w"].addressable_shards
    ]
    result = jax.jit(lambda x: x + 1, donate_argnums=0)(params["layers"][0]["w"])
    assert [s.data.unsafe_buffer_pointer() for s in result.addressable_shards] == pointers


def test_drifting_shardings_are_planned_anew(ends, pool):
    """Tunix: an unconstrained jitted step returns shardings of its own."""
    source, destination = ends(Trainer.params(), engine_template())
    mesh = mesh_of((2, 2), ("fsdp", "tp"))
    for version, spec in enumerate([P("fsdp", "tp"), P("fsdp"), P(), P(("tp", "fsdp"))], start=1):
        params = Trainer.params(version)
        params["layers"][1]["w"] = jax.device_put(
            params["layers"][1]["w"], NamedSharding(mesh, spec)
        )
        waiting = pool.submit(destination.refit)
        report = source.publish(params, version=version)
        check_engine(waiting.result(), version)
        assert report.is_verified


def test_other_spellings_of_a_sharding_keep_the_plan(ends, pool):
    source, destination = ends(Trainer.params(), engine_template())
    mesh, plans = mesh_of((2, 2), ("x", "y")), set()
    for version, spec in enumerate([P("x", "y"), P(("x",), ("y",))], start=1):
        params = Trainer.params(version)
        params["layers"][1]["w"] = jax.device_put(
            params["layers"][1]["w"], NamedSharding(mesh, spec)
        )
        waiting = pool.submit(destination.refit)
        source.publish(params, version=version)
        check_engine(waiting.result(), version)
        plans.add(source.describe_plan())
    assert len(plans) == 1


def test_a_memory_layout_that_changes_is_followed(ends, pool):
    source, destination = ends(Trainer.params(), engine_template())
    for version, order in enumerate([(0, 1), (1, 0), (0, 1)], start=1):
        params = Trainer.params(version)
        array = params["layers"][0]["w"]
        params["layers"][0]["w"] = jax.device_put(
            array, Format(MemoryLayout(order), array.sharding)
        )
        waiting = pool.submit(destination.refit)
        source.publish(params, version=version)
        check_engine(waiting.result(), version)


def test_a_dtype_that_changes_is_an_error_on_both_sides(ends, pool):
    source, destination = ends(Trainer.params(), engine_template())
    waiting = pool.submit(destination.refit)
    with pytest.raises(PlanError, match="source is bfloat16, destination is float32, and no cast"):
        source.publish(Trainer.params(1, jnp.bfloat16), version=1)
    with pytest.raises(PlanError, match="no cast rule"):
        waiting.result()
    waiting = pool.submit(destination.refit)
    source.publish(Trainer.params(2), version=2)
    check_engine(waiting.result(), 2)


def test_case_d30_unmapped_and_uncovered_names_are_all_listed(ends, pool):
    params, template = Trainer.params(), engine_template()
    params["only_source"] = params["norm"]
    template["only_destination"] = template["norm"]
    source, destination = ends(params, template)
    waiting = pool.submit(destination.refit)
    for call in (lambda: source.publish(params, version=1), waiting.result):
        with pytest.raises(PlanError) as caught:
            call()
        assert "only_destination: no source holds this destination tensor" in str(caught.value)
        assert "only_source: no destination takes this source tensor" in str(caught.value)


@pytest.mark.usefixtures("memory")
def test_unmatched_weights_keep_the_values_of_the_template(ends, pool):
    template = engine_template()
    kept = array_of("kept", (4, 4), "float32", template["norm"].sharding)
    template |= {
        "kept": kept,
        "zero": jax.ShapeDtypeStruct((3,), np.float32, sharding=kept.sharding),
    }
    source, destination = ends(Trainer.params(), template, allow_unmatched=["kept", "zer?"])
    for version in (1, 2):
        waiting = pool.submit(destination.refit)
        source.publish(Trainer.params(version), version=version)
        result = waiting.result()
        check("kept", result["kept"])
        np.testing.assert_array_equal(np.asarray(result["zero"]), np.zeros(3))
        check_engine(result, version)


def test_weights_that_only_the_source_allowed_to_be_missing_are_refused(ends, pool):
    template = engine_template()
    template["extra"] = template["norm"]
    source, destination = ends(
        Trainer.params(), template, source_options={"allow_unmatched": ["*"]}
    )
    waiting = pool.submit(destination.refit)
    for call in (lambda: source.publish(Trainer.params(1), version=1), waiting.result):
        with pytest.raises(PlanError, match="extra: no source holds this destination tensor"):
            call()
    assert destination.state == "empty"


def _fail_to_make_a_destination(source):
    template = {"w": jax.ShapeDtypeStruct((4,), np.float32)}
    with pytest.raises(LayoutError, match="has no sharding"):
        reshard_jax.Destination(source.address, template)


def test_a_destination_that_cannot_be_made_fails_the_publish_that_waits(ends, pool):
    with reshard_jax.Source("tcp://127.0.0.1:0", Trainer.params(), timeout_s=TIMEOUT_S) as source:
        published = pool.submit(source.publish, Trainer.params(1), version=1)
        while not published.done():  # the first may come before the publish waits
            _fail_to_make_a_destination(source)
        with pytest.raises(LayoutError, match=r"destination 'destination' process 0.*no sharding"):
            published.result()


def test_a_destination_that_could_not_be_made_is_the_reason_of_a_later_timeout():
    with reshard_jax.Source("tcp://127.0.0.1:0", Trainer.params(), timeout_s=1.0) as source:
        _fail_to_make_a_destination(source)
        with pytest.raises(TransferTimeout, match=r"left .* ago after its error: .*no sharding"):
            source.publish(Trainer.params(1), version=1)


def test_case_d29_other_leaves_are_handed_back(ends, pool):
    params, template = Trainer.params(), engine_template()
    params["rngs"] = {"key": jax.random.key(0), "count": jnp.zeros((8,), jnp.uint32)}
    key = jax.random.key(7)
    template |= {"rngs": {"key": key}, "config": "text"}
    source = reshard_jax.Source(
        "tcp://127.0.0.1:0", params, leaves=lambda name, leaf: not name.startswith("rngs.")
    )
    with (
        source,
        reshard_jax.Destination(
            source.address,
            template,
            leaves=lambda name, leaf: hasattr(leaf, "sharding") and not name.startswith("rngs."),
        ) as destination,
    ):
        waiting = pool.submit(destination.refit, timeout_s=TIMEOUT_S)
        source.publish(params, version=1, timeout_s=TIMEOUT_S)
        result = waiting.result()
    assert result["config"] == "text"
    assert result["rngs"]["key"] is key
    check_engine(result, 0)


def test_case_e53_replicas_that_differ_are_found(ends, pool):
    mesh = mesh_of((2,), ("x",))
    sharding = NamedSharding(mesh, P())
    pieces = [
        jax.device_put(np.full((4,), value, np.float32), device)
        for value, device in zip((1, 2), mesh.devices, strict=True)
    ]
    params = {"w": jax.make_array_from_single_device_arrays((4,), sharding, pieces)}
    source, destination = ends(params, params)
    waiting = pool.submit(destination.refit)
    for call in (lambda: source.publish(params, version=1), waiting.result):
        with pytest.raises(VerificationError, match="w"):
            call()
    assert destination.state == "empty"


@pytest.mark.usefixtures("memory")
def test_a_failed_refit_leaves_earlier_arrays_alone(ends, pool):
    source, destination = ends(Trainer.params(), engine_template())
    waiting = pool.submit(destination.refit)
    source.publish(Trainer.params(1), version=1)
    first = waiting.result()
    waiting = pool.submit(destination.refit)
    with pytest.raises(PlanError):
        source.publish(Trainer.params(2, jnp.bfloat16), version=2)
    with pytest.raises(PlanError):
        waiting.result()
    check_engine(first, 1)
    assert (destination.state, destination.version) == ("ready", 1)


def test_case_e52_nothing_larger_than_the_own_shards_is_allocated(ends, pool):
    src = NamedSharding(mesh_of((4,), ("a",)), P("a"))
    dst = NamedSharding(mesh_of((4,), ("a",), (4, 5, 6, 7)), P(None, "a"))
    shape, staging = (1024, 2048), 1 << 20
    params = {"w": array_of("w", shape, "float32", src)}
    template = {"w": jax.ShapeDtypeStruct(shape, np.float32, sharding=dst)}
    source, destination = ends(
        params, template, source_options={"staging_bytes": staging}, staging_bytes=staging
    )
    waiting = pool.submit(destination.refit)
    source.publish(params, version=1)
    waiting.result()
    tracemalloc.start()
    try:
        waiting = pool.submit(destination.refit)
        report = source.publish(params, version=2)
        array = waiting.result()["w"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.peak_staging_bytes <= staging
    assert peak < array.nbytes + (1 << 20), "memory beyond the shards themselves was allocated"
    check("w", array)


def test_case_e51_replicated_results_are_not_gathered(ends, pool):
    """Each device gets its own copy, and no more than those copies is allocated."""
    src = NamedSharding(mesh_of((4,), ("a",)), P("a"))
    dst = NamedSharding(mesh_of((2,), ("a",), (4, 5)), P())
    params = {"w": array_of("w", (512, 1024), "float32", src)}
    template = {"w": jax.ShapeDtypeStruct((512, 1024), np.float32, sharding=dst)}
    source, destination = ends(params, template)
    waiting = pool.submit(destination.refit)
    source.publish(params, version=1)
    waiting.result()
    tracemalloc.start()
    try:
        waiting = pool.submit(destination.refit)
        source.publish(params, version=2)
        array = waiting.result()["w"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * array.nbytes + (1 << 20)
    check("w", array)


def test_forms_of_both_sides_meet_in_the_canonical_tensor(ends, pool):
    sharding = NamedSharding(mesh_of((2, 2), ("a", "b")), P("a", "b"))
    stored = array_of("q", (8, 4, 4), "float32", sharding)
    template = {"wq": jax.ShapeDtypeStruct((4, 8, 4), np.float32, sharding=sharding)}
    source, destination = ends(
        {"q": stored},
        template,
        source_options={
            "forms": {"q": (Part("q.weight", Form("embed heads dim -> (heads dim) embed")),)}
        },
        forms=lambda name, shape: (Part("q.weight", Form("heads embed dim -> (heads dim) embed")),),
    )
    waiting = pool.submit(destination.refit)
    source.publish({"q": stored}, version=1)
    found = np.asarray(waiting.result()["wq"])
    np.testing.assert_array_equal(
        found.view(np.uint32), np.asarray(stored).transpose(1, 0, 2).view(np.uint32)
    )


def test_unusable_templates_are_refused_before_anything_is_opened():
    sharding = NamedSharding(mesh_of((2,), ("a",)), P("a"))
    wide = {"n": jax.ShapeDtypeStruct((4,), np.int64, sharding=sharding)}
    nobody = "tcp://127.0.0.1:9"
    with pytest.raises(LayoutError, match="n: JAX would narrow int64 to int32"):
        reshard_jax.Destination(nobody, wide)
    with pytest.raises(UnsupportedError, match="n: dtype 'int4'"):
        reshard_jax.Destination(
            nobody, {"n": jax.ShapeDtypeStruct((4,), jnp.int4, sharding=sharding)}
        )
    with pytest.raises(LayoutError, match=r"step: a builtins\.int"):
        reshard_jax.Source(nobody, {"step": 3})


def test_structs_cannot_be_published(ends):
    source, _ = ends(engine_template(), engine_template())
    with pytest.raises(LayoutError, match=r"layers\.0\.w: only described, not there"):
        source.publish(engine_template(), version=1)


def test_publishing_inside_jit_is_refused(ends):
    source, _ = ends(Trainer.params(), engine_template())

    def step(params):
        source.publish(params, version=1)
        return params

    with pytest.raises(LayoutError, match="a traced value; call this outside jit"):
        jax.jit(step)(Trainer.params())


@pytest.mark.usefixtures("memory")
def test_a_hundred_refits_leave_nothing_behind(ends, pool):
    from pathlib import Path

    source, destination = ends(Trainer.params(), engine_template())
    params = Trainer.params(1)

    def refit(version):
        waiting = pool.submit(destination.refit)
        source.publish(params, version=version)
        return waiting.result()

    for version in range(1, 11):
        refit(version)
    gc.collect()

    def held():
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return descriptors, threading.active_count(), len(jax.live_arrays())

    before = held()
    for version in range(11, 111):
        refit(version)
    gc.collect()
    assert held() == before


# ---- padding


@pytest.mark.parametrize(
    ("padding", "has_values", "expected"),
    [("keep", True, 7.0), ("keep", False, 0.0), ("zero", True, 0.0), ({"emb": "zero"}, True, 0.0)],
)
def test_padded_rows_are_kept_or_zeroed(ends, pool, padding, has_values, expected):
    """A padded vocabulary on both sides: 12 rows here, 16 there, 10 of them logical."""
    forms = {"emb": (Part("embed", Form("v d -> v d", {"v": 10})),)}
    rows = NamedSharding(mesh_of((2,), ("x",)), P("x"))
    columns = NamedSharding(mesh_of((2,), ("y",), (1, 0)), P(None, "y"))
    weights = np.arange(48, dtype=np.float32).reshape(12, 4)
    params = {"emb": jax.device_put(weights, rows)}
    old = jax.device_put(np.full((16, 4), 7, np.float32), columns)
    template = old if has_values else jax.ShapeDtypeStruct((16, 4), np.float32, sharding=columns)
    source, destination = ends(
        params,
        {"emb": template},
        {"forms": forms, "padding": "keep"},
        forms=forms,
        padding=padding,
    )
    for version in (1, 2):
        waiting = pool.submit(destination.refit)
        source.publish(params, version=version)
        received = np.asarray(waiting.result()["emb"])
        np.testing.assert_array_equal(received[:10], weights[:10])
        np.testing.assert_array_equal(received[10:], np.full((6, 4), expected))


def test_padding_that_names_no_leaf_is_refused():
    params = {"emb": jax.device_put(np.zeros((4, 4), np.float32))}
    with pytest.raises(LayoutError, match="padding name tensors that are not there: embed"):
        reshard_jax.Source("tcp://127.0.0.1:0", params, padding={"embed": "keep"})
