"""Hand-written point-to-point over gloo: exactly the needed boxes, per parameter or in buckets."""

from __future__ import annotations

import collections
import dataclasses

import torch
import torch.distributed as dist

from benchmarks.methods.method import Method, RankCase

__all__ = ["GlooBuckets", "GlooPointToPoint"]

_PARAMETERS_IN_FLIGHT = 4
_BUCKET_BYTES = 32 << 20


class GlooPointToPoint(Method):
    """isend and irecv per box; a few parameters in flight; contiguous boxes are not copied."""

    name = "gloo_p2p"
    about = "gloo isend/irecv of exactly the needed boxes, per parameter"

    def refit(self, version: int) -> None:
        """Keeps a window of parameters in flight."""
        in_flight: collections.deque[list[_Message]] = collections.deque()
        for parameter in self.case.workload.parameters:
            messages = []
            for transfer in self.case.my_transfers(parameter):
                part = self.case.part(parameter, transfer.region)
                if self.case.is_source:
                    peer = self.case.groups.num_sources + transfer.destination
                    messages.append(_send(part, peer))
                else:
                    messages.append(_receive(part, transfer.source))
            in_flight.append(messages)
            if len(in_flight) > _PARAMETERS_IN_FLIGHT:
                _finish(in_flight.popleft())
        while in_flight:
            _finish(in_flight.popleft())


@dataclasses.dataclass(frozen=True)
class _Message:
    work: dist.Work
    buffer: torch.Tensor
    target: torch.Tensor | None  # where a received buffer has to be copied to


def _send(part: torch.Tensor, peer: int) -> _Message:
    buffer = part.contiguous()
    return _Message(_started(dist.isend(buffer, peer)), buffer, None)


def _receive(part: torch.Tensor, peer: int) -> _Message:
    if part.is_contiguous():
        return _Message(_started(dist.irecv(part, peer)), part, None)
    buffer = torch.empty(part.shape, dtype=part.dtype)
    return _Message(_started(dist.irecv(buffer, peer)), buffer, part)


def _started(work: dist.Work | None) -> dist.Work:
    if work is None:
        message = "torch.distributed gave no work object: this rank is not in the group"
        raise RuntimeError(message)
    return work


def _finish(messages: list[_Message]) -> None:
    for message in messages:
        message.work.wait()
        if message.target is not None:
            message.target.copy_(message.buffer)


class GlooBuckets(Method):
    """Packs the boxes for each peer in buckets of at most 32 MiB; a larger box goes alone."""

    name = "gloo_buckets"
    about = "the same boxes packed in buckets of <= 32 MiB per peer"

    def __init__(self, case: RankCase) -> None:
        super().__init__(case)
        self._buckets: list[tuple[int, list[torch.Tensor]]] = []

    def set_up(self) -> None:
        """Groups the boxes by peer in the same order on both ends; views only, no buffers."""
        parts: dict[int, list[torch.Tensor]] = collections.defaultdict(list)
        for parameter in self.case.workload.parameters:
            for transfer in self.case.my_transfers(parameter):
                peer = transfer.source
                if self.case.is_source:
                    peer = self.case.groups.num_sources + transfer.destination
                parts[peer].append(self.case.part(parameter, transfer.region))
        rounds: list[list[tuple[int, list[torch.Tensor]]]] = []
        for peer in sorted(parts):
            for index, bucket in enumerate(_cut(parts[peer])):
                rounds += [[] for _ in range(index + 1 - len(rounds))]
                rounds[index].append((peer, bucket))
        self._buckets = [bucket for bucket_round in rounds for bucket in bucket_round]

    def refit(self, version: int) -> None:
        """Sends and receives one bucket per peer at a time."""
        width = len({peer for peer, _ in self._buckets})
        in_flight: collections.deque[tuple[dist.Work, torch.Tensor, list[torch.Tensor]]]
        in_flight = collections.deque()
        for peer, parts in self._buckets:
            if len(in_flight) == width:
                self._complete(*in_flight.popleft())
            if self.case.is_source:
                buffer = torch.cat([part.reshape(-1) for part in parts])
                in_flight.append((_started(dist.isend(buffer, peer)), buffer, []))
            else:
                buffer = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype)
                in_flight.append((_started(dist.irecv(buffer, peer)), buffer, parts))
        while in_flight:
            self._complete(*in_flight.popleft())

    def tear_down(self) -> None:
        """Drops the views."""
        self._buckets.clear()

    @staticmethod
    def _complete(work: dist.Work, buffer: torch.Tensor, parts: list[torch.Tensor]) -> None:
        work.wait()
        start = 0
        for part in parts:
            part.copy_(buffer[start : start + part.numel()].view(part.shape))
            start += part.numel()


def _cut(parts: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    buckets: list[list[torch.Tensor]] = []
    size = _BUCKET_BYTES
    for part in parts:
        nbytes = part.numel() * part.element_size()
        if size + nbytes > _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(part)
        size += nbytes
    return buckets
