"""The obvious planner: all pairs of boxes of all ranks. Slow, global, and the oracle of the others.

It shares with them only the rule that picks holders (`holders.Striping`) and the pieces of a rank.
Users can run it to check a plan of their own layouts: `set(reference_transfers(plan.pairs))` is the
set of transfers of all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from reshard.delivery import Part, group_by_domain, make_delivery, make_plain_delivery
from reshard.holders import rotation_of_box
from reshard.logical_space import Side, copy_numbers, pieces_of_rank
from reshard.matching import TensorPair
from reshard.places import PlaceTable
from reshard.tensor_spec import TensorSpec
from reshard.topology import Topology
from reshard.transfer import BoxKey, Transfer

__all__ = ["reference_transfers"]


def reference_transfers(
    pairs: Sequence[TensorPair], topology: Topology | None = None
) -> Iterator[Transfer]:
    """Yields every transfer of every rank, in no promised order.

    Args:
        pairs: what moves.
        topology: where ranks are; None means that holders serve everybody.
    """
    table = PlaceTable(topology, pairs)
    for number, pair in enumerate(pairs):
        if pair.num_elements:
            _, places = table.of(pair)
            direct = (1, 1) if places is None else places.direct
            domains = None if topology is None else topology.domains
            yield from _transfers_of_pair(number, pair, domains, direct)


def _transfers_of_pair(
    number: int, pair: TensorPair, domains: Sequence[int] | None, direct: tuple[int, int]
) -> Iterator[Transfer]:
    ndim = len(pair.geometry.space.shape)
    held = _stored(pair.src, pair.geometry.src, ndim)
    wanted = _stored(pair.dst, pair.geometry.dst, ndim)
    for want, takers in wanted.items():
        regions: dict[BoxKey, set[int]] = defaultdict(set)
        for box, givers in held.items():
            common = _common(box, want)
            if common:
                regions[common].update(rank for rank, _ in givers)
        order = {rank: position for position, rank in enumerate(pair.src.layout.ranks)}
        for region, ranks in _disjoint(regions).items():
            givers_in_order = sorted(ranks, key=order.__getitem__)
            yield from _shares(number, pair, want, region, givers_in_order, takers, domains, direct)


def _disjoint(regions: dict[BoxKey, set[int]]) -> dict[BoxKey, set[int]]:
    """Returns the regions, cut along all their edges if two of them overlap."""
    boxes = list(regions)
    if not any(_common(a, b) for i, a in enumerate(boxes) for b in boxes[:i]):
        return regions
    num_dims = range(len(boxes[0][0]))
    edges = [sorted({edge for box in boxes for edge in (box[0][d], box[1][d])}) for d in num_dims]
    cells: dict[BoxKey, set[int]] = defaultdict(set)
    for bounds in product(*(pairwise(line) for line in edges)):
        cell = tuple(a for a, _ in bounds), tuple(b for _, b in bounds)
        for box, ranks in regions.items():
            if _common(box, cell):
                cells[cell] |= ranks
    return cells


def _shares(
    number: int,
    pair: TensorPair,
    want: BoxKey,
    region: BoxKey,
    givers: list[int],
    takers: list[tuple[int, int]],
    domains: Sequence[int] | None,
    direct: tuple[int, int],
) -> Iterator[Transfer]:
    remote = [taker for taker in takers if taker[0] not in givers]
    for rank, copy in takers:
        if rank in givers:
            yield Transfer(number, rank, rank, *region, copy)
    if not remote:
        return
    shape = tuple(b - a for a, b in zip(*region, strict=True))
    itemsize = pair.geometry.counted_bytes
    if domains is None:
        delivery = make_plain_delivery(shape, len(remote), len(givers), itemsize)
    else:
        wanting = group_by_domain(tuple([domains[rank] for rank, _ in remote]))
        holding = group_by_domain(tuple([domains[rank] for rank in givers]))
        delivery = make_delivery(shape, wanting, holding, itemsize, direct)
    delivery = delivery.based(rotation_of_box(*want)).turned(pair.rotation)

    def transfer(src: int, part: Part, src_copy: int) -> Transfer:
        box = delivery.striping.cut(region, part.start, part.stop)
        dst, copy = remote[part.peer]
        return Transfer(number, src, dst, *box, copy, part.hop, src_copy)

    for index, giver in enumerate(givers):
        for part in delivery.sent(index):
            yield transfer(giver, part, 0)
    for index, (rank, copy) in enumerate(remote):
        for part in delivery.forwarded(index):
            yield transfer(rank, part, copy)


def _stored(spec: TensorSpec, side: Side, ndim: int) -> dict[BoxKey, list[tuple[int, int]]]:
    """Returns the (rank, copy) that store each distinct box, in the order of the layout's ranks."""
    stored: dict[BoxKey, list[tuple[int, int]]] = defaultdict(list)
    side = Side(spec.shape, spec.layout, side.rows)
    for rank in spec.layout.ranks:
        pieces = pieces_of_rank(side, ndim, rank)
        for piece, copy in zip(pieces, copy_numbers(pieces), strict=True):
            stored[piece.start, piece.stop].append((rank, copy))
    return stored


def _common(a: BoxKey, b: BoxKey) -> BoxKey | None:
    start = tuple(max(p, q) for p, q in zip(a[0], b[0], strict=True))
    stop = tuple(min(p, q) for p, q in zip(a[1], b[1], strict=True))
    return (start, stop) if all(p < q for p, q in zip(start, stop, strict=True)) else None
