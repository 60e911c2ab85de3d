"""How long JAX arrays take to other shardings: ours beside `jax.device_put`, and beside one copy.

In one process of eight devices both can do it. Between processes JAX refuses, so only the limit is
there to compare with: each receiving process copies as many bytes, from memory to memory that is
there, with as many threads as ours. Each result is checked element by element before it is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pathlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.machine import describe_machine
from benchmarks.results import MoveResult, MoveResults, Spread
from benchmarks.targets import judge_moves
from benchmarks.team import Team, free_port

__all__ = ["main", "measure"]

_ROWS = 4096  # of each array, and columns; 64 MiB in float32
_NUM_IN_JOB = 3
_LIMIT_S = 300.0


def measure(*, quick: bool) -> MoveResults:
    """Measures both cases.

    Raises:
        TeamError: a process failed, an element is wrong, or JAX did what it is said to refuse.
    """
    arrays, repetitions = (2, 2) if quick else (16, 7)
    cases = []
    for about, num_processes in (("one process", 1), ("between processes", _NUM_IN_JOB)):
        report.progress(f"{about}: {arrays} arrays of 64 MiB")
        with Team(JaxWorker, num_processes, num_processes, free_port(), arrays) as team:
            refusals = team.call("check", timeout_s=_LIMIT_S)
            rounds = [team.call("time_all", timeout_s=_LIMIT_S) for _ in range(repetitions)]
        cases += _results(about, arrays, refusals[0], rounds)
    return MoveResults(describe_machine(), cases)


def _results(
    about: str, arrays: int, refusal: str, rounds: list[list[dict[str, float]]]
) -> list[MoveResult]:
    nbytes = arrays * _ROWS * _ROWS * 4
    methods = rounds[0][0]
    # The slowest process counts.
    seconds = {
        method: Spread.of([max(each[method] for each in turn) for turn in rounds])
        for method in methods
    }
    return [MoveResult(about, method, nbytes, times, refusal) for method, times in seconds.items()]


class JaxWorker:
    """One process of a JAX job: its devices hold a part of each array.

    Args:
        process, num_processes: of the job; one alone has eight devices, three have two each.
        port: of the coordinator.
        arrays: how many are moved.
    """

    def __init__(self, process: int, num_processes: int, port: int, arrays: int) -> None:
        jax: Any = importlib.import_module("jax")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 8 if num_processes == 1 else 2)
        if num_processes > 1:
            jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process)
        import reshard_jax

        self._jax = jax
        devices = np.array(jax.devices())
        mesh, place, spec = (
            jax.sharding.Mesh,
            jax.sharding.NamedSharding,
            jax.sharding.PartitionSpec,
        )
        if num_processes == 1:
            src = place(mesh(devices.reshape(4, 2), ("x", "y")), spec("x", "y"))
            dst = place(mesh(devices[::-1].reshape(2, 4), ("a", "b")), spec("b", "a"))
        else:
            src = place(mesh(devices[:4], ("x",)), spec("x"))
            dst = place(mesh(devices[:3:-1], ("a",)), spec(None, "a"))
        self._dst = dst
        self._tree = {f"w{i}": self._array(i, src) for i in range(arrays)}
        self._plan = reshard_jax.Redistribution(self._tree, dst)
        self._is_alone = num_processes == 1
        self._copies = self._memory_to_copy()
        self._pool = ThreadPoolExecutor(2)

    def _array(self, number: int, sharding: Any) -> Any:  # noqa: ANN401 - jax is imported late
        def part(index: tuple[slice, ...]) -> np.ndarray:
            return _values(number, *index)

        shape = (_ROWS, _ROWS)
        return self._jax.make_array_from_callback(shape, sharding, part, dtype=np.float32)

    def _memory_to_copy(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns pairs of arrays as large as what this process receives of each array."""
        local = self._dst.addressable_devices_indices_map((_ROWS, _ROWS))
        nbytes = sum(len(range(*index[1].indices(_ROWS))) for index in local.values()) * _ROWS * 4
        return [(np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)) for _ in self._tree]

    def check(self) -> str:
        """Checks every element of a move, and that JAX refuses it; returns its words."""
        moved = self._plan.run(self._tree)
        for number, array in enumerate(moved.values()):
            for shard in array.addressable_shards:
                if not np.array_equal(shard.data, _values(number, *shard.index)):
                    message = f"array {number}, {shard.index}: wrong values arrived"
                    raise RuntimeError(message)
        if self._is_alone:
            return ""
        try:
            self._jax.device_put(self._tree, self._dst)
        except (ValueError, NotImplementedError) as error:
            return f"{type(error).__name__}: {error}"
        message = "jax.device_put moved arrays between processes, which it is said to refuse"
        raise RuntimeError(message)

    def time_all(self) -> dict[str, float]:
        """Returns the seconds of each method, one after the other."""
        seconds = {
            "one_copy": self._time(self._copy),
            "one_copy, new memory": self._time(self._copy_to_new),
        }
        if self._is_alone:
            seconds["jax.device_put"] = self._time(self._put)
        seconds["ours"] = self._time(lambda: self._plan.run(self._tree, verify=False))
        seconds["ours_verified"] = self._time(lambda: self._plan.run(self._tree))
        return seconds

    def _time(self, method: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        self._jax.block_until_ready(method())
        return time.perf_counter() - begin

    def _put(self) -> Any:  # noqa: ANN401 - a tree
        return self._jax.device_put(self._tree, dict.fromkeys(self._tree, self._dst))

    def _copy(self) -> list[None]:
        return list(self._pool.map(lambda pair: np.copyto(*pair), self._copies))

    def _copy_to_new(self) -> list[np.ndarray]:
        """What is received is new memory, so this is the limit of all that JAX can do."""
        return list(self._pool.map(lambda pair: pair[0].copy(), self._copies))

    def close(self) -> None:
        """Closes the plan and leaves the job."""
        self._pool.shutdown()
        self._plan.close()
        with contextlib.suppress(RuntimeError):  # there is none in one process
            self._jax.distributed.shutdown()


def _values(number: int, rows: slice, columns: slice) -> np.ndarray:
    """Returns a part of an array, whose elements are all different and exact in float32."""
    row = np.arange(*rows.indices(_ROWS), dtype=np.int64)[:, None]
    column = np.arange(*columns.indices(_ROWS), dtype=np.int64)
    return ((row * _ROWS + column) ^ (number * 0x10_0001)).astype(np.uint32).view(np.float32)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="128 MiB, twice")
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "jax_moves.json")
    options = parser.parse_args(arguments)
    results = measure(quick=options.quick)
    report.write(results, options.output)
    report.print_moves(results)
    report.print_verdicts(judge_moves(results.moves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
