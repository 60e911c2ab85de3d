"""What a source refuses before anybody else takes part."""

from __future__ import annotations

import numpy as np
import pytest

import reshard
from reshard import Layout, LayoutError, Mesh, Shard, TensorSpec, UnsupportedError

SPECS = [TensorSpec("w", (4,), "int8", Layout(Mesh.of(x=1), (Shard(0),)))]


def open_source(**options):
    return reshard.Source("tcp://127.0.0.1:0", SPECS, ranks=(0,), num_ranks=1, **options)


@pytest.fixture
def source():
    with open_source(timeout_s=0.5) as source:
        yield source


@pytest.mark.parametrize(
    "version",
    [-1, 1 << 63, 1 << 62, True, 1.0, "1", None, np.float32(1), np.bool_(True), np.zeros(2)],
)
def test_what_is_no_version_is_refused(source, version):
    with pytest.raises(LayoutError, match=r"^version=.* is not a version\. Give a whole number"):
        source.publish({}, version=version)


@pytest.mark.torch
def test_versions_of_torch_are_whole_numbers_too(source):
    torch = pytest.importorskip("torch")
    for version in (torch.tensor(1.0), torch.tensor(True)):
        with pytest.raises(LayoutError, match="is not a version"):
            source.publish({}, version=version)
    with pytest.raises(reshard.ReshardError) as caught:
        source.publish({}, version=torch.tensor(1))
    assert "is not a version" not in str(caught.value)


@pytest.mark.jax
def test_versions_of_jax_are_whole_numbers_too(source):
    jnp = pytest.importorskip("jax.numpy")
    for version in (jnp.float32(1), jnp.bool_(True)):
        with pytest.raises(LayoutError, match="is not a version"):
            source.publish({}, version=version)
    with pytest.raises(reshard.ReshardError) as caught:
        source.publish({}, version=jnp.int32(1))
    assert "is not a version" not in str(caught.value)


@pytest.mark.parametrize("version", [0, np.int64(7), (1 << 62) - 1])
def test_whole_numbers_are_versions(source, version):
    with pytest.raises(reshard.ReshardError) as caught:
        source.publish({}, version=version)
    assert "is not a version" not in str(caught.value)


def test_cast_rules_are_read_when_a_source_opens():
    with pytest.raises(LayoutError, match=r"casts=\('float32', 'bfloat16'\): .*Give a list of"):
        open_source(casts=("float32", "bfloat16"))
    with pytest.raises(UnsupportedError, match="Did you mean 'bfloat16'"):
        open_source(casts=[("float32", "bf16")])
    open_source(casts=[(np.float32, "bfloat16")]).close()
