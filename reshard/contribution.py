"""What each process brings to an epoch, and the plan that follows from all of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from reshard.errors import LayoutError, PlanError
from reshard.machine import Machine, this_machine
from reshard.matching import Casts, TensorPair, match, read_casts
from reshard.nccl_check import nccl_here
from reshard.nccl_choice import NcclOffer, choose_nccl
from reshard.plan import Plan
from reshard.spec_codec import encode_specs
from reshard.spec_merge import merge_specs, shift_specs
from reshard.tensor_spec import TensorSpec
from reshard.topology import Topology
from reshard.transport_choice import Chosen, Transport, Wish, check_transport, choose_transport

__all__ = [
    "Contribution",
    "Roster",
    "choose_epoch_nccl",
    "choose_epoch_transport",
    "decode_all",
    "make_contribution",
    "make_epoch_plan",
]

_NO_DEVICES: Mapping[int, int | None] = MappingProxyType({})


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
        devices: (rank, device) of each rank that has elements, in the numbers of the process's own
            side; the device is the ordinal of a CUDA device in the process, None for host memory.
        transport: what its user asked for.
        nccl: copies of NCCL that it could take, the one that it likes best first; none where its
            weights are in host memory and nobody there asked for NCCL.
        nccl_problem: why it cannot use NCCL; empty if it can, or was never asked.
    """

    src_specs: bytes
    dst_specs: bytes
    casts: tuple[tuple[str, str], ...]
    allow_unmatched: tuple[str, ...]
    staging_bytes: int
    machine: Machine
    nonce: bytes
    copy_rate: float = 0.0
    devices: tuple[tuple[int, int | None], ...] = ()
    transport: Transport = "auto"
    nccl: tuple[NcclOffer, ...] = ()
    nccl_problem: str = ""

    @property
    def holds_cuda(self) -> bool:
        """True if any of its arrays is in the memory of a CUDA device."""
        return any(device is not None for _, device in self.devices)

    @property
    def wish(self) -> Wish:
        """What it brings to the choice of a transport."""
        holds_host = any(device is None for _, device in self.devices)
        return Wish(self.transport, holds_host, self.holds_cuda, self.nccl_problem)


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


def make_epoch_plan(
    roster: Roster, everybody: Sequence[Contribution], topology: Topology | None = None
) -> Plan:
    """Returns the plan that all members make alike out of what all of them bring.

    Args:
        roster: who is who.
        everybody: what each process brings.
        topology: where the ranks are, for a transport that passes on inside domains.

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
    return Plan(pairs, min(each.staging_bytes for each in everybody), topology)


def choose_epoch_transport(roster: Roster, everybody: Sequence[Contribution]) -> Chosen:
    """Returns the transport of an epoch, as all members choose it alike.

    Raises:
        UnsupportedError: naming the processes that are in the way.
    """
    return choose_transport(roster.names, [each.wish for each in everybody])


def choose_epoch_nccl(
    roster: Roster, everybody: Sequence[Contribution]
) -> tuple[NcclOffer | None, ...]:
    """Returns the copy of NCCL that each process takes, all of one version.

    Processes without arrays on a GPU have no part in the communicator, and get None.

    Raises:
        UnsupportedError: if no version is everywhere.
    """
    members = [process for process, each in enumerate(everybody) if each.holds_cuda]
    chosen = choose_nccl(
        [roster.names[process] for process in members],
        [everybody[process].nccl for process in members],
    )
    by_process = dict(zip(members, chosen, strict=True))
    return tuple(by_process.get(process) for process in range(len(everybody)))


def make_contribution(
    src_specs: Sequence[TensorSpec],
    dst_specs: Sequence[TensorSpec],
    *,
    casts: Casts,
    allow_unmatched: Sequence[str],
    staging_bytes: int,
    copy_rate: float = 0.0,
    devices: Mapping[int, int | None] = _NO_DEVICES,
    transport: Transport = "auto",
) -> Contribution:
    """Returns what this process brings to an epoch.

    NCCL is looked for only where it is needed: by who holds GPU memory or asks for it.

    Args:
        devices: of the ranks of this process that have elements, as `devices_of` returns it.
    """
    asked = check_transport(transport)
    offers: tuple[NcclOffer, ...] = ()
    problem = ""
    if asked == "nccl" or any(device is not None for device in devices.values()):
        offers, problem = nccl_here()
    return Contribution(
        encode_specs(src_specs),
        encode_specs(dst_specs),
        tuple((str(a), str(b)) for a, b in read_casts(casts)),
        tuple(allow_unmatched),
        staging_bytes,
        this_machine(),
        os.urandom(16),
        copy_rate,
        tuple(sorted(devices.items(), key=lambda item: item[0])),
        asked,
        offers,
        problem,
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
