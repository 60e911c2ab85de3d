"""Refits between GPUs: ours, gather and broadcast over NCCL, and the floor, in the same processes.

The first half of the ranks holds a model cut along dim 0, the second half wants it along dim 1. The
floor is one dense message for each pair of ranks with as many bytes as they have to exchange, sent
by torch's NCCL; nothing is packed for it. Every method is verified before it is timed. With one GPU
two ranks share it, which takes NCCL 2.30 (`NCCL_MULTI_RANK_GPU_ENABLE`).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import reshard_torch
from benchmarks import report
from benchmarks.machine import ROOT, describe_machine
from benchmarks.results import DeviceRefitResult, DeviceRefitResults, Spread
from reshard import Box, BoxLayout

__all__ = ["main", "measure"]

_LIMIT_S = 500.0
_WARM_UPS = 3
_MOST_RANKS = 8
_TURNS = 20
_ABOUT = {
    "floor": "one dense message per pair of ranks, by torch",
    "ours": "reshard_torch.Redistribution, without fingerprints",
    "gather_broadcast": "all_gather of every full tensor, broadcast, slice",
}


def measure(*, quick: bool, num_ranks: int | None = None) -> DeviceRefitResults:
    """Starts the ranks and collects what they measured.

    Args:
        quick: small tensors, in host memory where there is no GPU.
        num_ranks: an even number; None means one per GPU, and two where there is one.

    Raises:
        RuntimeError: there is no GPU and this is no quick run, or a rank failed.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 and not quick:
        message = "no NVIDIA GPU is visible to PyTorch; --quick runs the code in host memory"
        raise RuntimeError(message)
    size = num_ranks or max(2, min(_MOST_RANKS, count) // 2 * 2)
    environment = dict(os.environ)
    if count == 1:
        environment |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        output = pathlib.Path(folder) / "times.json"
        command = [sys.executable, "-m", "benchmarks.gpu_refit", "--rank"]
        tail = ["--size", str(size), "--port", port, "--output", str(output)]
        tail += ["--quick"] if quick else []
        ranks = [
            subprocess.Popen([*command, str(rank), *tail], cwd=ROOT, env=environment)
            for rank in range(size)
        ]
        try:
            codes = [rank.wait(_LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            message = f"ranks ended with {codes}"
            raise RuntimeError(message)
        found = json.loads(output.read_text())
    methods = [
        DeviceRefitResult(name, about, Spread.of(found["times"][name]))
        for name, about in _ABOUT.items()
    ]
    gpus = f"{count} x {torch.cuda.get_device_name(0)}" if count else "no GPU, in host memory"
    caveat = "" if count else "host memory, gloo and shm: these times say NOTHING about a GPU"
    return DeviceRefitResults(describe_machine(), gpus, caveat, size, found["model_bytes"], methods)


class _Rank:
    """One process: its part of the model, and the ways to move it."""

    def __init__(self, rank: int, size: int, shapes: list[tuple[int, int]]) -> None:
        self.rank, self.half = rank, size // 2
        self.is_source = rank < self.half
        self.place = rank % self.half
        self.shapes = shapes
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(kind)
        if kind == "cuda":
            self.device = torch.device(kind, rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.sources = dist.new_group(list(range(self.half)))
        self.fan_out = dist.new_group([0, *range(self.half, size)])
        self.expected = {i: self._part(self._whole(i)).contiguous() for i in range(len(shapes))}
        self.held = (
            self.expected
            if self.is_source
            else {i: torch.zeros_like(part) for i, part in self.expected.items()}
        )
        pair_bytes = sum(a * b * 2 for a, b in shapes) // self.half**2
        self._messages = [
            torch.zeros(pair_bytes, dtype=torch.uint8, device=self.device) for _ in range(self.half)
        ]
        group = dist.group.WORLD
        assert group is not None
        self._ours = reshard_torch.Redistribution(
            self._declared() if self.is_source else None,
            None if self.is_source else self._declared(),
            group,
            timeout_s=120.0,
        )

    def _whole(self, number: int) -> torch.Tensor:
        made = torch.Generator().manual_seed(number)
        bits = torch.randint(-(2**15), 2**15, self.shapes[number], generator=made)
        return bits.to(torch.int16).view(torch.bfloat16).to(self.device)

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.chunk(self.half, 0 if self.is_source else 1)[self.place]

    def _declared(self) -> dict[str, tuple[torch.Tensor, BoxLayout, tuple[int, int]]]:
        """Returns this rank's tensors with the boxes that all ranks of its side hold."""
        declared = {}
        for number, (rows, columns) in enumerate(self.shapes):
            boxes = {}
            for place in range(self.half):
                if self.is_source:
                    step = rows // self.half
                    boxes[place] = Box((place * step, 0), (step, columns))
                else:
                    step = columns // self.half
                    boxes[self.half + place] = Box((0, place * step), (rows, step))
            layout = BoxLayout(boxes)
            declared[str(number)] = (self.held[number], layout, (rows, columns))
        return declared

    def ours(self) -> None:
        self._ours.run(verify=False)

    def gather_broadcast(self) -> None:
        for number, shape in enumerate(self.shapes):
            full = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
            if self.is_source:
                dist.all_gather_into_tensor(full, self.held[number], group=self.sources)
            if self.rank == 0 or not self.is_source:
                dist.broadcast(full, src=0, group=self.fan_out)
            if not self.is_source:
                self.held[number].copy_(self._part(full))

    def floor(self) -> None:
        first = self.half if self.is_source else 0
        call = dist.isend if self.is_source else dist.irecv
        operations = [
            dist.P2POp(call, message, first + i) for i, message in enumerate(self._messages)
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def verify(self, method: Callable[[], None], name: str) -> None:
        if not self.is_source:
            for part in self.held.values():
                part.zero_()
        method()
        for number, part in self.held.items():
            bits = (part.view(torch.int16), self.expected[number].view(torch.int16))
            if name != "floor" and not torch.equal(*bits):
                message = f"{name}: tensor {number} is wrong on rank {self.rank}"
                raise RuntimeError(message)

    def seconds(self, method: Callable[[], None]) -> float:
        """Returns the time of the slowest rank, from a common start."""
        self._settle()
        begin = time.perf_counter()
        method()
        self._settle(alone=True)
        took = torch.tensor([time.perf_counter() - begin], device=self.device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took.item())

    def _settle(self, *, alone: bool = False) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if not alone:
            dist.barrier()

    def close(self) -> None:
        self._ours.close()


def _run_rank(options: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": options.port}
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(options.rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rank=options.rank, world_size=options.size)
    shapes = [(256, 256)] * 4 if options.quick else [(8192, 8192)] * 8 + [(1024, 1024)] * 200
    rank = _Rank(options.rank, options.size, shapes)
    methods = {name: getattr(rank, name) for name in _ABOUT}
    for name, method in methods.items():
        rank.verify(method, name)
        for _ in range(_WARM_UPS):
            method()
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(3 if options.quick else _TURNS):
        for name, method in methods.items():
            times[name].append(rank.seconds(method))
    if options.rank == 0:
        nbytes = sum(2 * rows * columns for rows, columns in shapes)
        options.output.write_text(json.dumps({"times": times, "model_bytes": nbytes}))
    rank.close()
    dist.destroy_process_group()


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line; with `--rank`, one process of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small, and without a GPU")
    parser.add_argument("--ranks", type=int, help="an even number; otherwise one per GPU")
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "gpu_refit.json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        _run_rank(options)
        return 0
    results = measure(quick=options.quick, num_ranks=options.ranks)
    report.write(results, options.output)
    report.print_device_refits(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
