"""Memory options of JAX ends: the old weights are freed before the new ones come."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard_jax  # noqa: E402
from reshard import PlanError, TransferTimeout  # noqa: E402

pytestmark = pytest.mark.jax

TIMEOUT_S = 30.0
SHAPE = (512, 512)


def place(order, spec):
    return NamedSharding(Mesh(np.array(jax.devices())[list(order)], ("x",)), spec)


TRAINER, ENGINE = (0, 1, 2, 3), (7, 6, 5, 4)


def trainer_params(version, dtype=np.float32):
    values = jax_patterns.values("w", SHAPE, dtype, version=version)
    return {"w": jnp.copy(jax.device_put(values, place(TRAINER, P("x"))))}


def check(array, version):
    for shard in array.addressable_shards:
        offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
        jax_patterns.check("w", np.asarray(shard.data), array.shape, offset, version=version)


@pytest.fixture
def ends():
    template = {"w": jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=place(ENGINE, P(None, "x")))}
    with (
        reshard_jax.Source("tcp://127.0.0.1:0", trainer_params(0), timeout_s=TIMEOUT_S) as source,
        reshard_jax.Destination(source.address, template, timeout_s=TIMEOUT_S) as destination,
        ThreadPoolExecutor(1) as pool,
    ):

        def refit(version, *, free=None, params=None):
            params = trainer_params(version) if params is None else params
            waiting = pool.submit(destination.refit, free=free)
            try:
                source.publish(params, version=version)
            finally:
                result = waiting.result()
            return result

        yield refit, destination


@pytest.mark.parametrize("is_freed", [True, False])
def test_there_is_no_second_copy_of_what_is_freed(ends, is_freed):
    refit, _ = ends
    refit(1)
    trained = trainer_params(2), trainer_params(3)
    tracemalloc.start()
    try:
        old = refit(2, params=trained[0])
        tracemalloc.reset_peak()
        new = refit(3, params=trained[1], free=old if is_freed else None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert old["w"].is_deleted() == is_freed
    check(new["w"], 3)
    assert (peak < 1.5 * 4 * math.prod(SHAPE)) == is_freed


def test_what_shares_memory_with_other_arrays_is_spared(ends):
    refit, destination = ends
    first = refit(1)
    mesh = Mesh(np.array(jax.devices())[list(ENGINE)], ("other",))
    twin = jax.device_put(first["w"], NamedSharding(mesh, P(None, "other")))
    second = refit(2, free=first)
    assert not first["w"].is_deleted()
    check(twin, 1)
    check(second["w"], 2)
    assert (destination.state, destination.version) == ("ready", 2)


def test_a_failed_refit_that_freed_is_torn_until_the_next_one(ends):
    refit, destination = ends
    first = refit(1)
    with pytest.raises(PlanError):
        refit(2, free=first, params=trainer_params(2, jnp.bfloat16))
    assert first["w"].is_deleted()
    assert (destination.state, destination.version) == ("torn", None)
    with pytest.raises(TransferTimeout):
        destination.refit(timeout_s=0.2)
    assert destination.state == "torn"
    check(refit(3)["w"], 3)
    assert (destination.state, destination.version) == ("ready", 3)


def test_other_leaves_and_arrays_that_are_gone_are_passed_over(ends):
    refit, destination = ends
    first = refit(1)
    second = refit(2, free={"gone": first, "step": 3, "name": "x"})
    third = refit(3, free={"gone": first, "now": second})
    check(third["w"], 3)
    assert destination.state == "ready"


def test_leaves_that_are_no_weights_are_not_freed():
    template = {
        "w": jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=place(ENGINE, P())),
        "step": jnp.int32(7),
    }
    with (
        reshard_jax.Source("tcp://127.0.0.1:0", trainer_params(0), timeout_s=TIMEOUT_S) as source,
        reshard_jax.Destination(
            source.address, template, leaves=lambda name, _: name == "w", timeout_s=TIMEOUT_S
        ) as destination,
        ThreadPoolExecutor(1) as pool,
    ):
        params = None
        for version in (1, 2, 3):
            waiting = pool.submit(destination.refit, free=params)
            source.publish(trainer_params(version), version=version)
            old, params = params, waiting.result()
            assert int(params["step"]) == 7
            np.asarray(params["w"])  # of which JAX keeps a second array
            assert old is None or old["w"].is_deleted()
            check(params["w"], version)
