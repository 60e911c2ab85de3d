"""What of a call inside a program is particular to GPUs, with stand-ins for devices of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from reshard import DType, LayoutError, MailboxCall  # noqa: E402
from reshard_jax import compat, ffi, jit_calls  # noqa: E402
from reshard_jax.description import Description  # noqa: E402
from reshard_jax.jit_calls import JitSite  # noqa: E402
from reshard_jax.tree import NamedTree  # noqa: E402

pytestmark = pytest.mark.jax

GPUS = tuple(
    SimpleNamespace(platform="gpu", id=17 + i, local_hardware_id=i, process_index=0) for i in (3, 1)
)


def site_of(devices, num_versions=1):
    """A site of two devices; where these are stand-ins, they have ranks 5 and 6."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    tree = {
        "w": jax.ShapeDtypeStruct((4, 6), "float32", sharding=NamedSharding(mesh, P("x"))),
        "n": jax.ShapeDtypeStruct((), "bfloat16", sharding=NamedSharding(mesh, P())),
    }
    description = Description(NamedTree(tree))
    if devices is GPUS:
        description.ranks = SimpleNamespace(of=lambda device: 5 + GPUS.index(device))
    return JitSite(description, True, num_versions, devices, (0, 1), ((), (2, 6)))


def served(site, *, versions=(3, 3), streams=(0, 0)):
    first = (64,) * site.num_versions
    call = MailboxCall(0, 2.5, ((*first, 1024, 4096), (*first, 2048, 8192)), versions, streams)
    calls = []

    def serve(call):
        calls.append((call, dict(call.buffers)))

    jit_calls._serve_one(call, [site], serve)
    ((call, buffers),) = calls
    assert call.buffers == {}  # the end must not hold memory between calls
    return call, buffers


def test_memory_of_gpus_has_its_device_and_its_stream():
    call, buffers = served(site_of(GPUS), streams=(7000, 9000))
    assert call.streams == {5: 7000, 6: 9000}
    assert (call.version(), call.timeout_s) == (3, 2.5)
    assert list(buffers) == [(5, "n"), (5, "w"), (6, "n"), (6, "w")]
    matrix = buffers[6, "w"]
    assert (matrix.address, matrix.shape, matrix.strides) == (8192, (2, 6), (24, 4))
    assert (matrix.dtype, matrix.device, matrix.is_writable) == (DType.FLOAT32, 1, False)
    assert (buffers[5, "w"].address, buffers[5, "w"].device) == (4096, 3)
    assert (buffers[5, "n"].address, buffers[5, "n"].strides) == (1024, ())


def test_host_memory_has_neither():
    call, buffers = served(site_of(tuple(jax.devices()[:2]), num_versions=0))
    assert call.streams == {}
    assert {buffer.device for buffer in buffers.values()} == {None}
    assert all(buffer.is_writable for buffer in buffers.values())
    assert buffers[1, "w"].address == 8192


def test_devices_that_disagree_about_the_version_are_refused():
    call, _ = served(site_of(GPUS), versions=(3, 4))
    with pytest.raises(LayoutError, match=r"version: the devices .* gave \[3, 4\]"):
        call.version()


def test_gpus_are_told_apart_by_their_number_in_the_process():
    assert [compat.ordinal_of(device) for device in GPUS] == [3, 1]
    remote = SimpleNamespace(platform="cpu", id=2049, local_hardware_id=None)
    assert compat.ordinal_of(remote) == 2049
    assert {compat.platform_of_xla(device) for device in GPUS} == {"CUDA"}
    assert compat.platform_of_xla(remote) == "cpu"


def test_the_function_for_gpus_is_registered_for_cuda_once(monkeypatch):
    calls = []
    monkeypatch.setattr(ffi, "_registered", set())
    monkeypatch.setattr(ffi, "xla_handler", lambda platform: 4096)
    monkeypatch.setattr(
        jax.ffi,
        "register_ffi_target",
        lambda name, capsule, platform: calls.append((name, platform)),
    )
    ffi.register("CUDA")
    ffi.register("CUDA")
    assert calls == [(ffi.TARGET, "CUDA")]
