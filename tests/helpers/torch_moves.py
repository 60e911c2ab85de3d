"""Refits between torch tensors of many ranks, all in one process and with the real native code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from helpers import patterns
from helpers.torch_ranks import bits_of, fake_rank
from reshard import (
    Buffer,
    BufferKey,
    Casts,
    RefitReport,
    Roster,
    Session,
    TensorSpec,
    make_contribution,
)
from reshard.exchange import SingleProcessExchange
from reshard.spec_codec import encode_specs
from reshard.spec_merge import merge_specs
from reshard_torch.compat import local_tensor
from reshard_torch.side import Side
from reshard_torch.tensors import TensorReader, Tensors

__all__ = ["RankTensors", "compare", "describe_ranks", "merged_specs", "refit_in_process"]


@dataclass(frozen=True)
class RankTensors:
    """What one rank describes, and its local tensors by stored name."""

    specs: tuple[TensorSpec, ...]
    buffers: dict[BufferKey, Buffer]
    local: dict[str, torch.Tensor]


def describe_ranks(
    num_ranks: int,
    make: Callable[[int], Tensors],
    **options: object,
) -> list[RankTensors]:
    """Returns what each rank of a fake process group describes; `make(rank)` makes its tensors."""
    described = []
    for rank in range(num_ranks):
        with fake_rank(rank, num_ranks):
            reader = TensorReader(Side.of_group(), **options)  # type: ignore[arg-type]
            current = reader.read(make(rank))
            local = {name: local_tensor(tensor) for name, tensor in current.tensors.items()}
            described.append(RankTensors(current.specs, current.buffers(), local))
    return described


def merged_specs(side: str, ranks: Sequence[RankTensors]) -> list[TensorSpec]:
    """Returns the specs of a side as the session joins them."""
    return merge_specs(side, [encode_specs(each.specs) for each in ranks])


def refit_in_process(
    sources: Sequence[RankTensors],
    destinations: Sequence[RankTensors],
    *,
    casts: Casts = (),
    allow_unmatched: Iterable[str] = (),
    is_colocated: bool = False,
) -> RefitReport:
    """Moves everything from the source ranks to the destination ranks, verified.

    Args:
        sources, destinations: from `describe_ranks`.
        casts, allow_unmatched: as for `reshard.Source`.
        is_colocated: rank numbers of both sides mean the same devices.
    """
    offset = 0 if is_colocated else len(sources)
    num_ranks = max(len(sources), offset + len(destinations))
    contribution = make_contribution(
        merged_specs("source", sources),
        merged_specs("destination", destinations),
        casts=[(str(a), str(b)) for a, b in casts],
        allow_unmatched=list(allow_unmatched),
        staging_bytes=64 << 20,
    )
    src = {key: buffer for each in sources for key, buffer in each.buffers.items()}
    dst = {
        (rank + offset, name): buffer
        for each in destinations
        for (rank, name), buffer in each.buffers.items()
    }
    exchange = SingleProcessExchange()
    roster = Roster((tuple(range(num_ranks)),), (0,), (((0,), offset),), ("test",))
    session = Session(exchange, roster, contribution, src, dst, rank_offset=0, timeout_s=60.0)
    try:
        return session.refit(
            exchange,
            src,
            dst,
            run_id=1,
            version=1,
            epoch=0,
            verify=True,
            timeout_s=60.0,
            phases={},
        )
    finally:
        session.close()


def compare(name: str, found: torch.Tensor, expected: torch.Tensor, whole: torch.Tensor) -> None:
    """Checks two local tensors bit by bit.

    Raises:
        AssertionError: with the first wrong element and where its value belongs in `whole`.
    """
    problem = patterns.explain_mismatch(name, bits_of(found), bits_of(expected), bits_of(whole))
    if problem is not None:
        raise AssertionError(problem)
