"""Refits inside jitted programs: what both ends do when they are traced, closed, or left open."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import operator
import os
import weakref
from typing import Protocol, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from reshard import LayoutError, ReshardError
from reshard_jax.compat import is_tracer, narrowed
from reshard_jax.description import Description
from reshard_jax.jit_calls import JitCalls, Serve, check_limit
from reshard_jax.traced_tree import check_traced, placement_of
from reshard_jax.tree import Leaves, NamedTree

__all__ = ["InJit", "traced_version"]

_logger = logging.getLogger("reshard.jax")


class _End(Protocol):
    def close(self) -> None: ...


_open_ends: set[_End] = set()
_process = os.getpid()


class InJit:
    """What an end has of its calls inside programs; nothing until the first one is traced.

    From then on the end lives until it is closed: a program that was dispatched may still need it
    when nobody refers to it any more.

    Args:
        end: whose calls they are. Closed when the interpreter exits, if nobody did.
        name: `source` or `destination`.
        serve: does the refit of a call; a bound method of the end.
    """

    def __init__(self, end: _End, name: str, serve: Serve) -> None:
        self._end = weakref.ref(end)
        self._name = name
        self._serve = weakref.WeakMethod(serve)
        self._calls: JitCalls | None = None
        self._is_closed = False

    def trace(
        self,
        params: object,
        leaves: Leaves | None,
        description: Description,
        *,
        version: jax.Array | None = None,
        verify: bool = True,
        timeout_s: float,
    ) -> tuple[NamedTree, list[jax.Array]]:
        """Puts a call into the program that is traced.

        Returns:
            The tree that was handed in, and the results: new weights, or the version.

        Raises:
            LayoutError: the end is closed, or a weight is not what the end described.
            UnsupportedError: naming what a program cannot do.
        """
        if self._is_closed:
            raise LayoutError(f"this {self._name} is closed; make a new one.")
        limit = check_limit(timeout_s)
        tree = NamedTree(params, leaves, is_traced=True)
        placement = placement_of(description)
        check_traced(tree, description, placement)
        site = description, placement, verify
        return tree, self._open().trace(site, tree.values, version, limit)

    def close(self) -> None:
        """Answers the calls that wait. To be called before the end itself closes."""
        self._is_closed = True
        if self._calls is not None:
            self._calls.close()
            _open_ends.discard(self._alive())

    def join(self) -> None:
        """Waits until nothing serves any more. To be called after the end closed."""
        if self._calls is not None:
            self._calls.join()

    def _open(self) -> JitCalls:
        if self._calls is None:
            end, serve = self._alive(), self._serve()
            if serve is None:
                raise LayoutError(f"this {self._name} is gone; make a new one.")
            self._calls = JitCalls(self._name, serve)
            _open_ends.add(end)
            _close_at_exit()
        return self._calls

    def _alive(self) -> _End:
        end = self._end()
        if end is None:
            raise LayoutError(f"this {self._name} is gone; make a new one.")
        return end


def traced_version(version: SupportsIndex | jax.Array) -> jax.Array:
    """Returns a version as an operand of a program, so that its number compiles nothing anew.

    Args:
        version: a whole number, static or traced.

    Raises:
        LayoutError: it is none, or does not fit what JAX can hold.
    """
    dtype = narrowed(np.dtype(np.int64))
    if is_tracer(version) or isinstance(version, jax.Array):
        array = jnp.asarray(version)
        if array.ndim == 0 and jnp.issubdtype(array.dtype, jnp.integer):
            return array.astype(dtype)
        given = f"{array.dtype}{list(array.shape)}"
    else:
        try:
            number = -1 if isinstance(version, bool | np.bool_) else operator.index(version)
        except TypeError:
            number = -1
        if 0 <= number <= np.iinfo(dtype).max:
            return jnp.asarray(number, dtype)
        given = repr(version)
    raise LayoutError(
        f"version: {given} is not a version. Give a whole number from 0 to {np.iinfo(dtype).max}, "
        "such as the number of the training step; larger ones need jax_enable_x64."
    )


@functools.cache
def _close_at_exit() -> None:
    """Registers the end of all ends, once.

    When the first call is traced, so that it runs before what was registered by then: JAX waits for
    its programs, whose threads wait for ours, and afterwards no finalizer of Python works.
    """
    atexit.register(_close_open_ends)


def _close_open_ends() -> None:
    """Lets programs that are under way end by themselves, which their limits see to, and closes."""
    if os.getpid() != _process or not _open_ends:
        return  # a forked child has no part in the calls of its parent
    # What failed is reported by JAX, which does the same after this.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()  # type: ignore[no-untyped-call]
    for end in list(_open_ends):
        try:
            end.close()
        except ReshardError as error:
            _logger.warning("%r: at exit: %s", end, error)
