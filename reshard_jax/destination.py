"""The receiving end of a refit, for pytrees of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Literal, Self

import jax

import reshard
from reshard import (
    DEFAULT_STAGING_BYTES,
    Casts,
    Forms,
    Paddings,
    RefitReport,
    Topology,
    Transport,
    patterns_of,
)
from reshard_jax.buffers import ReceiveBuffers
from reshard_jax.compat import check_not_tracing, is_array
from reshard_jax.description import Description
from reshard_jax.donation import delete_unshared
from reshard_jax.dtypes import check_not_narrowed
from reshard_jax.in_jit import InJit
from reshard_jax.jit_calls import JitCall
from reshard_jax.ranks import Ranks
from reshard_jax.tree import Leaves, NamedTree

__all__ = ["Destination", "State"]

Pytree = Any
State = Literal["empty", "ready", "torn"]
_LEAST_LIMIT_S = 0.001  # of a call whose devices came at the last moment


class Destination:
    """Receives weights as new arrays.

    Args:
        address: where the source hosts the meeting point, `tcp://host:port`.
        template: what is wanted: arrays, or `jax.ShapeDtypeStruct(shape, dtype, sharding=...)`.
            Arrays are only described, not kept, except those that `allow_unmatched` names and those
            whose padding is kept.
        forms: which canonical tensors each leaf holds, by dotted path; None means as stored, under
            its own name.
        leaves: which leaves are weights; None means all. Others are handed back as they are.
        padding: what elements are that no canonical tensor covers: `refuse`, `keep` (the values of
            the template, zeros where it has none) or `zero`; of all leaves, or by dotted path.
        group: name of this program; programs that refit from one source need different names.
        token: shared secret of all programs; required unless the address is loopback.
        casts: (source dtype, destination dtype) conversions that are wanted.
        allow_unmatched: shell-style patterns of canonical names that may stay without a source.
            Such weights keep the values of the template; zeros where it has none.
        staging_bytes: memory of this process for chunks under way.
        transport: `auto` goes by the memory that the weights of all programs are in; `shm` moves
            host memory between processes of one machine, `nccl` GPU memory (docs/nccl.md).
        timeout_s: limit of every wait unless a call gives its own.

    Attributes:
        version: of the parameters that the last finished refit returned; None before.
        report: what that refit did; None before.

    Raises:
        LayoutError, UnsupportedError: naming the leaf that cannot be received, and why; or what
            `nccl` lacks here.
        RendezvousError: the address is malformed, or lacks a token. Whether somebody is there shows
            in the first refit.

    Collective: every process of the JAX job, also those that have none of the weights.

    Example:
        >>> destination = reshard_jax.Destination("tcp://10.0.0.1:29500", params)  # doctest: +SKIP
        >>> params = destination.refit(timeout_s=60)  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str,
        template: Pytree,
        *,
        forms: Forms | None = None,
        leaves: Leaves | None = None,
        padding: Paddings = "refuse",
        group: str = "destination",
        token: str | None = None,
        casts: Casts = (),
        allow_unmatched: Iterable[str] = (),
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        timeout_s: float = 60.0,
    ) -> None:
        self._allowed = patterns_of("allow_unmatched", allow_unmatched)
        self._leaves = leaves
        self._in_jit = InJit(self, "destination", self._serve)
        self.version: int | None = None
        self.report: RefitReport | None = None
        self._is_torn = False
        ranks = Ranks.of_tree(template, leaves)
        self._end = reshard.Destination(
            address,
            (),
            ranks=ranks.local,
            num_ranks=ranks.size,
            process=ranks.process,
            num_processes=ranks.num_processes,
            group=group,
            token=token,
            casts=casts,
            allow_unmatched=self._allowed,
            staging_bytes=staging_bytes,
            transport=transport,
            timeout_s=timeout_s,
        )
        with self._end.opening():
            self._describe(NamedTree(template, leaves), forms, padding, ranks)

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
    def state(self) -> State:
        """`ready` once a refit returned parameters; `torn` where one that frees arrays failed.

        Otherwise a failed refit leaves all arrays alone that were returned before.
        """
        if self._is_torn:
            return "torn"
        return "empty" if self.version is None else "ready"

    @property
    def topology(self) -> Topology | None:
        """As in `reshard.Source.topology`."""
        return self._end.topology

    def fingerprints(self) -> dict[str, int]:
        """Returns the fingerprint per canonical name of the last refit; empty if not verified."""
        return {} if self.report is None else dict(self.report.fingerprints)

    def refit(self, *, free: Pytree | None = None, timeout_s: float | None = None) -> Pytree:
        """Waits for the source to publish, and returns the tree of new arrays.

        Arrays have exactly the sharding of the template and row-major memory, which is new in every
        refit: what was returned before never changes. So the old and the new weights exist at the
        same time, unless the old ones are given as `free`. On GPUs the memory comes out of XLA's
        own pool.

        Args:
            free: a tree of arrays, such as the one that the last refit returned, that are deleted
                before memory for the new ones is taken. Spared are arrays that share memory with
                others that live, such as those of a source in the same process. From the beginning
                of the call there are no weights: if it fails, the state is `torn`.
            timeout_s: how long to wait for the others. Once all are there, the longest limit that
                any of them gave holds for everybody. None means that of the constructor.

        Raises:
            LayoutError, PlanError: something does not fit; nothing moved, on any rank.
            TransferTimeout: somebody did not come; the message says who.
            TransportError: a member failed. Calling again joins the next publish.
            VerificationError: values differ after the refit.

        Collective: every process of the JAX job, outside jit.

        Stream: none of JAX's, which it does not show. Everything is written when this returns, so
            whatever JAX computes next with the arrays is right.
        """
        with self._end.calling():
            with self._end.telling_others():
                check_not_tracing()
                if free is not None:
                    self._free(free)
                received = ReceiveBuffers(self._description, self._initial)
            try:
                report = self._end.refit(received.buffers, timeout_s=timeout_s)
                params = self._tree.with_values(received.to_arrays())
            finally:
                # The end may remember the mapping, and must not hold memory between refits.
                received.buffers.clear()
            self.report, self.version, self._is_torn = report, report.version, False
            return params

    def _free(self, tree: Pytree) -> None:
        """Deletes the arrays of a tree; what the next refit keeps of the template stays."""
        arrays = [leaf for leaf in jax.tree_util.tree_leaves(tree) if is_array(leaf)]
        kept = [array for array in self._initial.values() if array is not None]
        if delete_unshared(arrays, kept + self._tree.others()):
            self.version, self._is_torn = None, True

    def refit_in_jit(self, params: Pytree, *, timeout_s: float | None = None) -> Pytree:
        """Refits inside a jitted function: the program stops until the weights are there.

        The new weights are received into the memory in which XLA has the result, without a copy.
        Donate `params` (`jax.jit(..., donate_argnums=...)`) to have them written in place; else XLA
        copies them first, and they stay as they are.

        Args:
            params: the traced tree, with the names, shapes, dtypes and shardings of the template.
                What no source has (`allow_unmatched`, padding that is kept) stays as it is here.
            timeout_s: limit of the call, in the program a constant: from when the first device
                of this process comes to it. None means that of the constructor.

        Returns:
            The same tree with the new weights.

        Raises:
            LayoutError, UnsupportedError: while tracing: naming the weight that is not as it was
                described; the weights are on several meshes; this is in shard_map, vmap or grad.
            jax.errors.JaxRuntimeError: when the program runs: what `refit` raises, as text, with
                the codes that `Source.publish_in_jit` lists. Donated weights are gone then.

        Collective: every process of the JAX job runs the program. The source publishes meanwhile,
            in other processes, or outside jit on another thread.

        Stream: on GPUs, the one of XLA that the program runs on.
        """
        tree, values = self._in_jit.trace(
            params,
            self._leaves,
            self._description,
            timeout_s=self._end.timeout_s if timeout_s is None else timeout_s,
        )
        return tree.with_values(values)

    def _serve(self, call: JitCall) -> None:
        """Refits for a program, on a thread of its own."""
        with self._end.calling():
            report = self._end.refit(
                call.buffers,
                timeout_s=max(call.timeout_s, _LEAST_LIMIT_S),
                streams=call.streams,
            )
            self.report, self.version, self._is_torn = report, report.version, False

    def _describe(
        self, tree: NamedTree, forms: Forms | None, padding: Paddings, ranks: Ranks
    ) -> None:
        self._description = Description(tree, forms, padding, ranks)
        for leaf in self._description.leaves:
            check_not_narrowed(leaf.name, leaf.dtype)
        self._initial = self._values_to_keep(tree)
        self._tree = tree.without_values()
        self._end.replace_specs(self._description.specs)

    def _values_to_keep(self, tree: NamedTree) -> dict[str, jax.Array | None]:
        return {
            spec.name: value if is_array(value) else None
            for spec, value in zip(self._description.specs, tree.values, strict=True)
            if spec.padding == "keep"
            or any(fnmatchcase(p.name, pattern) for p in spec.parts for pattern in self._allowed)
        }

    def describe_plan(self) -> str:
        """Returns the summary of the current plan.

        Raises:
            LayoutError: before the first refit.
        """
        return self._end.describe_plan()

    def close(self) -> None:
        """Leaves and frees everything; closing twice is fine.

        A jitted program that waits in `refit_in_jit` raises: wait for its result first.
        """
        self._in_jit.close()
        self._end.close()
        self._in_jit.join()
