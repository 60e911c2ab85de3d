"""Refits inside jitted programs on eight devices; the other end works on a thread outside jit."""

from __future__ import annotations

import gc
import logging
import math
import re
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax._src import dispatch  # noqa: E402
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard_jax  # noqa: E402
from reshard import LayoutError, UnsupportedError  # noqa: E402
from reshard_jax.ffi import TARGET  # noqa: E402

pytestmark = pytest.mark.jax

TIMEOUT_S = 30.0
NAMES = ("fsdp", "tp")
# name -> shape, dtype, spec of the program, spec of the other end (over "x")
WEIGHTS = {
    "attn.w": ((16, 24), "float32", P("fsdp", "tp"), P(None, "x")),
    "mlp.w": ((8, 32), "bfloat16", P(("tp", "fsdp")), P("x")),
    "fp8": ((8, 4), "float8_e4m3fn", P(None, "tp"), P("x")),
    "mask": ((6, 4), "bool", P("fsdp"), P()),
    "ids": ((24,), "int8", P("tp"), P("x")),
    "norm": ((12,), "float16", P(), P()),
    "scale": ((), "float32", P(), P()),
    "empty": ((0, 8), "float32", P(None, "tp"), P()),
}
JaxError = jax.errors.JaxRuntimeError


def mesh_of(shape, names, order=None, **options):
    numbers = range(math.prod(shape)) if order is None else order
    return Mesh(np.array(jax.devices())[list(numbers)].reshape(shape), names, **options)


def all_devices(**options):
    return mesh_of((2, 4), NAMES, (3, 0, 7, 1, 2, 6, 4, 5), **options)


def tree_of(mesh, which, version):
    """The weights of a version; `which` picks the program's specs (2) or the other end's (3)."""
    return {
        name: jax.device_put(
            jax_patterns.values(name, row[0], jnp.dtype(row[1]), version=version),
            NamedSharding(mesh, row[which]),
        )
        for name, row in WEIGHTS.items()
    }


def template_of(mesh, which):
    return {
        name: jax.ShapeDtypeStruct(row[0], row[1], sharding=NamedSharding(mesh, row[which]))
        for name, row in WEIGHTS.items()
    }


def engine_mesh():
    return mesh_of((2,), ("x",), (6, 1))


def check(tree, version):
    assert tree.keys() == WEIGHTS.keys()
    for name, array in tree.items():
        for shard in array.addressable_shards:
            offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
            jax_patterns.check(name, np.asarray(shard.data), array.shape, offset, version=version)


def pointers(tree):
    """Addresses by (device id, name), of what has elements."""
    return {
        (shard.device.id, name): shard.data.unsafe_buffer_pointer()
        for name, array in tree.items()
        for shard in array.addressable_shards
        if shard.data.size
    }


def moved_from(monkeypatch, end, method):
    """Notes the addresses that the core end is handed, by (device id, name)."""
    seen = []
    core = getattr(end._end, method)
    devices = end._description.ranks.devices

    def spy(buffers, **options):
        seen.append({(devices[rank].id, name): b.address for (rank, name), b in buffers.items()})
        return core(buffers, **options)

    monkeypatch.setattr(end._end, method, spy)
    return seen


@pytest.fixture(autouse=True)
def no_errors_at_exit():
    """JAX keeps the error of a program until its devices run another, and repeats it at exit."""
    yield
    dispatch.runtime_tokens.clear()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as executor:
        yield executor


@pytest.fixture
def opened():
    ends = []
    yield ends
    for end in reversed(ends):
        end.close()


@pytest.fixture
def source_of(opened):
    """Makes sources."""

    def make(params, **options):
        source = reshard_jax.Source("tcp://127.0.0.1:0", params, timeout_s=TIMEOUT_S, **options)
        opened.append(source)
        return source

    return make


@pytest.fixture
def destination_of(opened):
    """Makes destinations of a source."""

    def make(source, template, **options):
        destination = reshard_jax.Destination(
            source.address, template, timeout_s=TIMEOUT_S, **options
        )
        opened.append(destination)
        return destination

    return make


def pair_to_publish(source_of, destination_of, mesh=None):
    """A source on all devices, whose program publishes, and a destination outside jit."""
    source = source_of(template_of(mesh or all_devices(), 2))
    return source, destination_of(source, template_of(engine_mesh(), 3))


def pair_to_refit(source_of, destination_of, mesh=None, **options):
    """A source outside jit, and a destination on all devices, whose program refits."""
    source = source_of(template_of(engine_mesh(), 3))
    return source, destination_of(source, template_of(mesh or all_devices(), 2), **options)


# ---- bytes and memory

MESHES = {
    "2x4 permuted": all_devices,
    "explicit": lambda: all_devices(axis_types=(jax.sharding.AxisType.Explicit,) * 2),
    "half explicit": lambda: all_devices(
        axis_types=(jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto)
    ),
    "two devices": lambda: mesh_of((1, 2), NAMES, (5, 2)),
    "one device": lambda: mesh_of((1, 1), NAMES, (4,)),
}


@pytest.mark.parametrize("mesh", MESHES)
def test_a_program_publishes_exactly(source_of, destination_of, pool, mesh):
    mesh = MESHES[mesh]()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    publish = jax.jit(source.publish_in_jit)
    for version in (1, 5):
        refit = pool.submit(destination.refit)
        number = publish(tree_of(mesh, 2, version), version)
        check(refit.result(TIMEOUT_S), version)
        assert (number.shape, number.dtype, int(number)) == ((), np.int32, version)
        assert source.report.version == destination.version == version
        assert source.report.is_verified


@pytest.mark.parametrize("is_donated", [False, True], ids=["kept", "donated"])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_program_refits_exactly(source_of, destination_of, pool, mesh, is_donated):
    mesh = MESHES[mesh]()
    source, destination = pair_to_refit(source_of, destination_of, mesh)
    refit = jax.jit(destination.refit_in_jit, donate_argnums=(0,) if is_donated else ())
    params = tree_of(mesh, 2, 99)
    for version in (1, 5):
        publish = pool.submit(source.publish, tree_of(engine_mesh(), 3, version), version=version)
        old, params = params, refit(params)
        jax.block_until_ready(params)
        assert publish.result(TIMEOUT_S).is_verified
        check(params, version)
        assert (destination.version, destination.state) == (version, "ready")
        for name, array in params.items():
            expected = NamedSharding(mesh, WEIGHTS[name][2])
            # XLA makes a constant of an array without elements.
            assert name == "empty" or array.sharding.is_equivalent_to(expected, array.ndim)
        if not is_donated:
            check(old, {1: 99, 5: 1}[version])  # unharmed


def test_the_checks_of_bytes_can_fail(source_of, destination_of, pool):
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    stale = dict(tree_of(mesh, 2, 1), fp8=tree_of(mesh, 2, 2)["fp8"])
    refit = pool.submit(destination.refit)
    jax.jit(source.publish_in_jit)(stale, 1)
    with pytest.raises(AssertionError, match="fp8"):
        check(refit.result(TIMEOUT_S), 1)


def test_weights_are_sent_from_the_memory_of_the_argument(
    source_of, destination_of, pool, monkeypatch
):
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    seen = moved_from(monkeypatch, source, "publish")
    params = tree_of(mesh, 2, 1)
    refit = pool.submit(destination.refit)
    jax.block_until_ready(jax.jit(source.publish_in_jit)(params, 1))
    refit.result(TIMEOUT_S)
    assert seen == [pointers(params)]
    assert len(seen[0]) == 7 * 8


def test_weights_are_received_into_the_donated_memory(source_of, destination_of, pool, monkeypatch):
    mesh = all_devices()
    source, destination = pair_to_refit(source_of, destination_of, mesh)
    seen = moved_from(monkeypatch, destination, "refit")
    # XLA's own memory: what device_put took over from NumPy is never written to.
    params = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))(tree_of(mesh, 2, 99))
    before = pointers(params)
    publish = pool.submit(source.publish, tree_of(engine_mesh(), 3, 1), version=1)
    result = jax.jit(destination.refit_in_jit, donate_argnums=0)(params)
    jax.block_until_ready(result)
    publish.result(TIMEOUT_S)
    assert seen == [before]
    assert pointers(result) == before
    assert all(array.is_deleted() for name, array in params.items())


def test_without_donation_they_are_received_into_the_result(
    source_of, destination_of, pool, monkeypatch
):
    mesh = all_devices()
    source, destination = pair_to_refit(source_of, destination_of, mesh)
    seen = moved_from(monkeypatch, destination, "refit")
    params = tree_of(mesh, 2, 99)
    publish = pool.submit(source.publish, tree_of(engine_mesh(), 3, 1), version=1)
    result = jax.jit(destination.refit_in_jit)(params)
    jax.block_until_ready(result)
    publish.result(TIMEOUT_S)
    assert seen == [pointers(result)]
    assert not set(pointers(params).values()) & set(pointers(result).values())


def test_a_training_step_publishes_what_it_made(source_of, destination_of, pool):
    """The step changes its weights before and after, in place: neither is what arrives."""
    mesh = all_devices()
    whole = {"w": np.arange(16 * 24, dtype=np.int32).reshape(16, 24), "b": np.arange(24)}
    specs = {"w": P("fsdp", "tp"), "b": P("tp")}
    params = {
        name: jax.device_put(values.astype(np.int32), NamedSharding(mesh, specs[name]))
        for name, values in whole.items()
    }
    source = source_of(params)
    sharding = NamedSharding(engine_mesh(), P("x"))
    destination = destination_of(
        source,
        {n: jax.ShapeDtypeStruct(x.shape, np.int32, sharding=sharding) for n, x in whole.items()},
    )

    def train_step(params, step):
        params = jax.tree.map(lambda x: x * 3 + step, params)
        version = source.publish_in_jit(params, step)
        return jax.tree.map(lambda x: x + 1, params), version

    train_step = jax.jit(train_step, donate_argnums=0)
    expected = whole
    for step in range(1, 5):
        refit = pool.submit(destination.refit)
        params, version = train_step(params, step)
        assert int(version) == step
        published = {name: x * 3 + step for name, x in expected.items()}
        for name, array in refit.result(TIMEOUT_S).items():
            np.testing.assert_array_equal(np.asarray(array), published[name])
        expected = {name: x + 1 for name, x in published.items()}
    np.testing.assert_array_equal(np.asarray(params["w"]), expected["w"])
    assert train_step._cache_size() == 1


def test_a_loop_of_a_program_publishes_in_every_turn(source_of, destination_of, pool):
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)

    @jax.jit
    def loop(params):
        def turn(step, _):
            return step + 1, source.publish_in_jit(params, step)

        return jax.lax.scan(turn, jnp.int32(3), None, length=4)[1]

    refits = pool.submit(lambda: [destination.refit() for _ in range(4)])
    versions = loop(tree_of(mesh, 2, 1))
    for tree in refits.result(TIMEOUT_S):
        check(tree, 1)
    assert versions.tolist() == [3, 4, 5, 6]


def test_other_leaves_and_weights_without_a_source_stay(source_of, destination_of, pool):
    mesh = all_devices()

    def is_weight(name, leaf):
        return not name.startswith("step")

    source = source_of(template_of(engine_mesh(), 3))
    template = dict(
        template_of(mesh, 2),
        own=jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(mesh, P("tp"))),
    )
    destination = destination_of(
        source, dict(template, step=3), leaves=is_weight, allow_unmatched=["own"]
    )
    own = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("tp")))
    refit = jax.jit(destination.refit_in_jit)
    publish = pool.submit(source.publish, tree_of(engine_mesh(), 3, 1), version=1)
    result = refit(dict(tree_of(mesh, 2, 99), own=own, step=7))
    publish.result(TIMEOUT_S)
    assert int(result.pop("step")) == 7
    np.testing.assert_array_equal(np.asarray(result.pop("own")), np.arange(8))
    check(result, 1)


@pytest.mark.parametrize(
    "count", [60, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_many_exchanges_over_eight_devices(source_of, destination_of, pool, count):
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    publish = jax.jit(source.publish_in_jit)
    trees = [tree_of(mesh, 2, version) for version in range(2)]
    for version in range(count):
        refit = pool.submit(destination.refit)
        number = publish(trees[version % 2], version)
        received = refit.result(TIMEOUT_S)
        assert int(number) == version
        check(received, version % 2)
    assert publish._cache_size() == 1


# ---- nothing is made anew


class Plans(logging.Handler):
    """Counts the plans that an end makes."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record):
        self.count += bool(re.search(r"source.*: epoch \d+", record.getMessage()))


@pytest.fixture
def plans():
    logger, handler = logging.getLogger("reshard"), Plans()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_later_calls_neither_compile_nor_plan_nor_does_another_peer(
    source_of, destination_of, pool, plans
):
    mesh = all_devices()
    source, first = pair_to_publish(source_of, destination_of, mesh)
    publish = jax.jit(source.publish_in_jit)
    params = tree_of(mesh, 2, 1)

    def exchange(destination, version):
        refit = pool.submit(destination.refit)
        jax.block_until_ready(publish(params, version))
        check(refit.result(TIMEOUT_S), 1)

    for version in range(4):
        exchange(first, version)
    assert (publish._cache_size(), plans.count) == (1, 1)
    first.close()
    # A new epoch: other processes may be other members, so everybody plans anew; once.
    second = destination_of(source, template_of(engine_mesh(), 3))
    for version in range(4, 8):
        exchange(second, version)
    assert (publish._cache_size(), plans.count) == (1, 2)


def test_calls_inside_and_outside_of_jit_take_turns(source_of, destination_of, pool, plans):
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    publish = jax.jit(source.publish_in_jit)
    for version in range(4):
        refit = pool.submit(destination.refit)
        if version % 2:
            source.publish(tree_of(mesh, 2, version), version=version)
        else:
            # The end is free for the next call when the program's result is there.
            jax.block_until_ready(publish(tree_of(mesh, 2, version), version))
        check(refit.result(TIMEOUT_S), version)
    assert plans.count == 1


def test_weights_that_were_described_anew_outside_jit_are_those_of_the_program_again(
    source_of, destination_of, pool
):
    """Shards of equal shapes at other places: only the description tells them apart."""
    mesh, other = all_devices(), mesh_of((2, 4), NAMES)
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    publish = jax.jit(source.publish_in_jit)
    for version in range(4):
        refit = pool.submit(destination.refit)
        if version % 2:
            source.publish(tree_of(other, 2, version), version=version)
        else:
            # The end is free for the next call when the program's result is there.
            jax.block_until_ready(publish(tree_of(mesh, 2, version), version))
        check(refit.result(TIMEOUT_S), version)


# ---- faults


def test_a_missing_peer_is_an_error_within_the_limit_and_the_next_refit_works(
    source_of, destination_of, pool
):
    mesh = all_devices()
    source = source_of(template_of(mesh, 2))
    params = tree_of(mesh, 2, 1)
    start = time.monotonic()
    with pytest.raises(JaxError, match=r"DEADLINE_EXCEEDED: reshard: TransferTimeout: .*1\.0 s"):
        jax.block_until_ready(jax.jit(lambda p: source.publish_in_jit(p, 1, timeout_s=1.0))(params))
    assert time.monotonic() - start < 10.0
    destination = destination_of(source, template_of(engine_mesh(), 3))
    refit = pool.submit(destination.refit)
    assert int(jax.jit(source.publish_in_jit)(params, 2)) == 2
    check(refit.result(TIMEOUT_S), 1)


def test_a_refit_without_a_source_is_an_error_and_what_was_kept_is_whole(
    source_of, destination_of, pool
):
    mesh = all_devices()
    source, destination = pair_to_refit(source_of, destination_of, mesh)
    params = tree_of(mesh, 2, 9)
    with pytest.raises(JaxError, match="DEADLINE_EXCEEDED: reshard: TransferTimeout"):
        jax.block_until_ready(jax.jit(lambda p: destination.refit_in_jit(p, timeout_s=0.5))(params))
    check(params, 9)
    assert (destination.version, destination.state) == (None, "empty")
    publish = pool.submit(source.publish, tree_of(engine_mesh(), 3, 1), version=1)
    check(jax.jit(destination.refit_in_jit)(params), 1)
    publish.result(TIMEOUT_S)


def test_errors_of_the_end_reach_the_program_with_their_code(source_of, destination_of, pool):
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    publish = jax.jit(source.publish_in_jit)
    params = tree_of(mesh, 2, 1)
    refit = pool.submit(destination.refit)
    publish(params, 5)
    refit.result(TIMEOUT_S)
    refit = pool.submit(destination.refit)
    with pytest.raises(JaxError, match="INVALID_ARGUMENT: reshard: LayoutError: version 5 was pub"):
        jax.block_until_ready(publish(params, 5))
    with pytest.raises(LayoutError, match="version 5 was published"):
        refit.result(TIMEOUT_S)
    with pytest.raises(JaxError, match=r"INVALID_ARGUMENT: reshard: LayoutError: version=-3"):
        jax.block_until_ready(publish(params, -3))


def test_sides_that_do_not_fit_fail_on_both(source_of, destination_of, pool):
    mesh = all_devices()
    source = source_of(template_of(mesh, 2))
    template = template_of(engine_mesh(), 3)
    del template["norm"]
    destination = destination_of(source, template)
    refit = pool.submit(destination.refit)
    with pytest.raises(JaxError, match=r"(?s)INVALID_ARGUMENT: reshard: PlanError: .*norm"):
        jax.block_until_ready(jax.jit(source.publish_in_jit)(tree_of(mesh, 2, 1), 1))
    with pytest.raises(ValueError, match="norm"):
        refit.result(TIMEOUT_S)


def test_closing_answers_a_program_that_waits(source_of, pool):
    mesh = all_devices()
    source = source_of(template_of(mesh, 2))
    params = tree_of(mesh, 2, 1)
    publish = jax.jit(source.publish_in_jit)
    is_serving = threading.Event()
    core = source._end.publish

    def note(*arguments, **options):
        is_serving.set()
        return core(*arguments, **options)

    source._end.publish = note
    waiting = pool.submit(lambda: jax.block_until_ready(publish(params, 1)))
    assert is_serving.wait(TIMEOUT_S)
    source.close()
    with pytest.raises(JaxError, match=r"reshard: .*closed"):
        waiting.result(TIMEOUT_S)
    with pytest.raises(JaxError, match=r"ABORTED: .*this source is closed"):
        jax.block_until_ready(publish(params, 2))
    with pytest.raises(LayoutError, match="this source is closed; make a new one"):
        jax.jit(lambda p: source.publish_in_jit(p, 3))(params)


def test_a_closed_destination_says_so_and_its_thread_ends(source_of, destination_of):
    mesh = all_devices()
    _, destination = pair_to_refit(source_of, destination_of, mesh)
    refit = jax.jit(destination.refit_in_jit)
    params = tree_of(mesh, 2, 1)
    compiled = refit.lower(params).compile()
    before = [thread.name for thread in threading.enumerate()]
    assert "reshard-destination-in-jit" in before
    destination.close()
    assert "reshard-destination-in-jit" not in [t.name for t in threading.enumerate()]
    with pytest.raises(JaxError, match=r"ABORTED: .*this destination is closed"):
        jax.block_until_ready(compiled(params))
    with pytest.raises(LayoutError, match="this destination is closed"):
        jax.jit(lambda p: destination.refit_in_jit(p))(params)


def test_an_end_that_a_program_needs_lives_until_it_is_closed(destination_of, pool):
    mesh = all_devices()
    params = tree_of(mesh, 2, 1)

    def compiled():
        source = reshard_jax.Source("tcp://127.0.0.1:0", params, timeout_s=TIMEOUT_S)
        program = jax.jit(lambda p: source.publish_in_jit(p, 1)).lower(params).compile()
        return program, weakref.ref(source)

    program, seen = compiled()
    jax.clear_caches()
    gc.collect()
    refit = pool.submit(destination_of(seen(), template_of(engine_mesh(), 3)).refit)
    assert int(program(params)) == 1
    check(refit.result(TIMEOUT_S), 1)
    seen().close()
    gc.collect()
    assert seen() is None
    assert "reshard-source-in-jit" not in [thread.name for thread in threading.enumerate()]


def test_an_end_without_programs_is_not_kept():
    source = reshard_jax.Source("tcp://127.0.0.1:0", template_of(all_devices(), 2))
    seen = weakref.ref(source)
    source.close()
    del source
    assert seen() is None


# ---- what is refused while tracing


@pytest.fixture
def source(source_of):
    return source_of(template_of(all_devices(), 2))


def test_weights_have_to_be_traced(source):
    params = tree_of(all_devices(), 2, 1)
    with pytest.raises(LayoutError, match=r"norm: not traced; pass the weights as an argument"):
        source.publish_in_jit(params, 1)
    with pytest.raises(LayoutError, match=r"attn\.w: not traced"):
        jax.jit(lambda: source.publish_in_jit(params, 1))()
    with pytest.raises(LayoutError, match="a traced value; call this outside jit, or publish_in_"):
        jax.jit(lambda p: source.publish(p, version=1))(params)


def test_vmap_and_grad_are_refused(source):
    params = tree_of(all_devices(), 2, 1)
    two = jax.tree.map(lambda x: np.stack([np.asarray(x)] * 2), params)
    with pytest.raises(UnsupportedError, match=r"publish_in_jit under jax\.vmap"):
        jax.jit(jax.vmap(lambda p: source.publish_in_jit(p, 1)))(two)
    with pytest.raises(UnsupportedError, match=r"publish_in_jit under jax\.vmap"):
        jax.vmap(jax.jit(lambda p: source.publish_in_jit(p, 1)))(two)

    def loss(weight, params, freeze):
        used = dict(params, **{"attn.w": freeze(weight)})
        return weight.sum() + 0 * source.publish_in_jit(used, 1)

    gradient = jax.jit(jax.grad(loss), static_argnums=2)
    with pytest.raises(UnsupportedError, match="publish_in_jit cannot be differentiated"):
        gradient(params["attn.w"], params, lambda x: x)
    lowered = gradient.lower(params["attn.w"], params, jax.lax.stop_gradient)
    assert lowered.as_text().count(f"@{TARGET}") == 1


def test_a_refit_under_vmap_is_refused_by_its_name(source, destination_of):
    destination = destination_of(source, template_of(all_devices(), 2))
    two = jax.tree.map(lambda x: np.stack([np.asarray(x)] * 2), tree_of(all_devices(), 2, 1))
    with pytest.raises(UnsupportedError, match=r"refit_in_jit under jax\.vmap"):
        jax.jit(jax.vmap(destination.refit_in_jit))(two)


def test_shard_map_is_refused(source):
    mesh = all_devices()
    specs = {name: row[2] for name, row in WEIGHTS.items()}
    inside = jax.shard_map(
        lambda p: source.publish_in_jit(p, 1), mesh=mesh, in_specs=(specs,), out_specs=P()
    )
    with pytest.raises(UnsupportedError, match=r"inside jax\.shard_map over \('fsdp', 'tp'\)"):
        jax.jit(inside)(tree_of(mesh, 2, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: dict(p, norm=p["norm"][:4]), r"norm: float16\[4\] is traced, float16\[12\]"),
        (lambda p: dict(p, scale=p["scale"].astype("int32")), r"scale: int32\[\] is traced"),
        (lambda p: {k: v for k, v in p.items() if k != "ids"}, "ids: not there"),
        (lambda p: dict(p, more=p["ids"]), "more: not described"),
    ],
)
def test_weights_that_were_not_described_are_named(source, change, message):
    with pytest.raises(LayoutError, match=message):
        jax.jit(lambda p: source.publish_in_jit(change(p), 1))(tree_of(all_devices(), 2, 1))


def test_on_explicit_axes_another_sharding_is_refused_by_name(source_of):
    mesh = MESHES["explicit"]()
    source = source_of(template_of(mesh, 2))
    params = tree_of(mesh, 2, 1)
    params["ids"] = jax.device_put(params["ids"], NamedSharding(mesh, P("fsdp")))
    with pytest.raises(LayoutError, match=r"ids: traced with P.*'fsdp'.*described with P.*'tp'"):
        jax.jit(source.publish_in_jit)(params, 1)
    params["ids"] = np.asarray(params["ids"])
    with pytest.raises(LayoutError, match="ids: traced with"):
        jax.jit(source.publish_in_jit)(params, 1)


def test_on_auto_axes_xla_moves_what_lies_elsewhere_first(source_of, destination_of, pool):
    """A tracer does not tell, and the values are right; the page says that it costs."""
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    params = tree_of(mesh, 2, 1)
    params["ids"] = jax.device_put(params["ids"], NamedSharding(mesh, P("fsdp")))
    params["norm"] = np.asarray(params["norm"])  # on no mesh
    refit = pool.submit(destination.refit)
    jax.jit(source.publish_in_jit)(params, 1)
    check(refit.result(TIMEOUT_S), 1)


def test_several_meshes_are_refused(source_of):
    template = template_of(all_devices(), 2)
    place = NamedSharding(mesh_of((8,), ("other",)), P("other"))
    template["ids"] = jax.ShapeDtypeStruct((24,), "int8", sharding=place)
    source = source_of(template)
    with pytest.raises(UnsupportedError, match=r"ids is on Mesh.*compiled for one mesh"):
        jax.jit(lambda p: source.publish_in_jit(p, 1)).lower(template)


def test_memory_that_programs_do_not_work_in_is_refused(source_of):
    template = template_of(all_devices(), 2)
    place = NamedSharding(all_devices(), P("tp"), memory_kind="pinned_host")
    template["ids"] = jax.ShapeDtypeStruct((24,), "int8", sharding=place)
    source = source_of(template)
    with pytest.raises(UnsupportedError, match="ids: memory of kind 'pinned_host'"):
        jax.jit(lambda p: source.publish_in_jit(p, 1)).lower(template)


def test_shardings_without_a_mesh(source_of, destination_of, pool):
    place = SingleDeviceSharding(jax.devices()[3])
    params = {"w": jax.device_put(jax_patterns.values("w", (8,), "int16"), place)}
    source = source_of(params)
    destination = destination_of(source, params)
    refit = pool.submit(destination.refit)
    # A program of one device keeps the thread that calls it.
    assert int(jax.jit(source.publish_in_jit)(params, 4)) == 4
    jax_patterns.check("w", np.asarray(refit.result(TIMEOUT_S)["w"]), (8,))


def test_int4_is_refused_by_name(source_of):
    sharding = NamedSharding(all_devices(), P("tp"))
    template = {"w": jax.ShapeDtypeStruct((16,), jnp.int4, sharding=sharding)}
    with pytest.raises(UnsupportedError, match=r"w: .*int4"):
        source_of(template)


@pytest.mark.parametrize("version", [1.5, True, np.bool_(True), "1", -1, 2**31, np.arange(2)])
def test_what_is_no_version_is_refused_while_tracing(source, version):
    if isinstance(version, np.ndarray):
        version = jnp.asarray(version)
    with pytest.raises(LayoutError, match="is not a version"):
        jax.jit(lambda p: source.publish_in_jit(p, version)).lower(template_of(all_devices(), 2))


@pytest.mark.parametrize("limit", [0, -1.0, True, float("nan"), "1", 1e10])
def test_limits_are_seconds(source, limit):
    with pytest.raises(LayoutError, match="timeout_s="):
        jax.jit(lambda p: source.publish_in_jit(p, 1, timeout_s=limit)).lower(
            template_of(all_devices(), 2)
        )


def test_64_bit_versions_with_x64_on(source_of, destination_of, pool):
    mesh = all_devices()
    with jax.enable_x64(True):
        source, destination = pair_to_publish(source_of, destination_of, mesh)
        refit = pool.submit(destination.refit)
        number = jax.jit(source.publish_in_jit)(tree_of(mesh, 2, 1), 2**40 + 1)
        assert (number.dtype, int(number)) == (np.int64, 2**40 + 1)
        assert refit.result(TIMEOUT_S).keys() == WEIGHTS.keys()
        assert destination.version == 2**40 + 1


# ---- cases of users


def test_case_41_the_shards_are_handed_over_and_nothing_is_gathered(source_of, destination_of):
    """jax-ml/jax#32098: a foreign call under jit got the gathered array."""
    mesh = all_devices()
    source, _ = pair_to_publish(source_of, destination_of, mesh)
    text = jax.jit(source.publish_in_jit).lower(tree_of(mesh, 2, 1), 1).compile().as_text()
    (call,) = [line for line in text.splitlines() if f'custom_call_target="{TARGET}"' in line]
    assert "f32[8,6]" in call  # a shard of 16x24 on 2x4 devices
    assert "bf16[1,32]" in call
    for word in ("all-gather", "all-to-all", "all-reduce", "collective-permute"):
        assert word not in text


def test_case_41_a_call_that_xla_gathered_for_is_refused(source_of, destination_of):
    mesh = all_devices()
    source, _ = pair_to_publish(source_of, destination_of, mesh)
    params = tree_of(mesh, 2, 1)
    jax.jit(source.publish_in_jit).lower(params, 1)
    key = source._in_jit._calls._mailbox.key

    def without_shard_map(tree, version):
        results = [jax.ShapeDtypeStruct((), np.int32)]
        call = jax.ffi.ffi_call(TARGET, results, input_output_aliases={0: 0})
        attributes = {"key": key, "site": 0, "timeout_ns": 10**9}
        weights = [x for x in tree.values() if x.size]
        return call(version, *weights, **{k: np.int64(v) for k, v in attributes.items()})

    with pytest.raises(JaxError, match=r"INVALID_ARGUMENT: .*XLA gathered it first"):
        jax.block_until_ready(jax.jit(without_shard_map)(params, jnp.int32(1)))


def test_case_42_weights_on_other_devices_are_refused_before_anything_runs(source_of):
    """jax-ml/jax#32149."""
    source = source_of(template_of(mesh_of((2, 2), NAMES, (0, 1, 2, 3)), 2))
    params = tree_of(mesh_of((2, 2), NAMES, (4, 5, 6, 7)), 2, 1)
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(source.publish_in_jit)(params, 1)


def test_case_43_independent_publishes_of_one_program(opened, destination_of, pool):
    """jax-ml/jax#3976: XLA may reorder calls. All weights of an end are one call."""
    mesh = all_devices()
    sources = [
        reshard_jax.Source("tcp://127.0.0.1:0", template_of(mesh, 2), timeout_s=TIMEOUT_S)
        for _ in range(2)
    ]
    opened += sources
    destinations = [destination_of(each, template_of(engine_mesh(), 3)) for each in sources]

    @jax.jit
    def both(params):
        return [source.publish_in_jit(params, 7 + i) for i, source in enumerate(sources)]

    params = tree_of(mesh, 2, 1)
    assert both.lower(params).as_text().count(f"@{TARGET}") == 2
    refits = [pool.submit(each.refit) for each in destinations]
    assert [int(version) for version in both(params)] == [7, 8]
    for refit in refits:
        check(refit.result(TIMEOUT_S), 1)


def test_case_43_a_dependency_orders_two_calls_of_one_end(source_of, destination_of, pool):
    mesh = all_devices()
    source, destination = pair_to_refit(source_of, destination_of, mesh)
    twice = jax.jit(lambda p: destination.refit_in_jit(destination.refit_in_jit(p)))

    def publish_twice():
        for version in (1, 2):
            source.publish(tree_of(engine_mesh(), 3, version), version=version)

    publishes = pool.submit(publish_twice)
    check(twice(tree_of(mesh, 2, 9)), 2)
    publishes.result(TIMEOUT_S)


def test_case_50_two_programs_on_other_devices_of_one_process_end_by_their_limits(
    source_of, destination_of
):
    """On CPU they never overlap; a thread outside jit, or another process, works."""
    src_mesh, dst_mesh = mesh_of((2,), ("tp",), (0, 1)), mesh_of((2,), ("tp",), (2, 3))
    shape = jax.ShapeDtypeStruct
    source = source_of({"w": shape((8,), np.float32, sharding=NamedSharding(src_mesh, P("tp")))})
    destination = destination_of(
        source, {"w": shape((8,), np.float32, sharding=NamedSharding(dst_mesh, P("tp")))}
    )

    def array(mesh):
        return {"w": jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, P("tp")))}

    publish = jax.jit(lambda p: source.publish_in_jit(p, 1, timeout_s=2.0))
    refit = jax.jit(lambda p: destination.refit_in_jit(p, timeout_s=2.0))
    with pytest.raises(JaxError, match="DEADLINE_EXCEEDED: reshard"):
        jax.block_until_ready([refit(array(dst_mesh)), publish(array(src_mesh))])
    jax.clear_caches()


def test_case_62_the_function_is_registered_once_under_a_name_with_a_version(
    source_of, monkeypatch
):
    from reshard_jax import ffi

    assert re.fullmatch(r"reshard_\w+_v[1-9]\d*", TARGET)
    mesh = all_devices()
    source = source_of(template_of(mesh, 2))
    jax.jit(source.publish_in_jit).lower(tree_of(mesh, 2, 1), 1)
    assert "cpu" in ffi._registered
    calls = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *a, **k: calls.append(a))
    jax.jit(source.publish_in_jit).lower(tree_of(mesh, 2, 1), 1)
    assert calls == []


def test_case_62_another_copy_of_the_library_is_told_of(monkeypatch):
    """The same name with another address: XLA refuses it, once its backend runs."""
    from reshard._native_border import ffi as native
    from reshard._native_border import lib
    from reshard_jax import ffi

    other = int(native.cast("uintptr_t", native.addressof(lib, "reshard_xla_refit_cuda")))
    jax.devices()
    ffi.register("cpu")
    monkeypatch.setattr(ffi, "_registered", set())
    ffi.register("cpu")  # the same function: nothing happens
    monkeypatch.setattr(ffi, "_registered", set())
    monkeypatch.setattr(ffi, "xla_handler", lambda platform: other)
    with pytest.raises(UnsupportedError, match="Two copies of reshard are loaded"):
        ffi.register("cpu")
    assert jax.devices()


def test_case_45_collectives_of_the_program_beside_a_publish(source_of, destination_of, pool):
    """openxla/xla#31027: sums that do not depend on the publish, before, beside and after it."""
    mesh = all_devices()
    source, destination = pair_to_publish(source_of, destination_of, mesh)
    sharding = NamedSharding(mesh, P(NAMES))
    ones = jax.device_put(np.ones((64, 64), np.float32), sharding)

    @jax.jit
    def step(params, x, version):
        before = jnp.sum(x @ x.T)
        number = source.publish_in_jit(params, version)
        return number, before, jnp.sum(x) + before, jnp.sum(x * 2)

    params = tree_of(mesh, 2, 1)
    for version in range(30):
        refit = pool.submit(destination.refit)
        found = [float(value) for value in step(params, ones, version)]
        assert found == [version, 64.0**3, 64.0**3 + 64**2, 2.0 * 64**2]
        check(refit.result(TIMEOUT_S), 1)
