"""A plan in words, for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from reshard.explanation import Move, explanations, ranks_text

if TYPE_CHECKING:
    from reshard.cluster_view import ClusterView
    from reshard.plan import Plan

__all__ = ["counted", "describe", "explain", "format_box", "format_bytes", "format_seconds"]


def counted(number: int, noun: str) -> str:
    """Returns a number of things, such as `1 tensor` or `2 tensors`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_bytes(nbytes: float) -> str:
    """Returns a number of bytes with a binary unit, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def format_seconds(seconds: float) -> str:
    """Returns a time with three digits and a unit that suits it."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def describe(plan: Plan) -> str:
    """Returns a summary of a plan; plans every rank."""
    sent: Counter[int] = Counter()
    forwarded: Counter[int] = Counter()
    received: Counter[int] = Counter()
    local = 0
    per_geometry: dict[int, list[int]] = {}
    for rank in plan.dst_ranks:
        rank_plan = plan.rank_plan(rank)
        for kind, numbers, legs, ranks in (*rank_plan.receives, *rank_plan.arrivals):
            entry = per_geometry.setdefault(id(kind.first.geometry), [0, 0])
            entry[0] += len(numbers) * len(legs)
            for leg in legs:
                nbytes = len(numbers) * leg.num_elements * kind.itemsizes[leg.hop > 0]
                src_rank = ranks[leg.peer]
                entry[1] += nbytes
                if src_rank == rank:
                    local += nbytes
                else:
                    (forwarded if leg.hop else sent)[src_rank] += nbytes
                    received[rank] += nbytes
    lines = [
        f"{counted(len(plan.pairs), 'tensor')}, {counted(len(plan.src_ranks), 'source rank')} -> "
        f"{counted(len(plan.dst_ranks), 'destination rank')}, "
        f"{format_bytes(sum(sent.values()))} to move"
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
        *([_schedule_line(plan)] if plan.topology is None else _view_lines(plan.view)),
        f"digest {plan.digest[:16]}",
    ]
    return "\n".join(lines)


def _schedule_line(plan: Plan) -> str:
    schedule = plan.schedule
    return (
        f"schedule: {counted(schedule.num_rounds, 'round')} of "
        f"{format_bytes(schedule.chunk_bytes)} per stream, "
        f"{format_bytes(schedule.staging_bytes)} staging on the busiest rank "
        f"(budget {format_bytes(plan.staging_bytes)})"
    )


def _view_lines(view: ClusterView) -> list[str]:
    """Returns what the topology says: bytes between domains, the limit, the prediction."""
    floor, prediction = view.floor, view.prediction
    conventional = view.gather_and_broadcast_seconds
    return [
        f"{view.topology.name}: {format_bytes(view.loads.crossing)} into domains "
        f"({format_bytes(floor.crossing)} at least), {counted(view.num_hops, 'hop')}",
        f"floor {format_seconds(floor.seconds)} ({floor.reason})",
        f"predicted {format_seconds(prediction.seconds)}, of which the floor is "
        f"{view.share_of_floor:.1%}, in {counted(prediction.num_rounds, 'round')}; "
        f"busiest: {prediction.busiest}",
        f"holders alone {format_seconds(view.direct.seconds)}"
        + (f", gather and broadcast {format_seconds(conventional)}" if conventional else ""),
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
        cast += "" if pair.change is None else f", {pair.change}"
        lines.append(
            f"  {pair.name}{more}: {pair.src.dtype}{list(pair.src.shape)} {pair.src.layout} -> "
            f"{list(pair.dst.shape)} {pair.dst.layout}{cast}, "
            f"{counted(transfers, 'transfer')}, "
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
    lines = []
    for found in explanations(plan, name, rank):
        dims = ", ".join(f"{dim}={size}" for dim, size in found.dims)
        change = "" if found.elementwise is None else f", changed: {found.elementwise}"
        lines.append(
            f"{found.name} in logical dims ({dims}), {found.wire_dtype} on the wire{change}"
        )
        for role, held in (("source", found.src), ("destination", found.dst)):
            ranks = tuple(sorted(held.layout.ranks))
            lines.append(f"  {role}: {held.layout} on {ranks_text(ranks)}")
            lines += [f"    rank {rank} holds {format_box(*box)}" for box in held.boxes]
        lines += [_move_line(move, rank) for move in found.moves]
        if not found.moves:
            lines.append(f"  rank {rank} neither sends nor receives it")
    return "\n".join(lines)


def format_box(start: tuple[int, ...], stop: tuple[int, ...]) -> str:
    """Returns a box such as `[0:2, 4:8]`."""
    return f"[{', '.join(f'{a}:{b}' for a, b in zip(start, stop, strict=True))}]"


def _move_line(move: Move, rank: int) -> str:
    text = f"  {move.verb} {format_box(move.start, move.stop)} {format_bytes(move.nbytes)}"
    if move.peer == rank:
        return f"{text}: a copy within rank {rank}, which {move.why}"
    arrow = "to" if move.verb == "sends" else "from"
    over = {None: "", "network": " over the network"}.get(move.link, f" {move.link}")
    sender = rank if move.verb == "sends" else move.peer
    return f"{text} {arrow} rank {move.peer}{over}; rank {sender} {move.why}"
