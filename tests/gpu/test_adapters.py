"""What the adapters take from a framework on a real GPU: addresses, devices, streams, memory.

Each test is a program of its own: other tests of a run need JAX on CPUs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.processes]


def run(code: str) -> None:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("needs an NVIDIA GPU")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


TORCH = """
import torch
import reshard_torch
from reshard_torch.streams import streams_of

last = torch.cuda.device_count() - 1
tensor = torch.zeros(6, 8, device=f"cuda:{last}")[::2, 1:]
buffer = reshard_torch.buffer_of(tensor)
assert (buffer.address, buffer.device) == (tensor.data_ptr(), last), buffer
assert (buffer.shape, buffer.strides) == ((3, 7), (64, 4)), buffer
stream = torch.cuda.Stream(last)
with torch.cuda.stream(stream):
    assert streams_of({(0, "w"): buffer}) == {0: stream.cuda_stream}
assert streams_of({(0, "w"): buffer}) == {0: torch.cuda.default_stream(last).cuda_stream}
"""

JAX = """
import ctypes
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reshard_jax.buffers import ReceiveBuffers, source_buffers
from reshard_jax.description import Description
from reshard_jax.tree import NamedTree

devices = jax.devices("gpu")
sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
values = np.arange(len(devices) * 12, dtype=np.float32).reshape(-1, 3)
tree = {"a": jax.device_put(values, sharding), "b": jax.device_put(values + 1, sharding)}
description = Description(NamedTree(tree))

sent = source_buffers(description, list(tree.values()))
for name, array in tree.items():
    for rank, shard in enumerate(array.addressable_shards):
        buffer = sent[rank, name]
        assert buffer.address == shard.data.unsafe_buffer_pointer()
        assert buffer.device == shard.device.local_hardware_id
        assert buffer.strides == (12, 4)

driver = ctypes.CDLL("libcuda.so.1")

def write(buffer, array):
    context, device = ctypes.c_void_p(), ctypes.c_int()
    assert driver.cuDeviceGet(ctypes.byref(device), buffer.device) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    source = ctypes.c_void_p(array.ctypes.data)
    target = ctypes.c_ulonglong(buffer.address)
    assert driver.cuMemcpyHtoD_v2(target, source, ctypes.c_size_t(array.nbytes)) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert driver.cuDevicePrimaryCtxRelease_v2(device) == 0

before = {}
for version in (1, 2):
    received = ReceiveBuffers(description, {})
    addresses = {buffer.address for buffer in received.buffers.values()}
    assert len(addresses) == 2 * len(devices)
    for (rank, name), buffer in received.buffers.items():
        assert buffer.device == devices[rank].local_hardware_id
        part = np.ascontiguousarray(values[4 * rank : 4 * rank + 4] + version)
        write(buffer, part)
    arrays = received.to_arrays()
    for array in arrays:
        assert array.sharding == sharding
        assert {s.data.unsafe_buffer_pointer() for s in array.addressable_shards} <= addresses
        np.testing.assert_array_equal(np.asarray(array * 2), (values + version) * 2)
    for old, array in before.items():
        np.testing.assert_array_equal(np.asarray(array), values + 1)
    before = dict(enumerate(arrays)) if version == 1 else before
doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(arrays[0])
assert arrays[0].is_deleted()

pinned = jax.device_put(values, sharding.with_memory_kind("pinned_host"))
host = Description(NamedTree({"w": pinned}))
assert {buffer.device for buffer in source_buffers(host, [pinned]).values()} == {None}
"""


@pytest.mark.torch
def test_torch_tensors_and_streams() -> None:
    pytest.importorskip("torch", reason="install it with: pip install 'reshard[torch]'")
    run(TORCH)


@pytest.mark.jax
def test_jax_arrays_are_read_in_place_and_received_into_xlas_pool() -> None:
    pytest.importorskip("jax", reason="install it with: pip install 'reshard[jax]'")
    run(JAX)
