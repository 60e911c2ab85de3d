"""What one process of the refit benchmark does: hold the shards, run methods, measure, check."""

from __future__ import annotations

import dataclasses
import gc
import pathlib
import resource
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from benchmarks import memory, patterns
from benchmarks.layout_pairs import LAYOUT_PAIRS, Side
from benchmarks.methods.method import Groups, Method, RankCase, make_groups
from benchmarks.methods.registry import METHODS
from benchmarks.regions import Region, region_of
from benchmarks.workloads import WORKLOADS, Parameter

__all__ = ["RankRound", "RefitWorker"]

_SAMPLES_PER_PARAMETER = 8


@dataclasses.dataclass(frozen=True)
class RankRound:
    """One refit as one rank saw it; times are CLOCK_MONOTONIC."""

    started: float
    ended: float
    cpu_s: float
    memory_before: memory.Memory
    memory_after: memory.Memory


class RefitWorker:
    """One rank. Its public methods are the controller's commands."""

    def __init__(self, process: int, num_sources: int, num_processes: int, folder: str) -> None:
        torch.set_num_threads(1)
        _ignore_known_warnings()
        gc.freeze()  # what torch's modules are made of need not be searched at every settling
        self._process = process
        self._folder = pathlib.Path(folder)
        self._num_sources = num_sources
        self._groups: Groups = make_groups(process, num_sources, num_processes, self._folder)
        self._meshes: dict[tuple[bool, tuple[int, ...]], DeviceMesh] = {}
        self._case: RankCase | None = None
        self._methods: dict[str, Method] = {}
        self._version = 0
        self._samples: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def close(self) -> None:
        """Leaves the process groups."""
        self.close_case()
        for method in METHODS.values():
            method.leave()
        dist.destroy_process_group()

    # The case: tensors and their contents.

    def open_case(self, workload_name: str, pair_name: str) -> None:
        """Allocates this rank's shards and touches all of their pages."""
        workload, pair = WORKLOADS[workload_name], LAYOUT_PAIRS[pair_name]
        meshes = self._mesh(True, pair.source), self._mesh(False, pair.destination)
        is_source = self._process < self._num_sources
        side = pair.source if is_source else pair.destination
        rank = self._process if is_source else self._process - self._num_sources
        tensors = {
            parameter.name: torch.zeros(
                region_of(side, parameter.shape, rank).shape, dtype=torch.bfloat16
            ).fill_(1.0)
            for parameter in workload.parameters
        }
        folder = self._folder / f"{workload_name}-{pair_name}"
        folder.mkdir(exist_ok=True)
        self._case = RankCase(self._process, workload, pair, tensors, folder, self._groups, meshes)
        # A trainer and an engine hold them anyway; making the first one loads a part of torch.
        _ = self._case.dtensors
        self._samples = self._choose_samples()

    def close_case(self) -> None:
        """Forgets the tensors; methods must have been torn down."""
        self._case = None
        self._samples.clear()
        self._methods.clear()
        memory.settle()

    def set_version(self, version: int) -> None:
        """Fills the source shards with the pattern of a version; the destination expects it."""
        self._version = version
        if self.case.is_source:
            for parameter in self.case.workload.parameters:
                seed = patterns.seed_of(parameter.name, version)
                region = self.case.region(parameter)
                patterns.fill(self._bits(parameter), region, parameter.shape, seed)
        for method in self._methods.values():
            method.source_changed()
        memory.settle()

    def check(self) -> list[str]:
        """Compares every bit of the destination shards; returns what is wrong."""
        if self.case.is_source:
            return []
        complaints = []
        for parameter in self.case.workload.parameters:
            wrong = self._check(parameter, self.case.region(parameter))
            if wrong is not None:
                complaints.append(f"destination rank {self.case.rank}, {parameter.name}: {wrong}")
        return complaints

    def negative_control(self) -> list[str]:
        """Damages right destination shards in five ways; returns those that `check` overlooks."""
        if self.case.is_source:
            return []
        overlooked = []
        largest_first = sorted(self.case.workload.parameters, key=lambda p: -p.nbytes)
        for parameter in largest_first[:2]:
            bits, region = self._bits(parameter), self.case.region(parameter)
            good = bits.copy()
            for damage, bad in _damaged(good).items():
                bits[...] = bad
                if self._check(parameter, region) is None:
                    overlooked.append(f"{parameter.name}: {damage}")
            self._version -= 1
            bits[...] = good
            if self._check(parameter, region) is None:
                overlooked.append(f"{parameter.name}: stale version")
            self._version += 1
        return overlooked

    # Methods.

    def unavailable(self, method: str) -> str | None:
        """Returns why a method cannot run here, or None."""
        return METHODS[method].unavailable()

    def set_up(self, method: str) -> tuple[memory.Memory, memory.Memory]:
        """Sets a method up; returns the memory against which it is judged and that after it."""
        memory.settle()
        memory.reset_peak()
        before = memory.read_memory()
        self._methods[method] = METHODS[method](self.case)
        self._methods[method].set_up()
        if not METHODS[method].counts_set_up_memory:
            memory.reset_peak()
            before = memory.read_memory()
        return before, memory.read_memory()

    def refit(self, method: str, start_at: float, count: int) -> RankRound:
        """Refits `count` times, one after the other, from the common instant `start_at` on."""
        chosen = self._methods[method]
        memory.reset_peak()
        before = memory.read_memory()
        cpu_before = _cpu_seconds()
        time.sleep(max(0.0, start_at - time.monotonic()))
        started = time.monotonic()
        for _ in range(count):
            chosen.refit(self._version)
        ended = time.monotonic()
        cpu_s = _cpu_seconds() - cpu_before
        return RankRound(started, ended, cpu_s, before, memory.read_memory())

    def note(self, method: str) -> str:
        """Returns what a method says about its last refit."""
        return self._methods[method].note()

    def settled_memory(self) -> memory.Memory:
        """Returns the memory after everything that is free was given back."""
        memory.settle()
        return memory.read_memory()

    def tear_down(self, method: str) -> None:
        """Releases what the method holds."""
        self._methods.pop(method).tear_down()

    def outside_bytes(self, method: str) -> int:
        """Returns what a method holds in files in shared memory and in processes of its own."""
        return self._methods[method].outside_bytes()

    # A cheap check of every timed round: spoil a sample of the elements, look at it afterwards.

    def spoil_samples(self) -> None:
        """Inverts a sample of the destination's elements."""
        for parameter in self._sampled():
            positions, _ = self._samples[parameter.name]
            flat = self._bits(parameter).reshape(-1)
            flat[positions] = ~flat[positions]

    def check_samples(self) -> list[str]:
        """Returns the parameters whose sample does not have the expected bits again."""
        wrong = []
        for parameter in self._sampled():
            positions, indices = self._samples[parameter.name]
            seed = patterns.seed_of(parameter.name, self._version)
            flat = self._bits(parameter).reshape(-1)
            expected = patterns.values_at(indices, seed, flat.itemsize)
            if not np.array_equal(flat[positions], expected):
                wrong.append(f"destination rank {self.case.rank}, {parameter.name}: sample")
        return wrong

    @property
    def case(self) -> RankCase:
        """The open case."""
        if self._case is None:
            message = "no case is open"
            raise RuntimeError(message)
        return self._case

    def _sampled(self) -> tuple[Parameter, ...]:
        return () if self.case.is_source else self.case.workload.parameters

    def _choose_samples(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns per parameter: positions in the flat shard, row-major indices in the tensor."""
        random = np.random.default_rng(self._process)
        samples = {}
        for parameter in self._sampled():
            region = self.case.region(parameter)
            positions = random.integers(0, region.num_elements, _SAMPLES_PER_PARAMETER)
            positions = np.unique(positions)
            within = np.unravel_index(positions, region.shape)
            everywhere = tuple(w + o for w, o in zip(within, region.offset, strict=True))
            indices = np.ravel_multi_index(everywhere, parameter.shape).astype(np.uint64)
            samples[parameter.name] = (positions, indices)
        return samples

    def _bits(self, parameter: Parameter) -> np.ndarray:
        return self.case.tensors[parameter.name].view(torch.int16).numpy().view(np.uint16)

    def _check(self, parameter: Parameter, region: Region) -> patterns.Mismatch | None:
        seed = patterns.seed_of(parameter.name, self._version)
        return patterns.check(self._bits(parameter), region, parameter.shape, seed)

    def _mesh(self, is_source: bool, side: Side) -> DeviceMesh:
        """Returns the device mesh of a side; making one is collective over all processes."""
        key = (is_source, side.mesh_shape)
        if key not in self._meshes:
            first = 0 if is_source else self._num_sources
            ranks = torch.arange(first, first + side.num_ranks).reshape(side.mesh_shape)
            self._meshes[key] = DeviceMesh("cpu", ranks)
        return self._meshes[key]


def _damaged(good: np.ndarray) -> dict[str, np.ndarray]:
    """Returns a correct shard damaged in several ways, each by name."""
    half = len(good) // 2
    bit = good.copy()
    bit.reshape(-1)[-1] ^= 1
    return {
        "last bit of the last element": bit,
        "halves swapped": np.concatenate([good[half:], good[:half]]),
        "rows rotated": np.roll(good, 1, axis=0),
        "columns rotated": np.roll(good, 1, axis=1),
    }


def _ignore_known_warnings() -> None:
    """Silences what torch says about calls that are made on purpose."""
    # Its successor all_gather_single is missing from older torch.
    warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_tensor`", FutureWarning)
    warnings.filterwarnings("ignore", "Detected an existing checkpoint", UserWarning)


def _cpu_seconds() -> float:
    """Returns the processor time of this process and of all that it has started."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + memory.descendants_cpu_seconds()
