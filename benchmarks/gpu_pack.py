"""How fast the kernels pack and unpack beside a copy inside of the device, on one GPU.

One rank hands boxes to itself, so that one kernel does all of it: *pack* reads strided memory and
writes dense memory, *unpack* the other way round. Times are those of a whole run; for the ratio,
what a run (or a copy) of a few bytes takes, to issue it and to notice its end, is taken off. Bytes
are those read plus those written, for the copy as well.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from array import array
from collections.abc import Callable

import numpy as np

from benchmarks import report
from benchmarks.gpu_device import Bytes, Gpu
from benchmarks.gpu_libraries import libraries
from benchmarks.gpu_program import Box, dense, join, make_program
from benchmarks.machine import describe_machine
from benchmarks.results import DevicePackResult, DevicePackResults, Spread
from benchmarks.targets import judge_device_packs
from reshard import DType
from reshard._native import Communicator, Program

__all__ = ["boxes_of", "main", "measure"]

_BF16, _F32 = DType.BFLOAT16, DType.FLOAT32
_TARGET = 0.8
_WARM_UPS = 5
_ALIGNMENT = 256


def boxes_of(edge: int) -> dict[str, tuple[Box, float]]:
    """Returns one box of each kind with its target; 0 where there is none.

    Args:
        edge: of the matrices, 4096 where it counts.
    """
    cells = edge * edge
    whole = Box((cells,), (2,), (2,), _BF16, _BF16)
    found = {"contiguous": (whole, 0.0)}
    for row_bytes in (64 << 10, 4 << 10, 512):
        sizes = (max(1, 2 * cells // row_bytes), row_bytes // 2)
        box = Box(sizes, (2 * row_bytes, 2), dense(sizes, _BF16), _BF16, _BF16)
        name = f"rows of {row_bytes >> 10} KiB" if row_bytes >= 1024 else f"rows of {row_bytes} B"
        found[name] = (box, _TARGET)
    square = (edge, edge)
    turned = Box(square, (2, 2 * edge), dense(square, _BF16), _BF16, _BF16)
    found[f"bf16 transpose {edge} x {edge}"] = (turned, _TARGET)
    cast = Box(square, dense(square, _F32), dense(square, _BF16), _F32, _BF16)
    found["float32 to bf16"] = (cast, 0.0)
    return found


def reversed_box(box: Box) -> Box:
    """Returns the same with source and destination exchanged."""
    return Box(box.sizes, box.dst_strides, box.src_strides, box.dst_dtype, box.src_dtype)


def measure(*, quick: bool) -> DevicePackResults:
    """Verifies and measures every kind of box.

    Raises:
        RuntimeError: there is no GPU, or a byte is wrong.
    """
    own = libraries(quick=quick)
    edge, copies, repetitions = (256, 2, 3) if quick else (4096, 64, 30)
    results = []
    with Gpu(own.driver) as gpu, join([0], own) as communicator:
        tiny = _Case(gpu, communicator, Box((8, 8), (2, 16), (16, 2), _BF16, _BF16), 1)
        constant = [spread.median for spread in tiny.times(repetitions)]
        tiny.close()
        for name, (box, target) in boxes_of(edge).items():
            report.progress(f"  {name}")
            is_cast = box.src_dtype != box.dst_dtype
            for way, each in (("pack", box), ("unpack", reversed_box(box))):
                if way == "unpack" and is_cast:
                    continue  # it would widen, and a cast is made by the sender
                case = _Case(gpu, communicator, each, copies)
                results.append(case.measure(f"{way}, {name}", target, repetitions, constant))
                case.close()
        name = gpu.name
    return DevicePackResults(describe_machine(), name, own.caveat, results)


class _Case:
    """Boxes of one kind in device memory, and the same bytes on the host."""

    def __init__(self, gpu: Gpu, communicator: Communicator, box: Box, copies: int) -> None:
        self._gpu, self._communicator, self._box = gpu, communicator, box
        self._boxes = [box] * copies
        self._steps = [n + -n % _ALIGNMENT for n in (box.src_bytes, box.dst_bytes)]
        self._places = [gpu.allocate(step * copies) for step in self._steps]
        self._program: Program = make_program(self._boxes, 0, 0, 1)
        self._run_id = 0

    def _addresses(self, places: list[int]) -> array[int]:
        numbers = range(len(self._boxes))
        return array(
            "Q", [p + i * s for i in numbers for p, s in zip(places, self._steps, strict=True)]
        )

    def measure(
        self, name: str, target: float, repetitions: int, constant: list[float]
    ) -> DevicePackResult:
        self._verify()
        elements = self._box.num_elements * len(self._boxes)
        nbytes = elements * (self._box.src_dtype.itemsize + self._box.dst_dtype.itemsize)
        ours, theirs = self.times(repetitions)
        net = [
            max(spread.median - part, spread.median / 10)
            for spread, part in zip((ours, theirs), constant, strict=True)
        ]
        ratio = (nbytes / net[0]) / (2 * self._copied / net[1])
        return DevicePackResult(name, ratio, target, nbytes, ours, theirs)

    @property
    def _copied(self) -> int:
        return min(self._steps) * len(self._boxes)

    def times(self, repetitions: int) -> tuple[Spread, Spread]:
        """Returns the seconds of a run, and of a copy of about as many bytes."""

        def copy() -> None:
            self._gpu.copy(self._places[1], self._places[0], self._copied)
            self._gpu.wait()

        return _timed(self._run, repetitions), _timed(copy, repetitions)

    def _run(self) -> None:
        self._run_id += 1
        addresses = self._addresses(self._places)
        self._program.run(self._communicator, addresses, run_id=self._run_id, timeout_s=60.0)

    def _verify(self) -> None:
        count = len(self._boxes)
        values = np.random.default_rng(1).integers(0, 256, self._steps[0] * count, np.uint8)
        expected: Bytes = np.zeros(self._steps[1] * count, np.uint8)
        self._gpu.upload(self._places[0], values)
        self._gpu.upload(self._places[1], expected)
        self._run()
        host = make_program(self._boxes, 0, 0, 0)
        addresses = self._addresses([values.ctypes.data, expected.ctypes.data])
        host.run(None, addresses, run_id=1, timeout_s=60.0)
        host.close()
        if not np.array_equal(self._gpu.download(self._places[1], expected.nbytes), expected):
            message = f"the GPU and the host do not agree on {self._box}"
            raise RuntimeError(message)

    def close(self) -> None:
        self._program.close()
        for place in self._places:
            self._gpu.free(place)


def _timed(action: Callable[[], None], repetitions: int) -> Spread:
    for _ in range(_WARM_UPS):
        action()
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return Spread.of(times)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small, and on doubles without a GPU")
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "gpu_pack.json")
    options = parser.parse_args(arguments)
    results = measure(quick=options.quick)
    report.write(results, options.output)
    report.print_device_packs(results)
    if not results.caveat:
        report.print_verdicts(judge_device_packs(results.packs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
