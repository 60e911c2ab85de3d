"""Arrays from their shardings to others, on any devices of all processes of a JAX job."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import jax

from reshard import (
    DEFAULT_STAGING_BYTES,
    JobSides,
    LayoutError,
    OneCall,
    RefitReport,
    Session,
    StoreExchange,
    Transport,
    job_session,
)
from reshard_jax.buffers import ReceiveBuffers, source_buffers
from reshard_jax.compat import check_not_tracing, is_array
from reshard_jax.description import Description
from reshard_jax.donation import delete_unshared
from reshard_jax.dtypes import check_not_narrowed
from reshard_jax.exchange import JobExchange, next_exchange
from reshard_jax.ranks import Ranks
from reshard_jax.targets import targets_of
from reshard_jax.tree import Leaves, NamedLeaves, NamedTree, Weight

__all__ = ["Redistribution", "device_put"]

Pytree = Any

_SINGLE = "array"
_MAX_LISTED = 10


def device_put(
    x: Pytree,
    shardings: Pytree,
    *,
    donate: bool = False,
    leaves: Leaves | None = None,
    transport: Transport = "auto",
    timeout_s: float = 60.0,
    verify: bool = True,
) -> Pytree:
    """Moves arrays to other shardings: what `jax.device_put` refuses between processes.

    Devices, their number and order, specs and memory kinds may all differ, and each element moves
    once, straight from a device that has it to the one that wants it.

    Args:
        x: an array or a pytree of arrays; `jax.ShapeDtypeStruct`s with shardings where this process
            has no device of an array.
        shardings: a sharding for all arrays, or a tree of them that is a prefix of `x`, as for
            `jax.device_put`.
        donate: delete the arrays of `x` when everything has arrived, so that their memory is free.
            Arrays that share memory with others that live are spared.
        leaves: which leaves are moved, by dotted path and value; None means all. The others, such
            as PRNG keys, are returned as they are.
        transport: `auto` goes by the memory that the arrays are in; `shm` moves host memory between
            processes of one machine, `nccl` GPU memory (docs/nccl.md).
        timeout_s: limit for all of it.
        verify: compare fingerprints afterwards.

    Returns:
        The same tree with arrays of exactly these shardings: new ones, row-major. Arrays of which
        every device has its part already keep their memory, as with `jax.device_put`.

    Raises:
        LayoutError, PlanError, UnsupportedError: something does not fit; nothing was moved, by any
            process.
        TransferTimeout: a process did not come; the message says which.
        TransportError: a process failed. `x` is whole, also with `donate`.
        VerificationError: values differ afterwards; likewise.

    Collective: every process of the JAX job, outside jit, also those without a device of any of the
        meshes. Processes count calls.

    Example:
        >>> import jax, reshard_jax
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("x",))
        >>> x = jax.numpy.arange(6.0).reshape(2, 3)
        >>> y = reshard_jax.device_put(x, NamedSharding(mesh, P(None, "x")))
        >>> y.sharding.spec, y.tolist()
        (PartitionSpec(None, 'x'), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    """
    with Redistribution(
        x, shardings, leaves=leaves, transport=transport, timeout_s=timeout_s
    ) as plan:
        return plan.run(x, donate=donate, verify=verify)


class Redistribution:
    """A move to other shardings that is planned once, in the first run, and run again and again.

    To be closed, or used in a `with` block: else the last words of its processes stay in JAX's
    coordination service.

    Arguments are those of `device_put`, and:
        staging_bytes: memory of this process for chunks under way.

    Attributes:
        report: what the last run moved; None before, and where nothing has to move.

    Collective: every process of the JAX job makes, runs and closes it, in the same order as others.
    """

    def __init__(
        self,
        x: Pytree,
        shardings: Pytree,
        *,
        leaves: Leaves | None = None,
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        transport: Transport = "auto",
        timeout_s: float = 60.0,
    ) -> None:
        self.report: RefitReport | None = None
        self._leaves = leaves
        self._staging_bytes = staging_bytes
        self._transport = transport
        self._timeout_s = timeout_s
        self._num_runs = 0
        self._calls = OneCall("this Redistribution")
        self._session: Session | None = None
        self._src: Description | None = None  # of what moves; None where everything is in place
        self._dst: Description | None = None
        self._is_closed = False
        self._exchange: JobExchange = next_exchange()
        try:
            check_not_tracing()
            self._is_tree = _is_tree(x)
            self._ranks = Ranks.of_tree(self._wrapped(x), leaves)
            self._describe(NamedTree(self._wrapped(x), leaves), self._wrapped(shardings))
        except BaseException as error:
            self._exchange.fail(error)
            self.close()
            raise

    def run(
        self,
        x: Pytree,
        *,
        donate: bool = False,
        verify: bool = True,
        timeout_s: float | None = None,
    ) -> Pytree:
        """Returns the tree with the values that it has now, in the new shardings.

        Args:
            x: a tree like the one that this was made for.
            donate, verify: as for `device_put`.
            timeout_s: limit; None means that of the constructor.

        Raises:
            LayoutError: an array is not what it was when this was made, or this is closed.
            TransferTimeout, TransportError, VerificationError: as for `device_put`; make a new
                Redistribution afterwards.

        Collective: every process of the JAX job.
        """
        with self._calls.calling():
            if self._is_closed:
                raise LayoutError("this Redistribution is closed; make a new one.")
            try:
                check_not_tracing()
                tree = NamedTree(self._wrapped(x), self._leaves)
                limit = self._timeout_s if timeout_s is None else timeout_s
                moved = self._run(tree, limit, verify=verify)
                values = [
                    moved[name] if name in moved else _placed(value, self._targets[name])
                    for name, value in tree.items()
                ]
            except BaseException as error:
                self._exchange.fail(error)
                self.close()
                raise
            result = tree.with_values(values)
            if donate:
                old = [value for name, value in tree.items() if name in moved and is_array(value)]
                kept = [leaf for leaf in jax.tree_util.tree_leaves(result) if is_array(leaf)]
                delete_unshared(old, kept)
            return result if self._is_tree else result[_SINGLE]

    def close(self) -> None:
        """Frees everything; closing twice is fine."""
        self._is_closed = True
        session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        finally:
            if isinstance(self._exchange, StoreExchange):
                self._exchange.leave()

    def _wrapped(self, x: Pytree) -> Pytree:
        """Returns a tree in which a bare array has a name."""
        return x if self._is_tree else {_SINGLE: x}

    def __repr__(self) -> str:
        plan = "closed" if self._is_closed else "not planned yet"
        if self._session is not None:
            plan = repr(self._session.plan)
        return (
            f"<Redistribution in process {self._ranks.process} of {self._ranks.num_processes}: "
            f"{plan}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _describe(self, tree: NamedTree, shardings: Pytree) -> None:
        targets = targets_of(tree, shardings)
        self._targets = dict(zip(tree.names, targets, strict=True))
        moved = {
            name: value for name, value in tree.items() if not _is_at(value, self._targets[name])
        }
        for name, value in tree.items():
            if name not in moved and not is_array(value) and value.sharding.addressable_devices:
                raise LayoutError(
                    f"{name}: only described, not there, though this process has devices of it. "
                    "Give the array."
                )
        if not moved:
            return
        names = tuple(moved)
        wanted = tuple(self._targets[name] for name in names)
        self._src = Description(NamedLeaves(names, tuple(moved.values())), ranks=self._ranks)
        self._dst = Description(NamedLeaves(names, wanted), ranks=self._ranks, is_target=True)
        for leaf in self._dst.leaves:
            check_not_narrowed(leaf.name, leaf.dtype)

    def _run(self, tree: NamedTree, timeout_s: float, *, verify: bool) -> dict[str, jax.Array]:
        """Returns the new arrays by name."""
        deadline = time.monotonic() + timeout_s
        self._num_runs += 1
        moved = self._moved(tree)
        if self._src is None or self._dst is None:
            return {}
        sources = source_buffers(self._src, list(moved.values()))
        received = ReceiveBuffers(self._dst, {})
        sides = JobSides(self._src.specs, self._dst.specs, sources, received.buffers)
        try:
            sides.check(self._ranks.local)
            if self._session is None:
                self._session = self._make_session(sides, timeout_s)
            self.report = self._session.refit(
                self._exchange,
                sources,
                received.buffers,
                run_id=self._num_runs,
                version=self._num_runs,
                epoch=0,
                verify=verify,
                timeout_s=max(deadline - time.monotonic(), 0.0),
                phases={},
            )
            return dict(zip(moved, received.to_arrays(), strict=True))
        finally:
            # The session may remember the mappings, and must not hold memory between runs.
            sources.clear()
            received.buffers.clear()

    def _moved(self, tree: NamedTree) -> dict[str, Any]:
        """Returns the arrays that move, by name, and checks that they are as they were described.

        Raises:
            LayoutError: naming every array that is not.
        """
        planned = () if self._src is None else tuple(leaf.name for leaf in self._src.leaves)
        stay = self._targets.keys() - set(planned)
        named = dict(tree.items())
        moved = {name: value for name, value in named.items() if name not in stay}
        changes = [
            f"{name}: was in its place, is {named[name].sharding}"
            for name in sorted(stay & named.keys())
            if not _is_at(named[name], self._targets[name])
        ]
        changes += [f"{name}: gone" for name in sorted(stay - named.keys())]
        if self._src is not None:
            changes += self._src.changes(NamedLeaves(tuple(moved), tuple(moved.values())))
        else:
            changes += [f"{name}: new" for name in moved]
        if changes:
            listed = "\n  ".join(changes[:_MAX_LISTED])
            raise LayoutError(
                "arrays are not what they were when this Redistribution was made:\n  "
                f"{listed}\nMake a new one for other arrays."
            )
        return moved

    def _make_session(self, sides: JobSides, timeout_s: float) -> Session:
        return job_session(
            self._exchange,
            self._ranks.of_processes,
            [f"process {process}" for process in range(self._ranks.num_processes)],
            sides,
            staging_bytes=self._staging_bytes,
            transport=self._transport,
            timeout_s=timeout_s,
        )


def _is_tree(x: Pytree) -> bool:
    return not jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(x))


def _is_at(value: Weight, target: jax.ShapeDtypeStruct) -> bool:
    """Says whether all devices have what they should, however it is written."""
    now, wanted = value.sharding, target.sharding
    if now is None or now.memory_kind != wanted.memory_kind:
        return False
    return now == wanted or now.is_equivalent_to(wanted, len(target.shape))


def _placed(value: Weight, target: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns an array that is in place with exactly the sharding asked for; nothing moves."""
    if not is_array(value):  # a process without a device of it
        return jax.make_array_from_single_device_arrays(
            target.shape, target.sharding, [], dtype=target.dtype
        )
    if value.sharding == target.sharding and value.committed:
        return value
    placed: jax.Array = jax.device_put(value, target.sharding)
    return placed
