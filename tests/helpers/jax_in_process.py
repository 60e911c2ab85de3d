"""Moves weights between JAX trees in one process, without any control plane.

The adapter describes both sides and gives the memory; a plan and the native executor do the rest,
on exactly the addresses and strides that the adapter gave.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from reshard import Buffer, make_plan, run_in_process
from reshard_jax.buffers import ReceiveBuffers, source_buffers
from reshard_jax.description import Description
from reshard_jax.tree import NamedTree

__all__ = ["array_of_buffer", "move"]


def array_of_buffer(buffer: Buffer, dtype: Any) -> np.ndarray:
    """Returns the memory of a buffer as an array; it must not outlive the buffer."""
    low, high = buffer.extent
    memory = (ctypes.c_char * max(high - low, 1)).from_address(buffer.address + low)
    return np.ndarray(buffer.shape, dtype, memory, -low, buffer.strides)


def move(
    params: Any,
    template: Any,
    *,
    src_forms: Any = None,
    dst_forms: Any = None,
    leaves: Any = None,
    is_colocated: bool = False,
    **plan_options: Any,
) -> Any:
    """Returns the tree of new arrays that the template describes, filled from `params`.

    Args:
        is_colocated: True numbers both sides alike, so that a device copies what it has already.
    """
    src_tree, dst_tree = NamedTree(params, leaves), NamedTree(template, leaves)
    src, dst = Description(src_tree, src_forms), Description(dst_tree, dst_forms)
    offset = 0 if is_colocated else src.ranks.size
    plan = make_plan(src.specs, [spec.shifted(offset) for spec in dst.specs], **plan_options)
    plan.check()
    sent, received = source_buffers(src, src_tree.values), ReceiveBuffers(dst, {})
    run_in_process(plan, _arrays(src, sent, 0), _arrays(dst, received.buffers, offset))
    return dst_tree.with_values(received.to_arrays())


def _arrays(
    description: Description, buffers: dict[tuple[int, str], Buffer], offset: int
) -> dict[int, dict[str, np.ndarray]]:
    dtypes = {leaf.name: leaf.dtype for leaf in description.leaves}
    arrays: dict[int, dict[str, np.ndarray]] = {}
    for (rank, name), buffer in buffers.items():
        arrays.setdefault(rank + offset, {})[name] = array_of_buffer(buffer, dtypes[name])
    return arrays
