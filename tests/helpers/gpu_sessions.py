"""Random sides through whole sessions over NCCL, in one process: what `test_gpu_sessions` runs.

Every rank has a GPU of its own, played by the doubles. It is a process apart because the doubles
stay open in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.full_doubles import Controls, FullDoubles, full_doubles
from helpers.random_sessions import MAX_MEMBERS, Places, check_versions
from helpers.sides import Arrays
from helpers.strategies import Problem, problems, seeded
from helpers.team import Desk

__all__ = ["run_random_sessions"]


@dataclass(frozen=True)
class _GpuPlaces(Places):
    doubles: Controls | None = None

    @contextmanager
    def hold(self, *sides: Arrays) -> Iterator[None]:
        """Makes the memory of arrays, with all that lies around them, that of their ranks' GPUs."""
        assert self.doubles is not None
        registered = []
        for arrays in sides:
            for rank, by_name in arrays.items():
                for array in by_name.values():
                    base: Any = array
                    while isinstance(base.base, np.ndarray):
                        base = base.base
                    if base.nbytes:
                        self.doubles.register(base.ctypes.data, base.nbytes, rank)
                        registered.append(base.ctypes.data)
        try:
            yield
        finally:
            for address in registered:
                self.doubles.unregister(address)


def run_random_sessions(desk: Desk, max_examples: int) -> None:
    """Runs as many random problems; raises what is wrong with one, made as small as can be."""
    pair: FullDoubles = full_doubles()
    os.environ["RESHARD_CUDA_LIBRARY"] = str(pair.cuda)
    os.environ["RESHARD_NCCL_LIBRARY"] = str(pair.nccl)
    doubles = Controls(pair)

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        problems(),
        seeded(),
        st.integers(1, MAX_MEMBERS),
        st.integers(1, 3),
        st.sampled_from((200_000, 64 << 20)),
    )
    def check(
        problem: Problem, random: Random, num_members: int, num_hosts: int, staging_bytes: int
    ) -> None:
        places = _GpuPlaces(on_gpus=True, num_hosts=num_hosts, doubles=doubles)
        check_versions(threads, problem, random, num_members, staging_bytes, places)
        assert doubles.violations() == "", doubles.violations()
        for name in ("allocations", "streams", "events", "modules", "contexts"):
            assert doubles.cuda(name) == 0, name

    with ThreadPoolExecutor(MAX_MEMBERS) as threads:
        check()
