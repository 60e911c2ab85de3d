"""Refits inside jitted programs on both sides, each side a JAX job of its own."""

from __future__ import annotations

import math
import signal
import time

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices
from helpers.jax_processes import reserved_port, start_jax
from helpers.ranks import ProcessGroup, listen, tell

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard_jax  # noqa: E402
from reshard import UnsupportedError  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.processes]

TIMEOUT_S = 60.0
LIMIT_S = 110.0
SHAPES = {"w": (16, 24), "v": (24, 16), "norm": (24,), "scale": ()}
TRAINER = {"w": P("fsdp", "tp"), "v": P(("tp", "fsdp")), "norm": P("tp"), "scale": P()}
ENGINE = {"w": P(None, "tp"), "v": P("fsdp"), "norm": P(), "scale": P()}
ROUNDS = 5


def mesh_of(order):
    return Mesh(np.array(jax.devices())[list(order)].reshape(2, 2), ("fsdp", "tp"))


def params_of(version, order, specs):
    mesh = mesh_of(order)
    params = {}
    for name, shape in SHAPES.items():
        whole = jax_patterns.values(name, shape, np.float32, version=version)
        params[name] = jax.make_array_from_callback(
            shape, NamedSharding(mesh, specs[name]), lambda index, whole=whole: whole[index]
        )
    return params


def check_shards(params, version):
    """Checks what this process has of every weight; returns how many elements that were."""
    count = 0
    for name, array in params.items():
        for shard in array.addressable_shards:
            offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
            found = np.asarray(shard.data)
            jax_patterns.check(name, found, array.shape, offset, version=version)
            count += found.size
    return count


def start(process, num_processes, port, num_devices):
    if num_processes == 1:
        use_cpu_devices(num_devices)
    else:
        start_jax(process, num_processes, port, num_devices)
    assert jax.device_count() == 4  # asked for here, because all processes of a job wait for it


def values_of(group):
    outcomes = group.finish()
    for outcome in outcomes:
        assert outcome.is_success, f"process {outcome.process}: {outcome.error}\n{outcome.output}"
    return [outcome.value for outcome in outcomes]


# ---- both sides in jit

TRAINER_ORDER, ENGINE_ORDER = (2, 1, 3, 0), (3, 0, 2, 1)


def train(process, num_processes, port):
    start(process, num_processes, port, 4 // num_processes)
    address = "tcp://127.0.0.1:0" if process == 0 else listen()
    params = params_of(0, TRAINER_ORDER, TRAINER)
    with reshard_jax.Source(address, params, timeout_s=TIMEOUT_S) as source:
        if process == 0:
            tell(source.address)
        publish = jax.jit(source.publish_in_jit)
        for version in range(ROUNDS):
            params = params_of(version, TRAINER_ORDER, TRAINER)
            assert int(publish(params, jnp.int32(version))) == version
        return [device.id for device in jax.local_devices()], publish._cache_size()


def serve(process, num_processes, port, address):
    start(process, num_processes, port, 4 // num_processes)
    params = params_of(99, ENGINE_ORDER, ENGINE)
    counts = []
    with reshard_jax.Destination(address, params, timeout_s=TIMEOUT_S) as destination:
        refit = jax.jit(destination.refit_in_jit, donate_argnums=0)
        for version in range(ROUNDS):
            params = refit(params)
            jax.block_until_ready(params)
            assert destination.version == version
            counts.append(check_shards(params, version))
        return counts, refit._cache_size()


@pytest.mark.parametrize("num_processes", [1, 2])
def test_case_49_programs_on_both_sides_of_one_and_of_two_processes(num_processes):
    """openxla/xla#16430: two processes with two devices each."""
    with (
        reserved_port() as trainer_port,
        reserved_port() as engine_port,
        ProcessGroup(train, num_processes, LIMIT_S, arguments=(trainer_port,)) as trainer,
    ):
        address = trainer.expect(0, 60.0)
        for process in range(1, num_processes):
            trainer.send(process, address)
        arguments = (engine_port, address)
        with ProcessGroup(serve, num_processes, LIMIT_S, arguments=arguments) as engine:
            trained, served = values_of(trainer), values_of(engine)
    # XLA tells devices apart by ids, which have a gap between processes.
    expected = [[0, 1, 2, 3]] if num_processes == 1 else [[0, 1], [2048, 2049]]
    assert trained == [(ids, 1) for ids in expected]
    held = 4 * 16 * 24 // 2 + 4 * 24 * 16 // 2 + 4 * 24 + 4
    assert [sum(counts) for counts in zip(*(c for c, _ in served), strict=True)] == [held] * ROUNDS
    assert all(size == 1 for _, size in served)


# ---- a peer that dies, and another one


def train_through_a_death(process, num_processes):
    use_cpu_devices(4)
    params = params_of(7, TRAINER_ORDER, TRAINER)
    with reshard_jax.Source("tcp://127.0.0.1:0", params, timeout_s=TIMEOUT_S) as source:
        tell(source.address)

        @jax.jit
        def publish(params, version):
            return source.publish_in_jit(params, version, timeout_s=3.0)

        publish_first = jax.jit(source.publish_in_jit)
        assert int(publish_first(params, 1)) == 1
        assert listen(TIMEOUT_S) == "the first engine is dead"
        start = time.monotonic()
        message = ""
        try:
            jax.block_until_ready(publish(params, 2))
        except jax.errors.JaxRuntimeError as error:
            message = str(error)
        seconds = time.monotonic() - start
        check_shards(params, 7)
        tell("told")
        assert int(publish_first(params, 3)) == 3
        return message, seconds, publish_first._cache_size()


def serve_once(process, num_processes, address):
    use_cpu_devices(4)
    params = params_of(99, ENGINE_ORDER, ENGINE)
    with reshard_jax.Destination(address, params, timeout_s=TIMEOUT_S) as destination:
        params = jax.jit(destination.refit_in_jit, donate_argnums=0)(params)
        check_shards(params, 7)
        tell(destination.version)
        return listen(TIMEOUT_S)


def test_a_killed_engine_is_an_error_of_the_program_and_the_next_one_is_served():
    with ProcessGroup(train_through_a_death, 1, LIMIT_S) as trainer:
        address = trainer.expect(0, 60.0)
        with ProcessGroup(serve_once, 1, LIMIT_S, arguments=(address,)) as first:
            assert first.expect(0, 60.0) == 1
            first.signal(0, signal.SIGKILL)
            assert first.wait(0).exit_code == -signal.SIGKILL
        trainer.send(0, "the first engine is dead")
        assert trainer.expect(0, 60.0) == "told"
        with ProcessGroup(serve_once, 1, LIMIT_S, arguments=(address,)) as second:
            assert second.expect(0, 60.0) == 3
            second.send(0, "done")
            assert values_of(second) == ["done"]
        ((message, seconds, cache_size),) = values_of(trainer)
    assert "reshard: TransferTimeout" in message
    assert "DEADLINE_EXCEEDED" in message
    assert seconds < 15.0
    assert cache_size == 1


# ---- a process that has none of the devices


def trace_on_devices_of_one_process(process, num_processes, port):
    start_jax(process, num_processes, port, num_devices=2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    template = {"w": jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P("x")))}
    address = "tcp://127.0.0.1:0" if process == 0 else listen()
    with reshard_jax.Source(address, template, timeout_s=TIMEOUT_S) as source:
        if process == 0:
            tell(source.address)
        try:
            jax.jit(lambda p: source.publish_in_jit(p, 1)).lower(template)
        except UnsupportedError as error:
            return str(error)
    return "accepted"


def test_a_mesh_without_some_process_is_refused_on_all():
    with (
        reserved_port() as port,
        ProcessGroup(trace_on_devices_of_one_process, 2, LIMIT_S, arguments=(port,)) as group,
    ):
        group.send(1, group.expect(0, 60.0))
        for message in values_of(group):
            assert "processes [1] of 2 have no device of Mesh" in message
            assert "outside jit" in message


# ---- the end of the interpreter


def leave_with_a_publish_under_way(process, num_processes, has_engine):
    """Returns while its program waits; nothing is closed, and nothing is waited for."""
    use_cpu_devices(4)
    params = params_of(7, TRAINER_ORDER, TRAINER)
    limit = TIMEOUT_S if has_engine else 2.0
    source = reshard_jax.Source("tcp://127.0.0.1:0", params, timeout_s=limit)
    tell(source.address)
    jax.jit(source.publish_in_jit)(params, 1)
    tell("dispatched")


def test_case_44_a_program_to_a_missing_peer_does_not_keep_the_interpreter():
    """mpi4jax/mpi4jax#22: hang at exit."""
    with ProcessGroup(leave_with_a_publish_under_way, 1, LIMIT_S, arguments=(False,)) as group:
        group.expect(0, 60.0)
        assert group.expect(0, 60.0) == "dispatched"
        outcome = group.wait(0, 30.0)
    assert outcome.exit_code == 0
    assert "TransferTimeout" in outcome.output  # JAX says so at exit
    assert "at exit:" not in outcome.output


def serve_when_told(process, num_processes, address):
    use_cpu_devices(2)
    assert listen(TIMEOUT_S) == "the trainer has left"
    mesh = Mesh(np.array(jax.devices()), ("x",))
    template = {
        name: jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P()))
        for name, shape in SHAPES.items()
    }
    with reshard_jax.Destination(address, template, timeout_s=TIMEOUT_S) as destination:
        return check_shards(destination.refit(), 7)


def test_case_44_a_program_that_is_under_way_at_exit_ends_well():
    with ProcessGroup(leave_with_a_publish_under_way, 1, LIMIT_S, arguments=(True,)) as trainer:
        address = trainer.expect(0, 60.0)
        assert trainer.expect(0, 60.0) == "dispatched"
        with ProcessGroup(serve_when_told, 1, LIMIT_S, arguments=(address,)) as engine:
            engine.send(0, "the trainer has left")
            assert values_of(engine) == [2 * sum(math.prod(s) for s in SHAPES.values())]
        outcome = trainer.wait(0, 30.0)
    assert (outcome.exit_code, outcome.output) == (0, "")
