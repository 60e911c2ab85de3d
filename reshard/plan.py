"""A plan: which box of which tensor goes from which rank to which rank, and why.

Equal inputs give equal plans on every rank; `digest` stands for the inputs, so ranks compare
digests before the first byte moves.
"""

from __future__ import annotations

import hashlib
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from reshard.cluster_view import ClusterView, make_view
from reshard.domain_choice import make_planner
from reshard.errors import PlanError
from reshard.finding import Finding
from reshard.lint import lint
from reshard.loads import Loads, find_loads
from reshard.matching import Casts, TensorPair, match
from reshard.plan_summary import plan_to_json
from reshard.plan_text import describe, explain
from reshard.planner import Planner
from reshard.rank_plan import RankPlan
from reshard.schedule import DEFAULT_STAGING_BYTES, Schedule, make_schedule
from reshard.spec_codec import encode_specs
from reshard.stream_sums import stream_bytes
from reshard.tensor_spec import TensorSpec
from reshard.topology import Topology
from reshard.transfer import Transfer

__all__ = ["PLANNER_VERSION", "Plan", "make_plan"]

PLANNER_VERSION = 7
"""Changes whenever equal inputs could give another plan than before."""


class Plan:
    """What moves between two sides; made by `make_plan`.

    Ranks of both sides are numbered in one space: equal numbers are the same device, and what such
    a rank already holds is copied in place. Source and destination programs that are started apart
    have different numbers (`TensorSpec.shifted`).

    Attributes:
        pairs: the tensors that move, in plan order.
        staging_bytes: budget of each process for chunks under way.
        topology: where ranks are; None means that holders serve everybody.
    """

    def __init__(
        self,
        pairs: Sequence[TensorPair],
        staging_bytes: int,
        topology: Topology | None = None,
    ) -> None:
        try:
            self.staging_bytes = operator.index(staging_bytes)
        except TypeError:
            raise PlanError(
                f"staging_bytes={staging_bytes!r} is no whole number. Give bytes, such as 1 << 30 "
                "for 1 GiB."
            ) from None
        self.pairs = tuple(pairs)
        self.topology = topology
        if not (topology is None or isinstance(topology, Topology)):
            raise PlanError(
                f"topology={topology!r} is no Topology. Give one, such as "
                "Topology.dgx_h100(num_ranks), or None."
            )
        if topology is not None and self.pairs and max(self.ranks) >= topology.num_ranks:
            raise PlanError(
                f"topology {topology.name!r} places ranks 0 to {topology.num_ranks - 1}, but a "
                f"layout has rank {max(self.ranks)}. Give a topology of all ranks of both sides."
            )
        self._rank_plans: dict[int, RankPlan] = {}

    @cached_property
    def planner(self) -> Planner:
        """Works out each rank's part; for views of the whole plan."""
        return make_planner(self.pairs, self.topology)

    @cached_property
    def src_ranks(self) -> tuple[int, ...]:
        """Ranks of all source layouts, ascending."""
        return _ranks_of(pair.src for pair in self.pairs)

    @cached_property
    def dst_ranks(self) -> tuple[int, ...]:
        """Ranks of all destination layouts, ascending."""
        return _ranks_of(pair.dst for pair in self.pairs)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of both sides, ascending."""
        return tuple(sorted({*self.src_ranks, *self.dst_ranks}))

    def rank_plan(self, rank: int) -> RankPlan:
        """Returns one rank's part; made on first use, about a millisecond for 1,000 parameters.

        Raises:
            PlanError: if a source layout does not hold what this rank stores.
        """
        plan = self._rank_plans.get(rank)
        if plan is None:
            plan = self._rank_plans[rank] = self.planner.plan_rank(rank)
        return plan

    @property
    def num_hops(self) -> int:
        """How many steps there are, one after the other; 1 where nobody passes anything on."""
        return self.planner.num_hops if self.topology is not None else 1

    @cached_property
    def loads(self) -> Loads:
        """Bytes of all ranks, by kind of link.

        Raises:
            PlanError: if a source layout does not hold what a destination stores.
        """
        return find_loads(self.planner, self.topology)

    @cached_property
    def view(self) -> ClusterView:
        """Loads, floor and predicted times of the whole cluster.

        Raises:
            PlanError: if the plan has no topology; if a source layout does not hold what a
                destination stores; if the staging budget is too small.
        """
        return make_view(self)

    def sends(self, rank: int) -> list[Transfer]:
        """Returns what a rank sends, copies within the rank included."""
        return list(self.rank_plan(rank).transfers_out())

    def receives(self, rank: int) -> list[Transfer]:
        """Returns what a rank receives, copies within the rank included."""
        return list(self.rank_plan(rank).transfers_in())

    def transfers(self) -> Iterator[Transfer]:
        """Yields every transfer once, by destination rank."""
        for rank in self.dst_ranks:
            yield from self.rank_plan(rank).transfers_in()

    def nbytes(self, transfer: Transfer) -> int:
        """Returns the bytes of a transfer on the wire."""
        return transfer.num_elements * self.pairs[transfer.pair].dtype_at(transfer.hop).itemsize

    def stored_bytes(self, rank: int) -> int:
        """Returns the bytes on the wire that a rank stores of all destination tensors."""
        return self.planner.stored_bytes(rank)

    def stream_bytes(self, ranks: Iterable[int] | None = None) -> dict[tuple[int, int], int]:
        """Returns bytes per (source rank, destination rank), without copies within a rank.

        Args:
            ranks: destination ranks to look at; None means all.
        """
        return stream_bytes(self.planner, self.dst_ranks if ranks is None else ranks)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule if every rank is a process of its own. Looks at all ranks."""
        streams = self.stream_bytes()
        rings: dict[int, int] = defaultdict(int)
        for src, dst in streams:
            rings[src] += 1
            rings[dst] += 1
        return make_schedule(streams, rings, self.staging_bytes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything that the plan follows from: specs, pairing, budget, version."""
        content = hashlib.sha256(f"reshard planner {PLANNER_VERSION} ".encode())
        src = {id(pair.src): pair.src for pair in self.pairs}
        dst = {id(pair.dst): pair.dst for pair in self.pairs}
        content.update(encode_specs(list(src.values())))
        content.update(encode_specs(list(dst.values())))
        for pair in self.pairs:
            larger = pair.geometry.counted_bytes // pair.wire_dtype.itemsize
            text = f"{pair.name}:{pair.wire_dtype}:{pair.rotation}"
            text += "" if pair.change is None else f":{pair.change.numbers}"
            content.update(f"{text}{f':{larger}' if larger > 1 else ''};".encode())
        if self.planner.shares:
            # They follow from all of that, but by floats: better compared than trusted.
            content.update(str(sorted(self.planner.shares.items())).encode())
        content.update(str(self.staging_bytes).encode())
        if self.topology is not None:
            content.update(self.topology.to_json().encode())
            content.update(b"" if self.planner.topology is not None else b"holders alone")
        return content.hexdigest()

    def check(self) -> None:
        """Plans every rank and checks that sends and receives are the same set of transfers.

        Raises:
            PlanError: if a send has no receive or the other way round.
        """
        sent = [transfer for rank in self.ranks for transfer in self.sends(rank)]
        received = list(self.transfers())
        if sorted(sent) != sorted(received):
            odd = set(sent) ^ set(received)
            raise PlanError(
                f"{len(odd)} transfers have one end only, such as {next(iter(odd))}. This is a "
                "defect of the planner; please report the specs."
            )

    def describe(self) -> str:
        """Returns a summary: per kind of tensor what moves and how, loads per rank, schedule.

        Raises:
            PlanError: if a source layout does not hold what a destination stores.
        """
        return describe(self)

    def explain(self, name: str, rank: int) -> str:
        """Returns which boxes of a tensor a rank holds, sends and receives, from whom and why.

        Raises:
            PlanError: if no tensor of the plan has this name, or no side has this rank; if a source
                layout does not hold what the rank stores.
        """
        return explain(self, name, rank)

    def lint(self) -> list[Finding]:
        """Returns what is wrong or odd, the worst first; empty if nothing is. Plans every rank."""
        return lint(self)

    def to_json(self) -> str:
        """Returns a summary as one line of JSON: kinds of tensors, loads of ranks, the floor.

        Fields are stable and have their unit in the name; single transfers are not in it. Plans
        every rank.

        Raises:
            PlanError: if a source layout does not hold what a destination stores, or the staging
                budget is too small.
        """
        return plan_to_json(self)

    def __repr__(self) -> str:
        return (
            f"<Plan of {len(self.pairs)} tensors, {len(self.src_ranks)} source and "
            f"{len(self.dst_ranks)} destination ranks>"
        )


def _ranks_of(specs: Iterable[TensorSpec]) -> tuple[int, ...]:
    layouts = {id(spec.layout): spec.layout for spec in specs}
    return tuple(sorted({rank for layout in layouts.values() for rank in layout.ranks}))


def make_plan(
    src_specs: Sequence[TensorSpec],
    dst_specs: Sequence[TensorSpec],
    *,
    casts: Casts = (),
    allow_unmatched: Iterable[str] = (),
    staging_bytes: int = DEFAULT_STAGING_BYTES,
    topology: Topology | None = None,
    times_larger: int = 1,
) -> Plan:
    """Returns the plan that moves all tensors of the source side to the destination side.

    Names, canonical shapes and dtypes are checked here. What each rank sends and receives is worked
    out when it is asked for, so that one rank of a thousand pays for itself alone; a source that
    lacks elements which a destination stores is an error of that moment. `plan.check()` asks for
    all ranks.

    Args:
        src_specs, dst_specs: all tensors of each side, with ranks numbered in one space.
        casts: (source dtype, destination dtype) conversions that are wanted.
        allow_unmatched: shell-style patterns of canonical names that may stay without a partner.
        staging_bytes: budget per process for chunks under way.
        topology: where ranks are and how fast their links are; None means that holders serve
            everybody. What then moves from destination to destination is carried out by refits
            between GPUs and by `run_in_process`.
        times_larger: tensors stand for ones so many times their size: they are cut into stripes,
            exchanged and passed on as those would be. For trying the plan of a large model on a
            small one (`Model.scaled_down`), whose boxes are too small for that by themselves.

    Raises:
        PlanError: listing everything that does not fit; nothing is planned then. Gaps in a source
            layout are found by `check`, `describe`, `explain`, `rank_plan` and whatever moves data.
        LayoutError: if `casts` are not pairs.

    Example:
        >>> from reshard import Layout, Mesh, Shard, TensorSpec, make_plan
        >>> src = TensorSpec("w", (4, 6), "float32", Layout(Mesh.of(fsdp=2), (Shard(0),)))
        >>> dst = TensorSpec("w", (4, 6), "float32", Layout(Mesh.of(tp=2), (Shard(1),)))
        >>> plan = make_plan([src], [dst.shifted(2)])
        >>> [str(transfer) for transfer in plan.receives(2)]
        ['[0:2, 0:3] 0 -> 2', '[2:4, 0:3] 1 -> 2']
    """
    pairs = match(
        src_specs,
        dst_specs,
        casts=casts,
        allow_unmatched=allow_unmatched,
        times_larger=times_larger,
    )
    return Plan(pairs, staging_bytes, topology)
