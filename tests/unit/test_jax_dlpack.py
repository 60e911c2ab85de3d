"""Capsules are read as dlpack.h says; made by hand for what JAX on CPU does not give."""

from __future__ import annotations

import pytest
from helpers.dlpack_capsules import Capsule
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

from reshard import UnsupportedError  # noqa: E402
from reshard_jax.dlpack import memory_of_capsule  # noqa: E402

pytestmark = pytest.mark.jax

CPU, CUDA, CUDA_HOST, ROCM, CUDA_MANAGED = 1, 2, 3, 10, 13


@pytest.mark.parametrize("device_type", [CPU, CUDA_HOST])
def test_host_memory_is_read(device_type):
    capsule = Capsule(device_type, (2, 3), (1, 2), offset=64)
    assert memory_of_capsule(capsule.object, 4) == (4160, (4, 8), None)


def test_strides_may_be_left_out():
    capsule = Capsule(CPU, (2, 3, 5), None)
    assert memory_of_capsule(capsule.object, 2) == (4096, (30, 10, 2), None)
    scalar = Capsule(CPU, (), None)
    assert memory_of_capsule(scalar.object, 2) == (4096, (), None)


@pytest.mark.parametrize("device_type", [CUDA, CUDA_MANAGED])
@pytest.mark.parametrize("device", [0, 5])
def test_memory_of_a_gpu_says_of_which(device_type, device):
    capsule = Capsule(device_type, (2, 3), None, offset=256, device=device)
    assert memory_of_capsule(capsule.object, 2) == (4352, (6, 2), device)


@pytest.mark.parametrize("device_type", [4, 7, ROCM, 14])
def test_memory_of_other_devices_is_refused(device_type):
    capsule = Capsule(device_type, (2,), (1,))
    with pytest.raises(
        UnsupportedError, match=rf"device type {device_type} is neither that of .*pinned_host"
    ):
        memory_of_capsule(capsule.object, 4)
