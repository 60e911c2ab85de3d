"""The trainer's end of a refit, for pytrees of arrays."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, SupportsIndex

import jax

import reshard
from reshard import (
    DEFAULT_STAGING_BYTES,
    Buffer,
    BufferKey,
    Casts,
    Forms,
    LayoutError,
    Paddings,
    RefitReport,
    Topology,
    Transport,
)
from reshard_jax.buffers import source_buffers
from reshard_jax.description import Description
from reshard_jax.in_jit import InJit, traced_version
from reshard_jax.jit_calls import JitCall
from reshard_jax.ranks import Ranks
from reshard_jax.tree import Leaves, NamedTree

__all__ = ["Source"]

_logger = logging.getLogger("reshard.jax")

Pytree = Any
_LEAST_LIMIT_S = 0.001  # of a call whose devices came at the last moment


class Source:
    """Publishes the weights of a pytree.

    Process 0 of the JAX job hosts the meeting point at the address.

    Args:
        address: `tcp://host:port`; port 0 picks one (see `address`).
        params: the weights, or `jax.ShapeDtypeStruct`s of them with shardings. Only described here,
            not kept.
        forms: which canonical tensors each leaf holds, by dotted path such as
            `layers.0.attn.q_proj.w` (see `reshard_jax.models`); None means as stored, under its own
            name.
        leaves: which leaves are weights; None means all. PRNG keys and other leaves that are no
            arrays of numbers are an error unless excluded here.
        padding: what elements are that no canonical tensor covers: `refuse`, `keep`, `zero`; of all
            leaves, or by dotted path. None of them is sent.
        group: name of this program.
        token: shared secret of all programs; required unless the address is loopback.
        casts: (source dtype, destination dtype) conversions that are wanted.
        allow_unmatched: shell-style patterns of canonical names that no destination has to take.
        staging_bytes: memory of this process for chunks under way.
        transport: `auto` goes by the memory that the weights of all programs are in; `shm` moves
            host memory between processes of one machine, `nccl` GPU memory (docs/nccl.md).
        min_destinations: how many destination programs a publish needs at least. Those that took
            part before are waited for too, until they close, die or miss one.
        timeout_s: limit of every wait unless a call gives its own.

    Raises:
        LayoutError, UnsupportedError: naming the leaf that cannot be moved, and why; or what `nccl`
            lacks here.
        RendezvousError: the address cannot be used.

    Collective: every process of the JAX job, also those that have none of the weights.

    Example:
        >>> source = reshard_jax.Source(  # doctest: +SKIP
        ...     "tcp://10.0.0.1:29500", params, forms=reshard_jax.models.tunix_qwen3(config))
        >>> report = source.publish(params, version=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str,
        params: Pytree,
        *,
        forms: Forms | None = None,
        leaves: Leaves | None = None,
        padding: Paddings = "refuse",
        group: str = "source",
        token: str | None = None,
        casts: Casts = (),
        allow_unmatched: Iterable[str] = (),
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        min_destinations: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        self._forms, self._leaves, self._padding = forms, leaves, padding
        self._in_jit = InJit(self, "source", self._serve)
        ranks = Ranks.of_tree(params, leaves)
        self._end = reshard.Source(
            address,
            (),
            ranks=ranks.local,
            num_ranks=ranks.size,
            process=ranks.process,
            num_processes=ranks.num_processes,
            group=group,
            token=token,
            casts=casts,
            allow_unmatched=allow_unmatched,
            staging_bytes=staging_bytes,
            transport=transport,
            min_destinations=min_destinations,
            timeout_s=timeout_s,
        )
        with self._end.opening():
            self._description = Description(NamedTree(params, leaves), forms, padding, ranks)
            self._end.replace_specs(self._description.specs)

    def __repr__(self) -> str:
        return repr(self._end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str | None:
        """Where destinations meet this source; only process 0 knows."""
        return self._end.address

    @property
    def report(self) -> RefitReport | None:
        """The last finished publish."""
        return self._end.report

    @property
    def topology(self) -> Topology | None:
        """As in `reshard.Source.topology`."""
        return self._end.topology

    def publish(
        self,
        params: Pytree,
        *,
        version: SupportsIndex,
        verify: bool = True,
        timeout_s: float | None = None,
    ) -> RefitReport:
        """Moves the weights into every destination, and returns when all have all of them.

        Waits first until the arrays are computed; JAX sets no limit to that wait. The arrays may be
        donated at any time: memory under way is held until this returns or raises, and no longer.

        Args:
            params: a tree as in the constructor, of arrays; a `jax.ShapeDtypeStruct` will do where
                this process has no device of a leaf. Leaves whose sharding, shape or dtype changed
                are described anew, and everybody plans again.
            version: must be larger than that of the last finished publish.
            verify: compare fingerprints of all tensors, replicas included, afterwards.
            timeout_s: how long to wait for the others. Once all are there, the longest limit that
                any of them gave holds for everybody. None means that of the constructor.

        Raises:
            LayoutError, PlanError, UnsupportedError: something does not fit; nothing moved.
            TransferTimeout: somebody did not come; the message says who.
            TransportError: a destination failed; it is torn, and the next publish goes on without
                it.
            VerificationError: values differ after the refit.

        Collective: every process of the JAX job, with the same tree, outside jit.

        Stream: none of JAX's, which it does not show. The arrays are computed before anything is
            read, and everything is read when this returns.
        """
        with self._end.calling():
            with self._end.telling_others():
                buffers = self._buffers_of(NamedTree(params, self._leaves))
            try:
                return self._end.publish(
                    buffers, version=version, verify=verify, timeout_s=timeout_s
                )
            finally:
                # The end may remember the mapping, and must not hold memory between publishes.
                buffers.clear()

    def publish_in_jit(
        self,
        params: Pytree,
        version: SupportsIndex | jax.Array,
        *,
        verify: bool = True,
        timeout_s: float | None = None,
    ) -> jax.Array:
        """Publishes inside a jitted function: the program stops until the weights have moved.

        The weights are sent from the memory in which XLA has them, without a copy. What comes later
        in the program may overwrite them: they are read when this is over.

        Args:
            params: the traced tree, with the names, shapes, dtypes and shardings of the tree that
                this source was made with.
            version: as in `publish`, static or traced; up to 2**31 - 1 unless x64 is on.
            verify: as in `publish`.
            timeout_s: limit of the call, in the program a constant: from when the first device
                of this process comes to it. None means that of the constructor.

        Returns:
            The version, one int32 (int64 with x64 on). Return it from the jitted function or
            depend on it, to have the publish done when it is there.

        Raises:
            LayoutError, UnsupportedError: while tracing: naming the weight that is not as it was
                described; the weights are on several meshes; this is in shard_map, vmap or grad.
            jax.errors.JaxRuntimeError: when the program runs: what `publish` raises, as text.
                DEADLINE_EXCEEDED for a TransferTimeout, ABORTED for a TransportError and for a
                source that is closed, INVALID_ARGUMENT for a LayoutError or PlanError, DATA_LOSS
                for a VerificationError.

        Collective: every process of the JAX job runs the program. The destinations refit meanwhile,
            in other processes, or outside jit on other threads.

        Stream: on GPUs, the one of XLA that the program runs on.
        """
        _, (number,) = self._in_jit.trace(
            params,
            self._leaves,
            self._description,
            version=traced_version(version),
            verify=verify,
            timeout_s=self._end.timeout_s if timeout_s is None else timeout_s,
        )
        return number

    def _serve(self, call: JitCall) -> None:
        """Publishes for a program, on a thread of its own."""
        with self._end.calling():
            with self._end.telling_others():
                version = call.version()
            if call.site.description is not self._description:
                self._end.replace_specs(call.site.description.specs)
                self._description = call.site.description
            self._end.publish(
                call.buffers,
                version=version,
                verify=call.site.verify,
                timeout_s=max(call.timeout_s, _LEAST_LIMIT_S),
                streams=call.streams,
            )

    def _buffers_of(self, tree: NamedTree) -> dict[BufferKey, Buffer]:
        self._follow(tree)
        return source_buffers(self._description, tree.values)

    def _follow(self, tree: NamedTree) -> None:
        """Describes the weights anew if any of them changed since they were described."""
        changes = self._description.changes(tree)
        if not changes:
            return
        description = Description(tree, self._forms, self._padding)
        if description.ranks.devices != self._description.ranks.devices:
            raise LayoutError(
                f"the weights moved to another platform ({changes[0]}). Open a new Source for them."
            )
        _logger.info("planning anew, %d weights changed: %s", len(changes), "; ".join(changes[:3]))
        self._end.replace_specs(description.specs)
        self._description = description

    def describe_plan(self) -> str:
        """Returns the summary of the current plan.

        Raises:
            LayoutError: before the first publish.
        """
        return self._end.describe_plan()

    def close(self) -> None:
        """Leaves and frees everything; closing twice is fine.

        A jitted program that waits in `publish_in_jit` raises: wait for its result first.
        """
        self._in_jit.close()
        self._end.close()
        self._in_jit.join()
