"""One process's native program: made of its part of the plan, bound to its local arrays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from reshard.buffers import Buffer, BufferKey, BufferSnapshot
from reshard.errors import LayoutError, PlanError
from reshard.plan import Plan
from reshard.program_table import Endpoint, ProgramTables, make_program_tables
from reshard.rounds import Pace
from reshard.spans import Spans
from reshard.verification import FingerprintTable, make_fingerprint_table

if TYPE_CHECKING:
    from reshard._native import Communicator, Program, Run, RunStats

__all__ = ["LocalProgram"]

Buffers = Mapping[BufferKey, Buffer]
_Shape = tuple[tuple[int, ...], tuple[int, ...], int]


class LocalProgram:
    """What one process does in every refit of an epoch.

    Args:
        plan: the plan of the epoch.
        ranks: the ranks of this process, in the plan's numbers.
        rank_offset: what to add to the rank numbers of buffers to get the plan's.
        src_buffers, dst_buffers: local arrays, in the numbers of the process's side.
        spans: when tensors move, where they move in rounds.
    """

    def __init__(
        self,
        plan: Plan,
        ranks: Sequence[int],
        rank_offset: int,
        src_buffers: Buffers,
        dst_buffers: Buffers,
        *,
        spans: Spans | None = None,
    ) -> None:
        self._plan = plan
        self._ranks = tuple(ranks)
        self._rank_offset = rank_offset
        self._given: tuple[BufferSnapshot, BufferSnapshot] | None = None
        self._program: Program | None = None
        self._spans = spans
        self._size: tuple[int, Pace | None] = (0, None)
        self._has_sums = False
        self._fingerprint_table: FingerprintTable | None = None
        self._fingerprint_shapes: list[_Shape] = []
        self._fingerprint_addresses = array("Q")
        sides = self._shifted(src_buffers), self._shifted(dst_buffers)
        self._check_complete(sides)
        self.tables: ProgramTables = make_program_tables(plan, self._ranks, *sides, spans=spans)
        self._shapes = _shapes(self.tables.endpoints, sides)

    def _check_complete(self, sides: tuple[Buffers, Buffers]) -> None:
        """Refuses tensors that a layout puts on a rank of this process, which does not know them.

        Other processes of the side described them.
        """
        for pair in self._plan.pairs:
            for spec, buffers in zip((pair.src, pair.dst), sides, strict=True):
                for rank in self._ranks:
                    if (rank, spec.name) in buffers or spec.layout.position(rank) is None:
                        continue
                    shape = spec.layout.local_shape(rank, spec.shape)
                    if shape is not None and 0 not in shape:
                        own = rank - self._rank_offset
                        raise LayoutError(
                            f"{spec.name}: rank {own} gave no such tensor, but another process of "
                            f"its side says that it holds {shape} of {spec.shape}. Every rank of a "
                            "layout gives its part; leave the rank out of the mesh if it has none."
                        )

    def compile(self, chunk_bytes: int, pace: Pace | None = None) -> None:
        """Makes the native program, with messages of the agreed size, or at the agreed pace."""
        from reshard._native import Program

        self.close()
        self._size = chunk_bytes, pace
        tables = self.tables
        self._program = Program(
            tables.streams,
            tables.operations,
            tables.zeros,
            tables.extents,
            len(tables.endpoints),
            chunk_bytes,
            hops=tables.hops,
            spans=tables.spans,
            rules=tables.rules,
            changes=tables.changes,
            num_rounds=0 if pace is None else pace.num_rounds,
            num_groups=1 if pace is None else pace.num_groups,
            messages_per_pair=1 if pace is None else pace.messages_per_pair,
        )

    def staging_bytes(self, domains: Sequence[int]) -> int:
        """Returns the memory for chunks under way of the rank that needs most, in rounds.

        Args:
            domains: of every rank from 0 on.
        """
        return self._compiled().describe_rounds(sorted(self._ranks), domains).staging_bytes

    def bind(self, src_buffers: Buffers, dst_buffers: Buffers, *, verify: bool) -> None:
        """Takes the arrays of the next run; where strides differ from before, tables are made anew.

        The same buffers as last time cost next to nothing.

        Args:
            src_buffers, dst_buffers: local arrays, in the numbers of the process's side.
            verify: prepare `fingerprints` too.
        """
        is_known = self._given is not None and (
            self._given[0].is_of(src_buffers) and self._given[1].is_of(dst_buffers)
        )
        if is_known and (self._has_sums or not verify):
            return
        sides = self._shifted(src_buffers), self._shifted(dst_buffers)
        shapes = _shapes(self.tables.endpoints, sides)
        if shapes != self._shapes:
            self.tables = make_program_tables(self._plan, self._ranks, *sides, spans=self._spans)
            self._shapes = shapes
            self.compile(*self._size)
        self._addresses = _addresses(self.tables.endpoints, sides)
        self._has_sums = verify
        if verify:
            self._bind_fingerprints(sides)
        self._given = BufferSnapshot(src_buffers), BufferSnapshot(dst_buffers)

    def _bind_fingerprints(self, sides: tuple[Buffers, Buffers]) -> None:
        """The same for the sums, which are taken of idle replicas too."""
        table = self._fingerprint_table
        if table is None or _shapes(table.endpoints, sides) != self._fingerprint_shapes:
            table = make_fingerprint_table(self._plan, self._ranks, *sides)
            self._fingerprint_table = table
            self._fingerprint_shapes = _shapes(table.endpoints, sides)
        self._fingerprint_addresses = _addresses(table.endpoints, sides)

    def run(
        self,
        communicator: Communicator | None,
        *,
        run_id: int,
        timeout_s: float,
        num_threads: int = 1,
    ) -> RunStats:
        """Moves everything once; see `_native.Program.run`."""
        return self._compiled().run(
            communicator,
            self._addresses,
            run_id=run_id,
            timeout_s=timeout_s,
            num_threads=num_threads,
        )

    def begin(
        self, communicator: Communicator, *, run_id: int, timeout_s: float, streams: Sequence[int]
    ) -> AbstractContextManager[Run]:
        """Begins to move everything over GPUs; see `_native.Program.begin`."""
        return self._compiled().begin(
            communicator, self._addresses, run_id=run_id, timeout_s=timeout_s, streams=streams
        )

    def _compiled(self) -> Program:
        if self._program is None:
            raise PlanError("this program is closed, or was never compiled.")
        return self._program

    def fingerprints(
        self, communicator: Communicator | None = None, timeout_s: float = 60.0
    ) -> bytes:
        """Returns the sums of this process's pieces, as `Verifier` expects them.

        Args:
            communicator: where the arrays are on GPUs.
            timeout_s: limit for GPUs.
        """
        from reshard._native import fingerprints

        table = self._fingerprint_table
        if table is None or not self._has_sums:
            raise PlanError("this program was bound without `verify`, so it knows no sums.")
        addresses = self._fingerprint_addresses
        sums = fingerprints(
            table.rows,
            addresses,
            table.num_slots,
            communicator,
            timeout_s,
            rules=table.rules,
        )
        return sums.tobytes()

    def close(self) -> None:
        """Frees the native program; closing twice is fine."""
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def _shifted(self, buffers: Buffers) -> Buffers:
        if self._rank_offset == 0:
            return buffers
        return {(rank + self._rank_offset, name): b for (rank, name), b in buffers.items()}


def _shapes(endpoints: Sequence[Endpoint], sides: tuple[Buffers, Buffers]) -> list[_Shape]:
    buffers = [sides[e.side][e.rank, e.name] for e in endpoints]
    return [(buffer.shape, buffer.strides, int(buffer.dtype)) for buffer in buffers]


def _addresses(endpoints: Sequence[Endpoint], sides: tuple[Buffers, Buffers]) -> array[int]:
    return array("Q", [sides[e.side][e.rank, e.name].address for e in endpoints])
