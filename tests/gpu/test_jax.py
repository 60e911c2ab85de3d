"""JAX on GPUs: arrays of one program refit those of another, on all GPUs that each of them sees.

The same functions run with arrays in host memory, where no GPU is needed to see that they work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.gpu_places import SHARED, placed
from helpers.team import Desk, Team

pytestmark = [pytest.mark.jax, pytest.mark.processes, pytest.mark.timeout(400)]

SHAPE = (96, 40)
VERSIONS = (1, 2, 5)
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def programs(machine) -> Iterator[tuple[Team, str]]:
    """Two processes, each of which has all GPUs or half of them, and the platform of JAX."""
    if not importlib.util.find_spec("jax"):
        pytest.skip("needs JAX: pip install 'reshard[jax]'")
    if not machine.is_real:
        with Team(2) as team:
            yield team, "cpu"
        return
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(importlib.util.find_spec(name) for name in plugins):
        pytest.skip("this JAX has no CUDA; install it with: pip install 'jax[cuda12]'")
    own, count = placed(machine)
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": "cuda"}
    if count == 1:
        environment |= SHARED
    if own.nccl is not None:
        environment["RESHARD_NCCL_LIBRARY"] = own.nccl
    with Team(2, environment=environment) as team:
        yield team, "cuda"


def whole(version: int) -> np.ndarray:
    return np.random.default_rng(version).standard_normal(SHAPE, np.float32)


def sharding_of(desk: Desk, platform: str, process: int, *spec: str | None):
    """Returns the sharding over this process's half of the devices, all of them where one is."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if not hasattr(desk, "devices"):
        if platform == "cpu":
            jax.config.update("jax_platforms", "cpu")
        devices = jax.devices()
        desk.devices = devices[process::2] if len(devices) > 1 else devices
    return NamedSharding(Mesh(np.array(desk.devices), ("x",)), PartitionSpec(*spec))


def open_source(desk: Desk, platform: str) -> str:
    import jax

    import reshard_jax

    sharding = sharding_of(desk, platform, 0, "x", None)
    desk.params = {version: {"w": jax.device_put(whole(version), sharding)} for version in VERSIONS}
    transport = "nccl" if platform == "cuda" else "shm"
    desk.end = reshard_jax.Source(
        "tcp://127.0.0.1:0", desk.params[VERSIONS[0]], transport=transport, timeout_s=TIMEOUT_S
    )
    return desk.end.address


def publish(desk: Desk) -> None:
    with desk.end:
        for version, params in desk.params.items():
            desk.end.publish(params, version=version)


def refit(desk: Desk, platform: str, address: str) -> list[int]:
    import jax

    import reshard_jax

    sharding = sharding_of(desk, platform, 1, None, "x")
    template = {"w": jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=sharding)}
    seen = []
    with reshard_jax.Destination(address, template, timeout_s=TIMEOUT_S) as destination:
        for version in VERSIONS:
            array = destination.refit()["w"]
            seen.append(destination.version)
            assert array.sharding == sharding
            np.testing.assert_array_equal(np.asarray(array * 2), whole(version) * 2)
    return seen


def test_arrays_of_a_trainer_refit_those_of_an_engine(programs):
    team, platform = programs
    (address,) = team.values([0], open_source, platform, timeout_s=120.0)
    team.start(1, refit, platform, address)
    team.start(0, publish)
    assert team.result(1, 120.0).get() == list(VERSIONS)
    assert team.result(0, 120.0).get() is None
