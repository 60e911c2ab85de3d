"""A plan in words, for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from reshard.errors import PlanError
from reshard.logical_space import Side, pieces_of_rank
from reshard.transfer import Transfer

if TYPE_CHECKING:
    from reshard.cluster_view import ClusterView
    from reshard.plan import Plan

__all__ = ["describe", "explain", "format_bytes"]


def format_bytes(nbytes: float) -> str:
    """Returns a number of bytes with a binary unit, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def describe(plan: Plan) -> str:
    """Returns a summary of a plan; plans every rank."""
    sent: Counter[int] = Counter()
    forwarded: Counter[int] = Counter()
    received: Counter[int] = Counter()
    local = 0
    per_geometry: dict[int, list[int]] = {}
    for rank in plan.dst_ranks:
        for number, count, src_rank, volume, hop in plan.rank_plan(rank).volumes_in(plan.pairs):
            pair = plan.pairs[number]
            nbytes = count * volume * pair.dtype_at(hop).itemsize
            entry = per_geometry.setdefault(id(pair.geometry), [0, 0])
            entry[0] += count
            entry[1] += nbytes
            if src_rank == rank:
                local += nbytes
            else:
                (forwarded if hop else sent)[src_rank] += nbytes
                received[rank] += nbytes
    schedule = plan.schedule
    lines = [
        f"{len(plan.pairs)} tensors, {len(plan.src_ranks)} source ranks -> "
        f"{len(plan.dst_ranks)} destination ranks, {format_bytes(sum(sent.values()))} to move"
        + (f", {format_bytes(sum(forwarded.values()))} sent on" if forwarded else "")
        + (f", {format_bytes(local)} copied in place" if local else ""),
        *_geometry_lines(plan, per_geometry),
        _load_line("sent per source rank", sent, plan.src_ranks),
        *(
            [_load_line("sent on per destination rank", forwarded, plan.dst_ranks)]
            if forwarded
            else []
        ),
        _load_line("received per destination rank", received, plan.dst_ranks),
        f"schedule: {schedule.num_rounds} rounds of {format_bytes(schedule.chunk_bytes)} "
        f"per stream, {format_bytes(schedule.staging_bytes)} staging on the busiest rank "
        f"(budget {format_bytes(plan.staging_bytes)})",
        *(_view_lines(plan.view) if plan.topology is not None else []),
        f"digest {plan.digest[:16]}",
    ]
    return "\n".join(lines)


def _view_lines(view: ClusterView) -> list[str]:
    """Returns what the topology says: bytes between domains, the limit, the prediction."""
    floor, prediction = view.floor, view.prediction
    return [
        f"{view.topology.name}: {format_bytes(view.loads.crossing)} into domains "
        f"({format_bytes(floor.crossing)} at least), {view.num_hops} hops",
        f"floor {floor.seconds:.4g} s ({floor.reason}); busiest {view.busiest}, "
        f"{view.busy_seconds:.4g} s",
        f"predicted {prediction.seconds:.4g} s, {view.share_of_floor:.1%} of the floor, in "
        f"{prediction.num_slots} slots; holders alone {view.direct.seconds:.4g} s, gather and "
        f"broadcast {view.gather_and_broadcast_seconds:.4g} s",
    ]


def _geometry_lines(plan: Plan, per_geometry: dict[int, list[int]]) -> list[str]:
    members: dict[int, list[int]] = {}
    for number, pair in enumerate(plan.pairs):
        members.setdefault(id(pair.geometry), []).append(number)
    lines = []
    for key, numbers in members.items():
        pair = plan.pairs[numbers[0]]
        transfers, nbytes = per_geometry.get(key, (0, 0))
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        cast = "" if pair.src.dtype == pair.dst.dtype else f" as {pair.dst.dtype}"
        lines.append(
            f"  {pair.name}{more}: {pair.src.dtype}{list(pair.src.shape)} {pair.src.layout} -> "
            f"{list(pair.dst.shape)} {pair.dst.layout}{cast}, {transfers} transfers, "
            f"{format_bytes(nbytes)}"
        )
    return lines


def _load_line(what: str, loads: Counter[int], ranks: tuple[int, ...]) -> str:
    values = [loads[rank] for rank in ranks] or [0]
    mean = sum(values) / len(values)
    ratio = max(values) / mean if mean else 1.0
    return (
        f"{what}: min {format_bytes(min(values))}, mean {format_bytes(mean)}, "
        f"max {format_bytes(max(values))} ({ratio:.3f} x mean)"
    )


def explain(plan: Plan, name: str, rank: int) -> str:
    """Returns what one rank does with one tensor."""
    numbers = [i for i, pair in enumerate(plan.pairs) if name in _names(plan, i)]
    if not numbers:
        raise PlanError(
            f"no tensor of this plan is called {name!r}; it has {len(plan.pairs)}, such as "
            f"{[pair.name for pair in plan.pairs[:3]]}."
        )
    if rank not in plan.ranks:
        raise PlanError(
            f"no rank of this plan is {rank!r}: the source has {_ranks_text(plan.src_ranks)}, the "
            f"destination {_ranks_text(plan.dst_ranks)}. Ranks of both sides are numbered in one "
            "space; TensorSpec.shifted moves one side's."
        )
    lines = []
    for number in numbers:
        pair = plan.pairs[number]
        space = pair.geometry.space
        dims = ", ".join(f"{n}={size}" for n, size in zip(space.names, space.shape, strict=True))
        lines.append(f"{pair.name} in logical dims ({dims}), {pair.wire_dtype} on the wire")
        lines += _held_lines("source", pair.src.layout, pair.geometry.src, space.shape, rank)
        lines += _held_lines("destination", pair.dst.layout, pair.geometry.dst, space.shape, rank)
        rank_plan = plan.rank_plan(rank)
        outgoing = [t for t in rank_plan.transfers_out() if t.pair == number]
        incoming = [t for t in rank_plan.transfers_in() if t.pair == number]
        lines += [_transfer_line(plan, "sends", t, rank) for t in outgoing]
        lines += [_transfer_line(plan, "receives", t, rank) for t in incoming]
        if not (outgoing or incoming):
            lines.append(f"  rank {rank} neither sends nor receives it")
    return "\n".join(lines)


def _ranks_text(ranks: tuple[int, ...]) -> str:
    """Returns ascending ranks in few words."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"


def _names(plan: Plan, number: int) -> set[str]:
    pair = plan.pairs[number]
    return {pair.name, pair.src.name, pair.dst.name}


def _held_lines(
    role: str, layout: object, side: Side, shape: tuple[int, ...], rank: int
) -> list[str]:
    lines = [f"  {role}: {layout}"]
    for piece in pieces_of_rank(side, len(shape), rank):
        box = ", ".join(f"{a}:{b}" for a, b in zip(piece.start, piece.stop, strict=True))
        lines.append(f"    rank {rank} holds [{box}]")
    return lines


def _transfer_line(plan: Plan, verb: str, transfer: Transfer, rank: int) -> str:
    box = ", ".join(f"{a}:{b}" for a, b in zip(transfer.start, transfer.stop, strict=True))
    size = format_bytes(plan.nbytes(transfer))
    if transfer.src_rank == transfer.dst_rank:
        return f"  {verb} [{box}] {size}: a copy within rank {rank}, which holds it already"
    peer = transfer.dst_rank if verb == "sends" else transfer.src_rank
    arrow = "to" if verb == "sends" else "from"
    if transfer.hop:
        why = f"which has received it by hop {transfer.hop - 1}"
        return f"  {verb} [{box}] {size} {arrow} rank {peer}; rank {transfer.src_rank} {why}"
    holders = _num_holders(plan, transfer)
    why = (
        "the only holder"
        if holders == 1
        else f"one of {holders} holders, which share the bytes of this box evenly"
    )
    return f"  {verb} [{box}] {size} {arrow} rank {peer}; rank {transfer.src_rank} is {why}"


def _num_holders(plan: Plan, transfer: Transfer) -> int:
    geometry = plan.pairs[transfer.pair].geometry
    count = 0
    for rank in geometry.src.layout.ranks:
        for piece in pieces_of_rank(geometry.src, len(geometry.space.shape), rank):
            if all(
                a <= b and c <= d
                for a, b, c, d in zip(
                    piece.start, transfer.start, transfer.stop, piece.stop, strict=True
                )
            ):
                count += 1
                break
    return count
