"""What each process brings to an epoch, and the plan that follows from all of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from reshard.errors import LayoutError, PlanError
from reshard.machine import Machine, this_machine
from reshard.matching import Casts, TensorPair, match, read_casts
from reshard.plan import Plan
from reshard.spec_codec import encode_specs
from reshard.spec_merge import merge_specs, shift_specs
from reshard.tensor_spec import TensorSpec

__all__ = ["Contribution", "Roster", "decode_all", "make_contribution", "make_epoch_plan"]


class Contribution(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a process brings to an epoch, as it travels in the first exchange.

    Attributes:
        src_specs, dst_specs: encoded specs, in the numbers of the process's own side.
        casts: (source, destination) names of dtypes that may be converted.
        allow_unmatched: patterns of names that may stay without a partner.
        staging_bytes: budget of this process.
        machine: where it runs.
        nonce: random bytes; all together name the epoch's shared memory.
        copy_rate: bytes per second at which the machine copies memory; 0 where it was not probed.
    """

    src_specs: bytes
    dst_specs: bytes
    casts: tuple[tuple[str, str], ...]
    allow_unmatched: tuple[str, ...]
    staging_bytes: int
    machine: Machine
    nonce: bytes
    copy_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is who in an epoch.

    Attributes:
        ranks: per process, its ranks in the numbers of the plan.
        sources: processes that bring source tensors.
        destinations: per destination program, its processes and what to add to its rank numbers.
        names: per process, how messages call it.
    """

    ranks: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]
    destinations: tuple[tuple[tuple[int, ...], int], ...]
    names: tuple[str, ...]


def make_epoch_plan(roster: Roster, everybody: Sequence[Contribution]) -> Plan:
    """Returns the plan that all members make alike out of what all of them bring.

    Raises:
        ReshardError: if the sides do not fit.
    """
    src = merge_specs("source", [everybody[p].src_specs for p in roster.sources])
    casts_of_source = {cast for i in roster.sources for cast in everybody[i].casts}
    allowed_by_source = {p for i in roster.sources for p in everybody[i].allow_unmatched}
    pairs: list[TensorPair] = []
    for processes, offset in roster.destinations:
        # What one destination allows itself must not be done to another one.
        casts = casts_of_source | {cast for i in processes for cast in everybody[i].casts}
        allowed = {p for i in processes for p in everybody[i].allow_unmatched}
        try:
            own = merge_specs("destination", [everybody[p].dst_specs for p in processes])
            pairs += match(
                src,
                shift_specs(own, offset),
                casts=sorted(casts),
                allow_unmatched=sorted(allowed),
                allow_unused=sorted(allowed_by_source),
            )
        except (LayoutError, PlanError) as error:
            if len(roster.destinations) == 1:
                raise
            program = roster.names[processes[0]]
            raise type(error)(f"of several destinations, that of {program}: {error}") from error
    return Plan(pairs, min(each.staging_bytes for each in everybody))


def make_contribution(
    src_specs: Sequence[TensorSpec],
    dst_specs: Sequence[TensorSpec],
    *,
    casts: Casts,
    allow_unmatched: Sequence[str],
    staging_bytes: int,
    copy_rate: float = 0.0,
) -> Contribution:
    """Returns what this process brings to an epoch."""
    return Contribution(
        encode_specs(src_specs),
        encode_specs(dst_specs),
        tuple((str(a), str(b)) for a, b in read_casts(casts)),
        tuple(allow_unmatched),
        staging_bytes,
        this_machine(),
        os.urandom(16),
        copy_rate,
    )


def decode_all(answers: Sequence[bytes], kind: Any) -> list[Any]:  # noqa: ANN401 (a type form)
    """Returns the messages of all members.

    Raises:
        PlanError: if one does not decode.
    """
    try:
        return [msgspec.msgpack.decode(answer, type=kind) for answer in answers]
    except msgspec.MsgspecError as error:
        raise PlanError(
            f"a member sent a message that does not decode ({error}). Run one version of "
            "reshard everywhere."
        ) from error
