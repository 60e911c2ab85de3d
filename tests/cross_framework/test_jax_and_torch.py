"""Refits between a JAX program and a PyTorch program, in both directions.

The JAX side is one process of four devices or two of two; the PyTorch side is two gloo ranks.
Neither program imports the other's framework. Names, shapes and dims differ between the two: forms
bring them together. Every element is compared with the pattern of its canonical tensor.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from helpers import patterns
from helpers.team import Desk, Team

from reshard import DType, Form, Part
from reshard.loopback import numpy_dtype

# Importing torch and JAX takes seconds of a core each.
pytestmark = [
    pytest.mark.jax,
    pytest.mark.torch,
    pytest.mark.processes,
    pytest.mark.timeout(400),
]

LIMIT_S = 110.0
VERSIONS = 3
HEADS, HEAD_DIM, EMBED, FFN = 4, 6, 16, 10


@dataclass(frozen=True)
class Weight:
    """One weight: its canonical name, shape and dtype, and how each side stores it.

    `leaf`, `leaf_shape`, `spec`, `form` are JAX's; `shard_dim` is torch's (None: plain tensor).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    leaf: str
    leaf_shape: tuple[int, ...]
    spec: tuple[object, ...]
    form: str
    shard_dim: int | None


WEIGHTS = [
    Weight(
        "q.weight",
        (HEADS * HEAD_DIM, EMBED),
        "float32",
        "attn.q.w",
        (EMBED, HEADS, HEAD_DIM),
        ("fsdp", "tp"),
        "embed heads dim -> (heads dim) embed",
        0,
    ),
    Weight(
        "o.weight",
        (EMBED, HEADS * HEAD_DIM),
        "bfloat16",
        "attn.o.w",
        (HEADS, HEAD_DIM, EMBED),
        ("tp", None, "fsdp"),
        "heads dim embed -> embed (heads dim)",
        1,
    ),
    # Five rows a rank in torch (uneven over the JAX mesh's four), tuple axes in JAX.
    Weight(
        "up.weight", (FFN, EMBED), "float16", "up", (EMBED, FFN), (("tp", "fsdp"),), "d f -> f d", 0
    ),
    Weight("odd.weight", (3, EMBED), "float32", "odd", (EMBED, 3), ("fsdp",), "d f -> f d", 0),
    Weight("norm.weight", (EMBED,), "float32", "norm", (EMBED,), ("tp",), "d -> d", None),
    Weight(
        "fp8.weight", (8, EMBED), "float8_e4m3fn", "fp8", (8, EMBED), (None, "tp"), "f d -> f d", 0
    ),
    Weight("e8.scale", (8, 4), "float8_e8m0fnu", "e8", (8, 4), ("tp",), "f d -> f d", 1),
    Weight("mask", (6, 4), "bool", "mask", (6, 4), (None, "fsdp"), "f d -> f d", 0),
    Weight("scalar", (), "float32", "scalar", (), (), " -> ", None),
]


def jax_forms(stored: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
    weight = next(weight for weight in WEIGHTS if weight.leaf == stored)
    return (Part(weight.name, Form(weight.form)),)


def canonical_bits(weight: Weight, version: int) -> patterns.Array:
    dtype = DType.of(weight.dtype)
    bits = patterns.whole(weight.name, weight.shape, dtype.itemsize, version)
    return bits & 1 if dtype is DType.BOOL else bits


def leaf_bits(weight: Weight, version: int) -> patterns.Array:
    """The leaf's content, by NumPy calls that know nothing of forms."""
    bits = canonical_bits(weight, version)
    if weight.name == "q.weight":
        return bits.reshape(HEADS, HEAD_DIM, EMBED).transpose(2, 0, 1)
    if weight.name == "o.weight":
        return bits.reshape(EMBED, HEADS, HEAD_DIM).transpose(1, 2, 0)
    return bits.T if weight.form == "d f -> f d" else bits


# ---- the JAX program


def jax_params(version: int, order: tuple[int, ...]) -> dict[str, object]:
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices())[list(order)].reshape(2, 2), ("fsdp", "tp"))
    params: dict[str, object] = {}
    for weight in WEIGHTS:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*weight.spec))
        whole = np.array(leaf_bits(weight, version), order="C").view(
            numpy_dtype(DType.of(weight.dtype))
        )
        params[weight.leaf] = jax.make_array_from_callback(
            weight.leaf_shape, sharding, lambda index, whole=whole: whole[index]
        )
    return params


def check_jax(params: dict[str, object], version: int) -> int:
    count = 0
    for weight in WEIGHTS:
        whole = leaf_bits(weight, version)
        for shard in params[weight.leaf].addressable_shards:
            found = patterns.as_bits(np.asarray(shard.data))
            problem = patterns.explain_mismatch(weight.leaf, found, whole[shard.index], whole)
            assert problem is None, problem
            count += found.size
    return count


def start_jax(desk: Desk, port: int) -> None:
    if desk.num_processes == 1:
        from helpers.jax_devices import use_cpu_devices

        use_cpu_devices(4)
    else:
        from helpers.jax_processes import start_jax as start

        start(desk.process, desk.num_processes, port, num_devices=4 // desk.num_processes)
    import jax

    assert jax.device_count() == 4  # asked for here, because all processes of a job wait for it


def open_jax_source(desk: Desk, address: str) -> str | None:
    import reshard_jax

    desk.end = reshard_jax.Source(address, jax_params(0, (2, 0, 1, 3)), forms=jax_forms)
    return desk.end.address


def publish_from_jax(desk: Desk) -> list[float]:
    shares = []
    with desk.end as source:
        for version in range(VERSIONS):
            report = source.publish(jax_params(version, (2, 0, 1, 3)), version=version)
            assert report.is_verified
            shares.append(report.share_resharded)
    assert "torch" not in sys.modules
    return shares


def refit_jax(desk: Desk, address: str) -> int:
    import reshard_jax

    template = jax_params(99, (1, 3, 0, 2))
    with reshard_jax.Destination(address, template, forms=jax_forms) as destination:
        for version in range(VERSIONS):
            params = destination.refit()
            assert destination.version == version
            count = check_jax(params, version)
            assert {name: x.sharding for name, x in params.items()} == {
                name: x.sharding for name, x in template.items()
            }
    assert "torch" not in sys.modules
    return count


def publish_from_jax_in_jit(desk: Desk) -> list[float]:
    import jax
    import jax.numpy as jnp

    shares = []
    with desk.end as source:
        publish = jax.jit(source.publish_in_jit)
        for version in range(VERSIONS):
            number = publish(jax_params(version, (2, 0, 1, 3)), jnp.int32(version))
            assert int(number) == version
            assert source.report.is_verified
            shares.append(source.report.share_resharded)
        assert publish._cache_size() == 1
    assert "torch" not in sys.modules
    return shares


def refit_jax_in_jit(desk: Desk, address: str) -> int:
    import jax

    import reshard_jax

    params = jax_params(99, (1, 3, 0, 2))
    with reshard_jax.Destination(address, params, forms=jax_forms) as destination:
        refit = jax.jit(destination.refit_in_jit, donate_argnums=0)
        for version in range(VERSIONS):
            params = refit(params)
            jax.block_until_ready(params)
            assert destination.version == version
            count = check_jax(params, version)
        assert refit._cache_size() == 1
    assert "torch" not in sys.modules
    return count


# ---- the PyTorch program


def torch_tensors(version: int) -> dict[str, object]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    tensors: dict[str, object] = {}
    for weight in WEIGHTS:
        bits = np.array(canonical_bits(weight, version))
        flat = torch.from_numpy(bits.reshape(-1).view(np.uint8))
        whole = flat.view(getattr(torch, weight.dtype)).reshape(weight.shape)
        if weight.shard_dim is None:
            tensors[weight.name] = whole.clone()
        else:
            part = torch.chunk(whole, 2, weight.shard_dim)[mesh.get_local_rank()].clone()
            tensors[weight.name] = DTensor.from_local(
                part,
                mesh,
                [Shard(weight.shard_dim)],
                shape=whole.shape,
                stride=whole.stride(),
            )
    return tensors


def local_bits(tensor: object) -> patterns.Array:
    from helpers.torch_ranks import bits_of

    return bits_of(tensor.to_local() if hasattr(tensor, "to_local") else tensor)


def start_torch(desk: Desk, folder: str) -> None:
    from helpers.torch_ranks import gloo_group

    desk.group = contextlib.ExitStack()
    desk.group.enter_context(gloo_group(desk.process, desk.num_processes, folder))


def leave_torch(desk: Desk) -> None:
    desk.group.close()


def refit_torch(desk: Desk, address: str) -> int:
    import reshard_torch

    tensors = torch_tensors(version=99)
    with reshard_torch.Destination(address, tensors) as destination:
        for version in range(VERSIONS):
            assert destination.refit() == version
            expected = torch_tensors(version)
            for weight in WEIGHTS:
                found, right = (
                    local_bits(tensors[weight.name]),
                    local_bits(expected[weight.name]),
                )
                whole = canonical_bits(weight, version)
                problem = patterns.explain_mismatch(weight.name, found, right, whole)
                assert problem is None, problem
    assert "jax" not in sys.modules
    return sum(local_bits(tensor).size for tensor in tensors.values())


def open_torch_source(desk: Desk, address: str) -> str | None:
    import reshard_torch

    desk.end = reshard_torch.Source(address, torch_tensors(0))
    return desk.end.address


def publish_from_torch(desk: Desk) -> list[float]:
    with desk.end as source:
        shares = [
            source.publish(torch_tensors(version), version=version).share_resharded
            for version in range(VERSIONS)
        ]
    assert "jax" not in sys.modules
    return shares


# ---- both together


@pytest.fixture(scope="module", params=[1, 2])
def jax_program(request) -> Iterator[Team]:
    """Four devices in one process or two, which stay up for both directions."""
    from helpers.jax_processes import reserved_port

    with reserved_port() as port, Team(request.param) as team:
        team.values(range(request.param), start_jax, port, timeout_s=LIMIT_S)
        yield team


@pytest.fixture(scope="module")
def torch_program(tmp_path_factory) -> Iterator[Team]:
    with Team(2) as team:
        folder = str(tmp_path_factory.mktemp("group"))
        team.values(range(2), start_torch, folder, timeout_s=LIMIT_S)
        yield team
        team.values(range(2), leave_torch)


def refit_between(source: Team, opening, publishing, engine: Team, refitting):
    """Returns what the processes of the source returned, and those of the engine."""
    sources, engines = range(source.num_processes), range(engine.num_processes)
    first, *others = sources
    # Reading arrays takes part in nothing, so process 0 can open its end before the others.
    (address,) = source.values([first], opening, "tcp://127.0.0.1:0", timeout_s=LIMIT_S)
    source.values(others, opening, address, timeout_s=LIMIT_S)
    for process in sources:
        source.start(process, publishing)
    counts = engine.call(engines, refitting, address, timeout_s=LIMIT_S)
    shares = [source.result(process, LIMIT_S) for process in sources]
    assert all(answer.is_success for answer in shares + counts), [
        answer.trace for answer in shares + counts
    ]
    return [answer.value for answer in shares], [answer.value for answer in counts]


@pytest.mark.parametrize("publish", [publish_from_jax, publish_from_jax_in_jit])
def test_jax_trainer_refits_a_torch_engine(jax_program, torch_program, publish):
    shares, counts = refit_between(
        jax_program, open_jax_source, publish, torch_program, refit_torch
    )
    assert shares == [[1.0] * VERSIONS] * jax_program.num_processes
    sharded = sum(np.prod(w.shape) for w in WEIGHTS if w.shard_dim is not None)
    plain = sum(np.prod(w.shape) for w in WEIGHTS if w.shard_dim is None)
    assert sum(counts) == sharded + 2 * plain


@pytest.mark.parametrize("refit", [refit_jax, refit_jax_in_jit])
def test_torch_trainer_refits_a_jax_engine(jax_program, torch_program, refit):
    shares, counts = refit_between(
        torch_program, open_torch_source, publish_from_torch, jax_program, refit
    )
    assert shares == [[1.0] * VERSIONS] * 2
    assert all(count > 0 for count in counts)
