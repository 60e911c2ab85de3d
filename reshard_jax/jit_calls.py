"""Calls of an end from inside compiled programs: traced on one side, served on the other.

A program holds two numbers of an end, its key and the place of the call, and calls a native
function, which waits until a thread of this process has done the refit. So whatever the end makes
anew, such as its plan or its communicator, compiles nothing anew.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from reshard import Buffer, BufferKey, LayoutError, Mailbox, MailboxCall, UnsupportedError
from reshard_jax.compat import ordinal_of, platform_of_xla
from reshard_jax.description import Description, Leaf
from reshard_jax.ffi import TARGET, register
from reshard_jax.traced_tree import Placement

__all__ = ["JitCall", "JitCalls", "JitSite", "check_limit"]

_logger = logging.getLogger("reshard.jax")

_SLICE_S = 1.0  # closing ends a wait at once; this is how long a thread may miss that its end died
_JOIN_S = 5.0
_NS_PER_S = 1_000_000_000
_MAX_LIMIT_S = 1e9


@dataclass(frozen=True, slots=True)
class JitSite:
    """A place in programs where an end is called.

    Attributes:
        description: of the weights, as the end had it when the program was traced.
        verify: of a publish.
        num_versions: 1 where the first operand is the version.
        devices: of this process, in the order in which the calls give their memory.
        weights: positions of those that the call has, among all that are described: those with
            elements.
        shapes: of one shard of each of them.
    """

    description: Description
    verify: bool
    num_versions: int
    devices: tuple[Any, ...]
    weights: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class JitCall:
    """A call that waits for an end.

    Attributes:
        site: where it comes from.
        buffers: the memory of all devices of this process; none for weights without elements.
        streams: by rank, for GPUs.
        versions: of a publish, by device; else zeros.
        timeout_s: what is left of its limit.
    """

    site: JitSite
    buffers: dict[BufferKey, Buffer]
    streams: dict[int, int]
    versions: tuple[int, ...]
    timeout_s: float

    def version(self) -> int:
        """Returns the version of a publish.

        Raises:
            LayoutError: the devices do not agree about it.
        """
        if len(set(self.versions)) != 1:
            raise LayoutError(
                f"version: the devices of this process gave {list(self.versions)}. It has to be "
                "the same number on all of them."
            )
        return self.versions[0]


Serve = Callable[[JitCall], None]


def check_limit(timeout_s: object) -> float:
    """Returns a limit as seconds.

    Raises:
        LayoutError: it is no positive number, as one that is traced.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    limit = float(timeout_s) if is_number else 0.0  # type: ignore[arg-type]
    if not 0 < limit <= _MAX_LIMIT_S:
        raise LayoutError(
            f"timeout_s={timeout_s!r}: give seconds above 0, at most {_MAX_LIMIT_S:g}, as a Python "
            "number; it is a constant of the program."
        )
    return limit


class JitCalls:
    """The calls of one end from inside programs, and the thread that serves them.

    Args:
        name: of the end, for messages and the thread.
        serve: does the refit of a call. A method of the end: the thread keeps it alive until it is
            closed, because programs may be under way that nobody can count.
    """

    def __init__(self, name: str, serve: Serve) -> None:
        self._name = name
        self._mailbox = Mailbox()
        self._sites: list[JitSite] = []
        self._lock = threading.Lock()  # guards the list, which several threads may trace into
        self._thread = threading.Thread(
            target=_serve_calls,
            args=(self._mailbox, self._sites, serve),
            name=f"reshard-{name}-in-jit",
            daemon=True,  # so that an end that nobody closed does not keep the program from ending
        )
        self._thread.start()

    def trace(
        self,
        site: tuple[Description, Placement, bool],
        values: Sequence[Any],
        version: jax.Array | None,
        timeout_s: float,
    ) -> list[jax.Array]:
        """Puts a call into the program that is traced, and returns what it gives.

        Args:
            site: description of the weights, where they are, and whether a publish verifies.
            values: the traced weights.
            version: of a publish: one number. None receives.
            timeout_s: limit of the call.

        Returns:
            The version of a publish; else the new weights, in the memory of those handed in.
        """
        description, placement, verify = site
        mesh = placement.mesh
        # XLA makes constants of arrays without elements, and forgets their sharding.
        weights = tuple(i for i, leaf in enumerate(description.leaves) if 0 not in leaf.shape)
        operands = [values[i] for i in weights]
        operand_specs = [placement.specs[i] for i in weights]
        if version is not None:
            operands.insert(0, version)
            operand_specs.insert(0, PartitionSpec())  # type: ignore[no-untyped-call]
        num_results = len(operands) if version is None else 1
        devices = self._local_devices(mesh, description)
        register(platform_of_xla(devices[0]))
        number = self._add(
            JitSite(
                description,
                verify,
                0 if version is None else 1,
                devices,
                weights,
                tuple(_shard_shape(description.leaves[i]) for i in weights),
            )
        )
        attributes = {
            "key": np.int64(self._mailbox.key),
            "site": np.int64(number),
            "timeout_ns": np.int64(round(timeout_s * _NS_PER_S)),
        }

        def visit(*shards: jax.Array) -> Sequence[jax.Array]:
            results = [
                jax.ShapeDtypeStruct(x.shape, x.dtype)  # type: ignore[no-untyped-call]
                for x in shards[:num_results]
            ]
            call = jax.ffi.ffi_call(
                TARGET,
                results,
                has_side_effect=True,
                input_output_aliases={i: i for i in range(num_results)},
            )
            return call(*shards, **attributes)

        per_device = jax.shard_map(
            visit,
            mesh=mesh,
            in_specs=tuple(operand_specs),
            out_specs=operand_specs[:num_results],
            check_vma=False,
        )
        results = list(_plain(per_device, self._name)(*operands))
        if version is not None:
            return results
        received = list(values)
        for i, result in zip(weights, results, strict=True):
            received[i] = result
        return received

    def close(self) -> None:
        """Answers whatever waits; the call that is served, if any, when the end has closed."""
        self._mailbox.close(f"this {self._name} is closed.")

    def join(self) -> None:
        """Waits, for a while, until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _local_devices(self, mesh: jax.sharding.Mesh, description: Description) -> tuple[Any, ...]:
        mine = description.ranks.process
        return tuple(device for device in mesh.devices.flat if device.process_index == mine)

    def _add(self, site: JitSite) -> int:
        sizes = [math.prod(shape) for shape in site.shapes]
        with self._lock:
            number = self._mailbox.add_site(
                [ordinal_of(device) for device in site.devices],
                [1] * site.num_versions + sizes,
                num_results=site.num_versions or len(sizes),
                has_version=bool(site.num_versions),
            )
            self._sites.append(site)
        return number


def _plain(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns the function with refusals in our words where JAX would have some of its own."""
    what = "publish_in_jit" if name == "source" else "refit_in_jit"

    @jax.custom_batching.custom_vmap
    def batched(*operands: jax.Array) -> Any:  # noqa: ANN401 - as the function
        return function(*operands)

    @batched.def_vmap
    def _refuse_batches(*ignored: object) -> Any:  # noqa: ANN401
        raise UnsupportedError(
            f"{what} under jax.vmap: there is one model, and it moves once. Call it outside of the "
            "function that is batched."
        )

    @jax.custom_jvp
    def differentiated(*operands: jax.Array) -> Any:  # noqa: ANN401
        return batched(*operands)

    @differentiated.defjvp
    def _refuse_tangents(*ignored: object) -> Any:  # noqa: ANN401
        raise UnsupportedError(
            f"{what} cannot be differentiated. Call it outside of the function that jax.grad sees, "
            "or hand in jax.lax.stop_gradient(params)."
        )

    return differentiated


def _serve_calls(mailbox: Mailbox, sites: list[JitSite], serve: Serve) -> None:
    """Serves until the mailbox is closed, one call after the other."""
    while not mailbox.is_closed:
        taken = mailbox.wait(_SLICE_S)
        if taken is None:
            continue
        with mailbox.answering():
            _serve_one(taken, sites, serve)


def _serve_one(taken: MailboxCall, sites: list[JitSite], serve: Serve) -> None:
    site = sites[taken.site]
    call = JitCall(
        site, _buffers(site, taken), _streams(site, taken), taken.versions, taken.timeout_s
    )
    try:
        serve(call)
    except Exception:
        _logger.debug("a call from inside a program failed", exc_info=True)
        raise
    finally:
        call.buffers.clear()  # the end must not hold memory between calls


def _buffers(site: JitSite, taken: MailboxCall) -> dict[BufferKey, Buffer]:
    """Returns the memory of all shards; XLA hands it in row-major."""
    description, buffers = site.description, {}
    specs = [description.specs[i] for i in site.weights]
    strides = [
        _row_major(shape, spec.dtype.itemsize)
        for shape, spec in zip(site.shapes, specs, strict=True)
    ]
    is_receiving = not site.num_versions
    for device, addresses in zip(site.devices, taken.operands, strict=True):
        rank = description.ranks.of(device)
        memory = None if platform_of_xla(device) == "cpu" else ordinal_of(device)
        places = addresses[site.num_versions :]
        for spec, shape, steps, place in zip(specs, site.shapes, strides, places, strict=True):
            buffers[rank, spec.name] = Buffer(
                place, shape, steps, spec.dtype, is_receiving, device=memory
            )
    return buffers


def _streams(site: JitSite, taken: MailboxCall) -> dict[int, int]:
    if platform_of_xla(site.devices[0]) == "cpu":
        return {}
    ranks = site.description.ranks
    return {
        ranks.of(device): stream for device, stream in zip(site.devices, taken.streams, strict=True)
    }


def _shard_shape(leaf: Leaf) -> tuple[int, ...]:
    return tuple(leaf.sharding.shard_shape(leaf.shape))


def _row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
