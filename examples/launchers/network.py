"""The network of these examples in JAX: it learns the sine of x."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from reshard import Form, Part

Params = dict[str, dict[str, Any]]

# What PyTorch calls these weights: names in an nn.Sequential, and kernels the other way round.
_KERNEL = Form("inner outer -> outer inner")
FORMS = {
    "hidden.kernel": Part("0.weight", _KERNEL),
    "hidden.bias": Part("0.bias"),
    "out.kernel": Part("2.weight", _KERNEL),
    "out.bias": Part("2.bias"),
}


def init(mesh: Mesh) -> Params:
    """Returns the first weights, each cut over all devices along a dim that divides."""
    generator = np.random.default_rng(0)
    shapes = {
        "hidden": {"kernel": (1, 32), "bias": (32,)},
        "out": {"kernel": (32, 1), "bias": (1,)},
    }

    def weight(shape: tuple[int, ...]) -> jax.Array:
        value = generator.normal(0, 0.5, shape).astype(np.float32)
        cut = [dim for dim, size in enumerate(shape) if size % mesh.size == 0][:1]
        spec = P(*(mesh.axis_names[0] if dim in cut else None for dim in range(len(shape))))
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda i: value[i])

    return jax.tree.map(weight, shapes, is_leaf=lambda x: isinstance(x, tuple))


def apply(params: Params, x: jax.Array) -> jax.Array:
    """Returns what the network says for rows of x."""
    hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


@jax.jit
def train(params: Params) -> Params:
    """Returns the weights after a hundred steps of gradient descent."""
    x = jnp.linspace(-3, 3, 64)[:, None]

    def loss(params: Params) -> jax.Array:
        return jnp.mean((apply(params, x) - jnp.sin(x)) ** 2)

    def step(params: Params, _: None) -> tuple[Params, None]:
        return jax.tree.map(lambda w, g: w - 0.05 * g, params, jax.grad(loss)(params)), None

    return jax.lax.scan(step, params, length=100)[0]


def answer(params: Params) -> float:
    """Returns the answer for 1.0, the same on every process."""
    return float(jax.jit(apply)(params, jnp.ones((1, 1)))[0, 0].addressable_data(0))
