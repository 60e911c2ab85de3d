"""Refits between JAX programs of several processes with several devices each."""

from __future__ import annotations

import math
import signal

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices
from helpers.jax_processes import reserved_port, start_jax
from helpers.ranks import Outcome, ProcessGroup, listen, tell

use_cpu_devices()

import jax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard_jax  # noqa: E402
from reshard import LayoutError, TransferTimeout, TransportError  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.processes]

TIMEOUT_S = 60.0
LIMIT_S = 100.0
SHAPES = {"layers.0.w": (16, 24), "layers.1.w": (24, 16), "norm": (24,), "scale": ()}


def mesh_of(shape, names, order=None):
    numbers = range(math.prod(shape)) if order is None else order
    return Mesh(np.array(jax.devices())[list(numbers)].reshape(shape), names)


def global_array(name, shape, sharding, version, dtype=np.float32):
    whole = jax_patterns.values(name, shape, dtype, version=version)
    return jax.make_array_from_callback(shape, sharding, lambda index: whole[index], dtype=dtype)


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


def trainer_params(version, order, specs):
    mesh = mesh_of((2, 2), ("fsdp", "tp"), order)
    return {
        name: global_array(name, shape, NamedSharding(mesh, specs.get(name, P())), version)
        for name, shape in SHAPES.items()
    }


def engine_template(mesh):
    specs = {"layers.0.w": P(None, "tp"), "layers.1.w": P(("tp", "dp")), "norm": P()}
    return {
        name: jax.ShapeDtypeStruct(
            shape, np.float32, sharding=NamedSharding(mesh, specs.get(name, P()))
        )
        for name, shape in SHAPES.items()
    }


def values_of(group):
    """Returns what each process returned; raises with all outputs if one did not."""
    outcomes: list[Outcome] = group.finish()
    for outcome in outcomes:
        assert outcome.is_success, f"process {outcome.process}: {outcome.error}\n{outcome.output}"
    return [outcome.value for outcome in outcomes]


# ---- two programs, two processes of two devices each

ROUNDS = [
    {"layers.0.w": P("fsdp", "tp"), "layers.1.w": P("tp", "fsdp"), "norm": P("tp")},
    # An unconstrained step gave two weights other shardings.
    {"layers.0.w": P("fsdp"), "layers.1.w": P(("tp", "fsdp")), "norm": P()},
    {"layers.0.w": P("fsdp"), "layers.1.w": P(("tp", "fsdp")), "norm": P()},
]


def train(process, num_processes, port, order):
    start_jax(process, num_processes, port, num_devices=2)
    ids = [device.id for device in jax.devices()]
    with reshard_jax.Source(
        "tcp://127.0.0.1:0" if process == 0 else listen(),
        trainer_params(0, order, ROUNDS[0]),
        timeout_s=TIMEOUT_S,
    ) as source:
        if process == 0:
            tell(source.address)
        reports = [
            source.publish(trainer_params(version, order, specs), version=version)
            for version, specs in enumerate(ROUNDS)
        ]
    return ids, [(report.version, report.nbytes, report.share_resharded) for report in reports]


def serve(process, num_processes, port, num_devices, address):
    start_jax(process, num_processes, port, num_devices)
    mesh = mesh_of((2, 2), ("dp", "tp"), (3, 0, 2, 1))
    counts, shapes = [], []
    with reshard_jax.Destination(address, engine_template(mesh), timeout_s=TIMEOUT_S) as end:
        for version in range(len(ROUNDS)):
            params = end.refit()
            assert end.version == version
            counts.append(check_shards(params, version))
            shapes.append({name: (x.shape, str(x.sharding.spec)) for name, x in params.items()})
    return counts, shapes


def run_trainer_and_engine(num_engines):
    """Returns what trainer and engine processes returned; the engine has four devices in all."""
    with (
        reserved_port() as trainer_port,
        reserved_port() as engine_port,
        ProcessGroup(train, 2, LIMIT_S, arguments=(trainer_port, (2, 1, 3, 0))) as trainer,
    ):
        address = trainer.expect(0, 60.0)
        trainer.send(1, address)
        arguments = (engine_port, 4 // num_engines, address)
        with ProcessGroup(serve, num_engines, LIMIT_S, arguments=arguments) as engine:
            return values_of(trainer), values_of(engine)


@pytest.fixture(scope="module")
def two_by_two():
    """A trainer and an engine of two processes each."""
    return run_trainer_and_engine(2)


def test_case_e49_two_processes_of_two_devices_on_each_side(two_by_two):
    trained, served = two_by_two
    # Ranks are positions in this list: ids have a gap.
    assert [ids for ids, _ in trained] == [[0, 1, 2048, 2049]] * 2
    expected = 4 * (2 * 16 * 24 + 24 * 16 + 4 * 24 + 4 * 1)
    for _, reports in trained:
        assert reports == [(version, expected, 1.0) for version in range(3)]
    assert sum(counts[0] for counts, _ in served) * 4 == expected


def test_case_e55_one_process_and_several_get_arrays_of_the_same_shape(two_by_two):
    _, one = run_trainer_and_engine(1)
    _, several = two_by_two
    shapes = [shapes for _, shapes in one + several]
    assert shapes[0] == shapes[1] == shapes[2]
    assert one[0][0] == [sum(counts) for counts in zip(*(c for c, _ in several), strict=True)]


# ---- processes that have none of the weights


def train_on_the_devices_of_process_one(process, num_processes, port):
    start_jax(process, num_processes, port, num_devices=2)
    sharding = NamedSharding(mesh_of((2,), ("x",), (3, 2)), P("x"))
    params = {"w": global_array("w", (8, 4), sharding, 1)}
    num_shards = len(params["w"].addressable_shards)
    address = "tcp://127.0.0.1:0" if process == 0 else listen()
    with reshard_jax.Source(address, params, timeout_s=TIMEOUT_S) as source:
        if process == 0:
            tell(source.address)
        report = source.publish(params, version=1)
    return num_shards, report.nbytes


def serve_on_the_devices_of_process_zero(process, num_processes, port, address):
    start_jax(process, num_processes, port, num_devices=2)
    sharding = NamedSharding(mesh_of((2,), ("y",), (0, 1)), P(None, "y"))
    template = {"w": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=sharding)}
    with reshard_jax.Destination(address, template, timeout_s=TIMEOUT_S) as destination:
        array = destination.refit()["w"]
    return array.shape, len(array.addressable_shards), check_shards({"w": array}, 1)


def test_processes_without_any_weight_take_part():
    with (
        reserved_port() as trainer_port,
        reserved_port() as engine_port,
        ProcessGroup(
            train_on_the_devices_of_process_one, 2, LIMIT_S, arguments=(trainer_port,)
        ) as trainer,
    ):
        address = trainer.expect(0, 60.0)
        trainer.send(1, address)
        arguments = (engine_port, address)
        with ProcessGroup(
            serve_on_the_devices_of_process_zero, 2, LIMIT_S, arguments=arguments
        ) as engine:
            assert values_of(trainer) == [(0, 128), (2, 128)]
            assert values_of(engine) == [((8, 4), 2, 32), ((8, 4), 0, 0)]


# ---- errors and deaths


def publish_with_an_array_of_its_own(process, num_processes, port):
    start_jax(process, num_processes, port, num_devices=1)
    params = {"w": jax.device_put(np.zeros(3, np.float32), jax.local_devices()[0])}
    try:
        reshard_jax.Source("tcp://127.0.0.1:0", params)
    except LayoutError as error:
        return str(error)
    return "accepted"


def test_arrays_that_each_process_has_for_itself_are_refused_on_all():
    with (
        reserved_port() as port,
        ProcessGroup(publish_with_an_array_of_its_own, 2, LIMIT_S, arguments=(port,)) as group,
    ):
        for message in values_of(group):
            assert "w: SingleDeviceSharding" in message
            assert "local to one of 2 processes" in message
            assert "NamedSharding(mesh, P())" in message


def publish_until_told(process, num_processes):
    use_cpu_devices(2)
    sharding = NamedSharding(mesh_of((2,), ("x",)), P("x"))
    params = {"w": global_array("w", (8, 4), sharding, 1)}
    with reshard_jax.Source("tcp://127.0.0.1:0", params, timeout_s=TIMEOUT_S) as source:
        tell(source.address)
        source.publish(params, version=1)
        assert listen(TIMEOUT_S) == "the first engine is dead"
        error_kind = None
        try:
            source.publish(params, version=2, timeout_s=3.0)
        except (TransferTimeout, TransportError) as error:
            error_kind = type(error).__name__
        tell("told")
        report = source.publish(params, version=3, timeout_s=TIMEOUT_S)
        check_shards(params, 1)
    return error_kind, report.version


def serve_one(process, num_processes, address):
    use_cpu_devices(2)
    sharding = NamedSharding(mesh_of((2,), ("y",)), P(None, "y"))
    template = {"w": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=sharding)}
    with reshard_jax.Destination(address, template, timeout_s=TIMEOUT_S) as destination:
        array = destination.refit()["w"]
        tell(destination.version)
        check_shards({"w": array}, 1)
        return listen(TIMEOUT_S)


def test_a_killed_engine_is_told_and_the_next_one_is_served():
    with ProcessGroup(publish_until_told, 1, LIMIT_S) as trainer:
        address = trainer.expect(0, 60.0)
        with ProcessGroup(serve_one, 1, LIMIT_S, arguments=(address,)) as first:
            assert first.expect(0, 60.0) == 1
            first.signal(0, signal.SIGKILL)
            assert first.wait(0).exit_code == -signal.SIGKILL
        trainer.send(0, "the first engine is dead")
        assert trainer.expect(0, 60.0) == "told"
        with ProcessGroup(serve_one, 1, LIMIT_S, arguments=(address,)) as second:
            assert second.expect(0, 60.0) == 3
            second.send(0, "done")
            assert values_of(second) == ["done"]
        ((error_kind, version),) = values_of(trainer)
    assert error_kind in ("TransferTimeout", "TransportError", "RendezvousError")
    assert version == 3
