"""An epoch whose bytes travel over NCCL, from GPU to GPU, in rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from reshard.contribution import Contribution, Roster, choose_epoch_nccl
from reshard.device_kernels import kernel_images
from reshard.epoch_transport import closed_on_error, compare_plans, connect_all, time_left
from reshard.errors import LayoutError, UnsupportedError
from reshard.exchange import Exchange
from reshard.local_program import LocalProgram
from reshard.nccl_copies import open_offer
from reshard.plan import Plan
from reshard.rounds import BudgetError, Pace, agreed, pace_of_all
from reshard.spans import Spans
from reshard.traffic import MAX_ROUNDS

if TYPE_CHECKING:
    from reshard._native import Communicator
    from reshard._native_libraries import CudaLibrary, NcclLibrary

__all__ = ["NcclEpoch", "devices_of_ranks"]

_SMALLEST_CHUNK = 16  # programs in rounds have no chunks
_WITH_KERNELS, _WITHOUT_KERNELS = b"k", b"-"
_NVRTC_REMEDY = "Install nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc with CUDA 13) there"


def devices_of_ranks(
    roster: Roster, everybody: Sequence[Contribution]
) -> list[dict[int, int | None]]:
    """Returns, per process, the device of each of its ranks that has elements, in plan numbers."""
    offsets = {p: offset for processes, offset in roster.destinations for p in processes}
    return [
        {rank + offsets.get(process, 0): device for rank, device in each.devices}
        for process, each in enumerate(everybody)
    ]


class NcclEpoch:
    """One process's part; see `EpochTransport`.

    Ranks without elements, whose GPU nobody knows, are no members of the communicator.

    Args:
        roster: who is who.
        everybody: what each process brings.
        process: this one.
        plan: of the epoch.

    Attributes:
        spans: when tensors move.
        ranks: members of this process, ascending.

    Raises:
        UnsupportedError: there is no version of NCCL that all processes have.
    """

    def __init__(
        self, roster: Roster, everybody: Sequence[Contribution], process: int, plan: Plan
    ) -> None:
        self._roster, self._process, self._plan = roster, process, plan
        self._copy = choose_epoch_nccl(roster, everybody)[process]
        devices = devices_of_ranks(roster, everybody)
        self._devices = _known(devices[process])
        self._check_devices_apart()
        hosts = {
            rank: everybody[p].machine.boot_id for p, own in enumerate(devices) for rank in own
        }
        self._members = sorted(hosts)
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts.values()))}
        self._domains = {rank: numbers[hosts[rank]] for rank in self._members}
        self.ranks = sorted(self._devices)
        self._without_kernels: list[int] = []
        self._images: Mapping[int, bytes | None] = {}
        self.spans = Spans(plan.planner.kinds)

    def _check_devices_apart(self) -> None:
        """Refuses two ranks of this process on one GPU, which NCCL would refuse later."""
        first: dict[int, int] = {}
        for rank, device in sorted(self._devices.items()):
            other = first.setdefault(device, rank)
            if other != rank:
                raise LayoutError(
                    f"ranks {other} and {rank} of the plan are both on cuda:{device} of "
                    f"{self._roster.names[self._process]}, but NCCL takes one rank per GPU. Give "
                    "each rank a GPU of its own, or let one rank hold what both do."
                )

    @property
    def _channel_domains(self) -> list[int] | None:
        """Domains of the members; None where they have no channels beside the network's."""
        domains = [self._domains[rank] for rank in self._members]
        is_useful = 1 < len(set(domains)) < len(domains)
        return domains if is_useful else None

    def agree(self, exchange: Exchange, local: LocalProgram, digest: str, timeout_s: float) -> None:
        """Takes the number of rounds that fits every rank; see `EpochTransport.agree`."""
        budget = self._plan.staging_bytes
        plans = [self._plan.rank_plan(rank) for rank in self.ranks]
        own = pace_of_all(plans, self.spans, budget, len(plans))
        self._images = self._images_for(local.tables.first_cast)
        offers = compare_plans(exchange, self._roster.names, digest, tuple(own), timeout_s)
        pace = agreed([Pace(*offer) for offer in offers])
        while True:
            local.compile(_SMALLEST_CHUNK, pace)
            need = local.staging_bytes(self._domains_of_all())
            answers = exchange.exchange("rounds", msgspec.msgpack.encode(need), timeout_s=timeout_s)
            most = max(msgspec.msgpack.decode(answer, type=int) for answer in answers)
            if most <= budget:
                return
            # Messages are padded, and direct ones are not counted: the pace is an estimate.
            pace = pace._replace(num_rounds=2 * pace.num_rounds)
            if pace.num_rounds > MAX_ROUNDS:
                raise BudgetError(
                    f"staging_bytes={budget} is too small even in {MAX_ROUNDS} rounds: give at "
                    f"least {most}.",
                    most,
                )

    def _images_for(self, first_cast: str) -> Mapping[int, bytes | None]:
        """Returns the kernels for each GPU of this process; None where plain copies must do.

        Args:
            first_cast: what of this process's tensors is cast or changed, if anything is.
        """
        from reshard._native_libraries import CudaLibrary

        if not self._devices:
            return {}
        images = kernel_images(CudaLibrary(), self._devices.values())
        if first_cast and None in images.values():
            raise UnsupportedError(
                f"{first_cast} on a GPU takes compiled kernels, and there is no NVRTC that its "
                f"driver takes. {_NVRTC_REMEDY}, or have both sides store it alike."
            )
        return images

    def _domains_of_all(self) -> list[int]:
        """Returns a domain for every number of a rank; those that are none are alone."""
        channels = self._channel_domains
        count = 1 + max(self._members, default=-1)
        alone = [len(self._members) + rank for rank in range(count)]
        if channels is not None:
            for rank in self._members:
                alone[rank] = self._domains[rank]
        return alone

    def connect(
        self, exchange: Exchange, deadline: float, while_waiting: Callable[[], None] | None
    ) -> Communicator | None:
        """Joins the communicator of all members; see `EpochTransport.connect`."""
        from reshard._native_libraries import CudaLibrary

        nccl = None if self._copy is None else open_offer(self._copy)
        cuda = None if nccl is None else CudaLibrary()
        is_first = nccl is not None and self._members[0] in self._devices
        word = _WITH_KERNELS if None not in self._images.values() else _WITHOUT_KERNELS
        word += nccl.make_id() if nccl is not None and is_first else b""
        words = exchange.exchange("listening", word, timeout_s=time_left(deadline))
        self._without_kernels = [p for p, w in enumerate(words) if w[:1] == _WITHOUT_KERNELS]
        opened = None
        if nccl is not None and cuda is not None:
            unique_id = next(w[1:] for w in words if len(w) > 1)
            opened = self._open(nccl, cuda, unique_id)
        with closed_on_error(opened) as communicator:
            connect_all(exchange, communicator, deadline, while_waiting)
        return communicator

    def problem_of_verifying(self) -> UnsupportedError | None:
        """Returns why fingerprints cannot be added up on the GPUs of all processes.

        Names a process that has no compiled kernels; the same on all of them.
        """
        if not self._without_kernels:
            return None
        return UnsupportedError(
            f"{self._roster.names[self._without_kernels[0]]}: to add up fingerprints on GPUs takes "
            f"compiled kernels, and there is no NVRTC that its driver takes. {_NVRTC_REMEDY}, or "
            "refit without verification."
        )

    def _open(
        self,
        nccl: NcclLibrary,
        cuda: CudaLibrary,
        unique_id: bytes,
    ) -> Communicator:
        from reshard._native import Communicator
        from reshard._native_communicator import GpuRank

        local = [
            GpuRank(rank, device, self._images[device])
            for rank, device in sorted(self._devices.items())
        ]
        return Communicator.nccl(nccl, cuda, unique_id, self._members, local, self._channel_domains)


def _known(devices: Mapping[int, int | None]) -> dict[int, int]:
    return {rank: device for rank, device in devices.items() if device is not None}
