"""Names of leaves, what counts as a weight, and trees rebuilt with other leaves."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import numpy as np
import pytest
from helpers.jax_devices import use_cpu_devices

use_cpu_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from reshard import LayoutError  # noqa: E402
from reshard_jax.tree import NamedTree  # noqa: E402

pytestmark = pytest.mark.jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    weight: object
    parts: list


Pair = namedtuple("Pair", ["first", "second"])


@jax.tree_util.register_pytree_with_keys_class
class Variable:
    """As flax.nnx.Variable: a node with one child called value."""

    def __init__(self, value, name="param"):
        self.value, self.name = value, name

    def get_value(self):
        return self.value

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(children[0], name)


@jax.tree_util.register_pytree_with_keys_class
class Partitioned:
    """As flax.linen.Partitioned: a box with metadata."""

    def __init__(self, value, names=("a",)):
        self.value, self.names = value, names

    def unbox(self):
        return self.value

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.names

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(children[0], names)


@jax.tree_util.register_pytree_with_keys_class
class State:
    """As flax.nnx.State: a mapping that is a node of its own."""

    def __init__(self, mapping):
        self.mapping = mapping

    def tree_flatten_with_keys(self):
        keys = sorted(self.mapping, key=str)
        return [(jax.tree_util.DictKey(k), self.mapping[k]) for k in keys], tuple(keys)

    @classmethod
    def tree_unflatten(cls, keys, children):
        return cls(dict(zip(keys, children, strict=True)))


def zeros(*shape):
    return jnp.zeros(shape)


def test_dicts_lists_tuples_and_dataclasses_give_dotted_paths():
    tree = {
        "layers": [{"w": zeros(1)}, Block(zeros(2), [zeros(3), (zeros(4),)])],
        "pair": Pair(zeros(5), None),
    }
    assert NamedTree(tree).names == (
        "layers.0.w",
        "layers.1.weight",
        "layers.1.parts.0",
        "layers.1.parts.1.0",
        "pair.first",
    )


@pytest.mark.parametrize("key", [0, "0"])
def test_case_d28_integer_and_string_keys_give_the_same_name(key):
    assert NamedTree({"layers": {key: {"w": zeros(1)}}}).names == ("layers.0.w",)


@pytest.mark.parametrize("box", [Variable, Partitioned])
def test_boxes_of_flax_leave_no_trace_in_the_name(box):
    tree = State({"layers": {0: {"w": box(zeros(1))}}, "norm": box(zeros(2))})
    named = NamedTree(tree)
    assert named.names == ("layers.0.w", "norm")
    rebuilt = named.with_values([1, 2])
    assert isinstance(rebuilt, State)
    assert isinstance(rebuilt.mapping["norm"], box)
    assert rebuilt.mapping["norm"].value == 2
    assert rebuilt.mapping["layers"][0]["w"].value == 1


def test_a_key_called_value_stays_where_there_is_no_box():
    assert NamedTree({"a": {"value": zeros(1)}}).names == ("a.value",)


def test_shape_structs_are_weights():
    struct = jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    assert NamedTree({"w": struct}).values == (struct,)


def test_rebuilding_keeps_the_structure_and_everything_else():
    tree = {"a": zeros(1), "b": [zeros(2), "text"], "c": (None, zeros(3))}
    named = NamedTree(tree, lambda name, leaf: name != "b.1")
    assert named.with_values([10, 20, 30]) == {"a": 10, "b": [20, "text"], "c": (None, 30)}


def test_a_tree_without_values_keeps_no_weight_alive():
    import weakref

    array = zeros(3)
    named = NamedTree({"w": array, "n": 7}, lambda name, leaf: name == "w").without_values()
    alive = weakref.ref(array)
    del array
    assert alive() is None
    assert named.names == ("w",)
    assert named.with_values([1]) == {"w": 1, "n": 7}


def test_case_d29_keys_counters_and_other_leaves_are_named():
    tree = {
        "w": zeros(2),
        "rngs": {"count": jnp.zeros((8,), jnp.uint32), "key": jax.random.key(0)},
        "step": 3,
        "table": np.zeros(2),
    }
    with pytest.raises(LayoutError) as caught:
        NamedTree(tree)
    message = str(caught.value)
    assert "3 leaves that cannot be moved" in message
    assert "rngs.key: a PRNG key" in message
    assert "step: a builtins.int, no jax.Array" in message
    assert "table: a NumPy array; make it a jax.Array with jax.device_put" in message
    assert "leaves=lambda name, leaf:" in message
    assert "rngs.count" not in message
    named = NamedTree(tree, lambda name, leaf: name == "w")
    assert named.names == ("w",)


def test_a_filter_that_keeps_a_key_is_told():
    with pytest.raises(LayoutError, match="key: a PRNG key"):
        NamedTree({"key": jax.random.key(0)}, lambda name, leaf: True)


def test_raw_keys_are_arrays_like_any_other():
    assert NamedTree({"key": jax.random.PRNGKey(0)}).names == ("key",)


def test_leaves_of_one_name_are_refused():
    tree = {"a.b": zeros(1), "a": {"b": zeros(2)}}
    with pytest.raises(LayoutError, match=r"a\.b: two leaves have this name"):
        NamedTree(tree)


def test_traced_values_are_refused():
    def step(w):
        NamedTree({"w": w})
        return w

    with pytest.raises(LayoutError, match="w: a traced value; call this outside jit"):
        jax.jit(step)(zeros(2))


def test_a_bare_array_is_refused():
    with pytest.raises(LayoutError, match="a bare array has no name; pass a dict"):
        NamedTree(zeros(2))


def test_long_lists_of_problems_are_cut():
    with pytest.raises(LayoutError, match=r"25 leaves .*(\n.*){10}\n  \.\.\. and 15 more"):
        NamedTree({f"n{i}": i for i in range(25)})
