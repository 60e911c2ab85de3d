"""Descriptions of trees: specs, errors that name the leaf, and what counts as a change."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental.layout import Format  # noqa: E402
from jax.experimental.layout import Layout as MemoryLayout  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from reshard import DType, Form, LayoutError, Part, UnsupportedError  # noqa: E402
from reshard_jax.description import Description  # noqa: E402
from reshard_jax.dtypes import check_not_narrowed, dtype_of  # noqa: E402
from reshard_jax.tree import NamedTree  # noqa: E402

pytestmark = pytest.mark.jax


def sharding_of(spec, order=(0, 1, 2, 3), names=("x", "y")):
    return NamedSharding(Mesh(np.array(jax.devices())[list(order)].reshape(2, 2), names), spec)


def array_of(spec, shape=(4, 4), dtype=np.float32, **options):
    return jax.device_put(np.zeros(shape, dtype), sharding_of(spec, **options))


def describe(tree, forms=None):
    return Description(NamedTree(tree), forms)


def test_specs_name_shape_dtype_and_parts():
    description = describe({"b": {"w": array_of(P("x"), dtype=jnp.bfloat16)}, "a": array_of(P())})
    a, w = description.specs
    assert (a.name, w.name) == ("a", "b.w")
    assert (w.shape, w.dtype) == ((4, 4), DType.BFLOAT16)
    assert w.parts == (Part("b.w"),)
    assert description.ranks.size == 8


def test_forms_may_be_a_function_or_a_mapping():
    transposed = (Part("w.t", Form("a b -> b a")),)
    tree = {"w": array_of(P("x"), (4, 8)), "v": array_of(P())}
    seen = []

    def forms(name, shape):
        seen.append((name, shape))
        return transposed if name == "w" else None

    assert describe(tree, forms).specs == describe(tree, {"w": transposed}).specs
    assert seen == [("v", (4, 4)), ("w", (4, 8))]
    with pytest.raises(LayoutError, match="w: its form is 'copy'"):
        describe(tree, {"w": "copy"})


def test_equal_layouts_are_one_object():
    description = describe({str(i): array_of(P("x"), (4 + 2 * i, 4)) for i in range(5)})
    assert len({id(spec.layout) for spec in description.specs}) == 1


def test_errors_name_the_leaf():
    mesh = Mesh(np.array(jax.devices())[:2], ("x",))
    open_dim = NamedSharding(mesh, P(P.UNCONSTRAINED))
    uneven = NamedSharding(mesh, P("x"))
    with pytest.raises(UnsupportedError, match=r"layers\.0\.w: .*UNCONSTRAINED"):
        describe({"layers": [{"w": jax.ShapeDtypeStruct((4,), np.int8, sharding=open_dim)}]})
    with pytest.raises(LayoutError, match=r"w: NamedSharding.*does not fit shape"):
        describe({"w": jax.ShapeDtypeStruct((3,), np.int8, sharding=uneven)})


def test_a_struct_without_sharding_is_refused():
    with pytest.raises(LayoutError, match=r"w: .* has no sharding\. Give jax\.ShapeDtypeStruct"):
        describe({"w": jax.ShapeDtypeStruct((3,), np.int8)})
    shapes = jax.eval_shape(lambda: jnp.zeros(3))
    with pytest.raises(LayoutError, match="eval_shape drops it"):
        describe({"w": shapes})


def test_an_empty_tree_is_refused():
    with pytest.raises(LayoutError, match="holds no weight"):
        describe({})
    with pytest.raises(LayoutError, match="holds no weight"):
        Description(NamedTree({"w": array_of(P())}, lambda name, leaf: False))


def test_other_ways_to_write_a_sharding_are_no_change():
    description = describe({"w": array_of(P("x"))})
    layout = Format(MemoryLayout((1, 0)), sharding_of(P("x")))
    for same in (
        array_of(P("x", None)),
        array_of(P(("x",)), names=("x", "z")),
        array_of(P("a"), names=("a", "b")),
        jax.device_put(np.zeros((4, 4), np.float32), layout),
        jax.device_put(
            np.zeros((4, 4), np.float32), sharding_of(P("x")).with_memory_kind("pinned_host")
        ),
    ):
        assert description.changes(NamedTree({"w": same})) == []


@pytest.mark.parametrize(
    ("spec", "shape", "dtype", "order"),
    [
        (P(), (4, 4), np.float32, (0, 1, 2, 3)),
        (P("x"), (4, 8), np.float32, (0, 1, 2, 3)),
        (P("x"), (4, 4), np.int32, (0, 1, 2, 3)),
        (P("x"), (4, 4), np.float32, (3, 2, 1, 0)),
        (P("x"), (4, 4), np.float32, (4, 5, 6, 7)),
    ],
    ids=["sharding", "shape", "dtype", "order of devices", "other devices"],
)
def test_changes_are_seen(spec, shape, dtype, order):
    description = describe({"w": array_of(P("x"))})
    changes = description.changes(NamedTree({"w": array_of(spec, shape, dtype, order=order)}))
    assert len(changes) == 1
    assert changes[0].startswith("w: was float32[4, 4] NamedSharding")


def test_weights_that_come_and_go_are_seen():
    description = describe({"a": array_of(P()), "b": array_of(P())})
    changes = description.changes(NamedTree({"b": array_of(P()), "c": array_of(P())}))
    assert [change.split(",")[0] for change in changes] == ["a: gone", "c: new"]


def test_dtype_names_follow_numpy():
    assert dtype_of("w", np.dtype("bool")) is DType.BOOL
    assert dtype_of("w", np.dtype(jnp.float8_e8m0fnu)) is DType.FLOAT8_E8M0FNU
    with pytest.raises(UnsupportedError, match="w: dtype 'int4'"):
        dtype_of("w", np.dtype(jnp.int4))


def test_case_c23_templates_of_64_bit_types_are_refused_while_x64_is_off():
    with pytest.raises(LayoutError, match=r"w: JAX would narrow int64 to int32.*JAX_ENABLE_X64=1"):
        check_not_narrowed("w", np.dtype("int64"))
    with jax.enable_x64(True):
        check_not_narrowed("w", np.dtype("int64"))
    check_not_narrowed("w", np.dtype(jnp.bfloat16))


def test_importing_starts_no_backend_and_loads_no_other_framework():
    """Case F57: environment variables and jax.config still count after the import."""
    program = """
        import sys
        import reshard_jax
        import jax
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
        loaded = {name for name in sys.modules if name.split(".")[0] in ("torch", "flax", "tunix")}
        assert not loaded, loaded
        assert "reshard._native" not in sys.modules
        jax.config.update("jax_num_cpu_devices", 3)
        assert len(jax.devices("cpu")) == 3
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


@pytest.mark.parametrize("argument", ["forms", "padding"])
def test_names_that_are_no_leaf_are_refused(argument):
    """A slash for a dot left a square kernel untransposed, and verified."""
    tree = NamedTree({"proj": {"kernel": array_of(P())}})
    given = {"proj/kernel": Form("i o -> o i") if argument == "forms" else "zero"}
    message = f"{argument} name tensors that are not there: proj/kernel. There are proj.kernel."
    with pytest.raises(LayoutError, match=message):
        Description(tree, **{argument: given})
