"""What one process does with GPUs in tests, below plans: functions for `ranks.run_on_processes`.

They run on NVIDIA's libraries and on the doubles alike; `own` says which.
"""

from __future__ import annotations

import random
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu_device import Bytes, Gpu
from benchmarks.gpu_libraries import Libraries
from benchmarks.gpu_program import Box, dense, join, make_program
from helpers.full_doubles import Controls, FullDoubles
from reshard import DType
from reshard._native import fingerprints

__all__ = ["Costs", "cost_of_rounds", "memory_taken", "moves_like_the_host", "order_is_kept"]

_SAME = (DType.UINT8, DType.BFLOAT16, DType.FLOAT32, DType.INT64, DType.COMPLEX128)
_CASTS = (
    (DType.FLOAT32, DType.BFLOAT16),
    (DType.FLOAT32, DType.FLOAT16),
    (DType.FLOAT32, DType.FLOAT8_E4M3FN),
    (DType.BFLOAT16, DType.FLOAT8_E4M3FN),
    (DType.FLOAT16, DType.FLOAT8_E5M2),
    (DType.FLOAT64, DType.FLOAT32),
)
_GAP = 0x5A  # what is between the elements of a destination
_ALIGNMENT = 256


def random_box(draw: random.Random, most: int) -> Box:
    """Returns a box of up to `most` elements whose dims lie anyhow in memory, with gaps."""
    sizes: list[int] = []
    left = most
    for _ in range(draw.randint(1, 4)):
        sizes.append(draw.randint(1, max(1, min(left, draw.choice((3, 40, 700))))))
        left //= sizes[-1]
    src = dst = draw.choice(_SAME)
    if draw.random() < 0.4:
        src, dst = draw.choice(_CASTS)
    return Box(tuple(sizes), _strides(draw, sizes, src), _strides(draw, sizes, dst), src, dst)


def _strides(draw: random.Random, sizes: list[int], dtype: DType) -> tuple[int, ...]:
    order = list(range(len(sizes)))
    if draw.random() < 0.5:
        draw.shuffle(order)
    strides, step = [0] * len(sizes), dtype.itemsize
    for dim in reversed(order):
        strides[dim] = step
        step *= sizes[dim] + draw.choice((0, 0, 1, 3))
    return tuple(strides)


class Arrays:
    """Memory of the sources and destinations of boxes, each at a place of its own."""

    def __init__(self, boxes: list[Box], draw: random.Random) -> None:
        self.places: list[int] = []  # of source and destination, in turn
        self.nbytes = 0
        for box in boxes:
            for size, dtype in ((box.src_bytes, box.src_dtype), (box.dst_bytes, box.dst_dtype)):
                # Elements lie at multiples of their size, and arrays at nothing more.
                self.places.append(self.nbytes + draw.randint(0, 15) * dtype.itemsize)
                self.nbytes = self.places[-1] + size
                self.nbytes += -self.nbytes % _ALIGNMENT

    def addresses(self, base: int) -> array[int]:
        return array("Q", [base + place for place in self.places])


def moves_like_the_host(
    process: int, num_processes: int, own: Libraries, seed: int, count: int, most: int
) -> int:
    """Moves random boxes on a GPU and by the host's packing: all bytes agree, gaps too.

    Returns:
        How many bytes were compared.
    """
    draw = random.Random(seed)
    boxes = [random_box(draw, most) for _ in range(count)]
    arrays = Arrays(boxes, draw)
    values = np.random.default_rng(seed).integers(0, 256, arrays.nbytes, np.uint8)
    for box, place in zip(boxes, arrays.places[1::2], strict=True):
        values[place : place + box.dst_bytes] = _GAP
    expected = values.copy()
    host = make_program(boxes, 0, 0, 0)
    host.run(None, arrays.addresses(expected.ctypes.data), run_id=1, timeout_s=60.0)
    with Gpu(own.driver) as gpu, join([0], own) as communicator:
        base = gpu.allocate(arrays.nbytes)
        for num_rounds in (1, 5):
            gpu.upload(base, values)
            program = make_program(boxes, 0, 0, num_rounds)
            addresses = arrays.addresses(base)
            program.run(communicator, addresses, run_id=num_rounds, timeout_s=60.0)
            _compare(boxes, arrays, gpu.download(base, arrays.nbytes), expected)
            program.close()
    return arrays.nbytes


def _compare(boxes: list[Box], arrays: Arrays, found: Bytes, expected: Bytes) -> None:
    if np.array_equal(found, expected):
        return
    first = int(np.flatnonzero(found != expected)[0])
    number = max(i for i, place in enumerate(arrays.places) if place <= first)
    at = first - arrays.places[number]
    raise AssertionError(
        f"byte {at} of array {number % 2} of {boxes[number // 2]} is {found[first]}, "
        f"the host says {expected[first]}"
    )


def order_is_kept(process: int, num_processes: int, own: Libraries, nbytes: int) -> None:
    """What the caller queued on its stream before a run is done first, however long it takes."""
    box = Box((nbytes // 4, 2), (2, nbytes // 2), dense((nbytes // 4, 2), _BF16), _BF16, _BF16)
    old, new = (np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8) for seed in (1, 2))
    with Gpu(own.driver) as gpu, join([0], own) as communicator:
        stream = gpu.stream()
        src, dst, kept = (gpu.allocate(nbytes) for _ in range(3))
        program = make_program([box], 0, 0, 2)
        for run_id in range(1, 6):
            gpu.upload(src, old)
            gpu.upload(kept, new)
            for _ in range(20):  # far longer than it takes to begin the run
                gpu.copy(dst, kept, nbytes, stream)
            gpu.copy(src, kept, nbytes, stream)
            addresses = array("Q", [src, dst])
            program.run(communicator, addresses, run_id=run_id, timeout_s=60.0, streams=[stream])
            found = gpu.download(dst, nbytes).view(np.uint16).reshape(-1, 2).T
            np.testing.assert_array_equal(found, new.view(np.uint16).reshape(2, -1))
        program.close()


_BF16 = DType.BFLOAT16


def memory_taken(process: int, num_processes: int, own: Libraries, size: int) -> tuple[int, int]:
    """Returns (device memory that a run takes and keeps, staging memory of its program)."""
    box = Box((size, size), (2, 2 * size + 2), (2 * size + 4, 2), _BF16, _BF16)
    small = Box((2, 2), (2, 4), (4, 2), _BF16, _BF16)
    with Gpu(own.driver) as gpu, join([0], own) as communicator:
        src, dst = gpu.allocate(box.src_bytes), gpu.allocate(box.dst_bytes)
        addresses = array("Q", [src, dst])
        warm = make_program([small], 0, 0, 1)  # the module, and what CUDA and NCCL take by then
        warm.run(communicator, addresses, run_id=1, timeout_s=60.0)
        warm.close()
        before = gpu.used_bytes()
        program = make_program([box], 0, 0, 4)
        for run_id in (2, 3):
            program.run(communicator, addresses, run_id=run_id, timeout_s=60.0)
        taken = gpu.used_bytes() - before
        staging = program.describe_rounds([0]).staging_bytes
        program.close()
    return taken, staging


class Costs(NamedTuple):
    """Launches of kernels in one run, of all ranks; device memory of each, and staging of one."""

    launches: int
    peak_bytes: list[int]
    staging_bytes: int


def cost_of_rounds(
    process: int, num_processes: int, own: Libraries, num_tensors: int, num_rounds: int, ranks: int
) -> Costs:
    """Counts what ranks need to hand small tensors over, with fingerprints; doubles only.

    Args:
        num_tensors: of a model, each of 8 x 16 elements that are transposed on the way.
        num_rounds: of a run.
        ranks: 2, or 1 for a rank that has both ends.
    """
    assert own.nccl is not None
    controls = Controls(FullDoubles(Path(own.driver), Path(own.nccl)))
    shape = (8, 16)
    box = Box(shape, (2, 16), dense(shape, _BF16), _BF16, _BF16)
    if ranks == 1:
        box = Box(shape, (2, 18), (34, 2), _BF16, _BF16)  # neither end is one run
    arrays = Arrays([box] * num_tensors, random.Random(1))
    values = np.random.default_rng(1).integers(0, 256, arrays.nbytes, np.uint8)
    with ExitStack() as stack:
        gpus = [stack.enter_context(Gpu(own.driver, rank)) for rank in range(ranks)]
        bases = [gpu.allocate(arrays.nbytes) for gpu in gpus]
        gpus[0].upload(bases[0], values)
        ends = [arrays.addresses(base) for base in (bases[0], bases[-1])]
        addresses = array("Q", [ends[i % 2][i] for i in range(2 * num_tensors)])
        communicator = stack.enter_context(join(range(ranks), own))
        program = make_program([box] * num_tensors, 0, ranks - 1, num_rounds)
        stack.callback(program.close)
        before = [gpu.used_bytes() for gpu in gpus]
        program.run(communicator, addresses, run_id=1, timeout_s=60.0)
        rows = _regions(box, num_tensors)
        sums = fingerprints(rows, addresses, 2 * num_tensors, communicator)
        assert sums[0::2] == sums[1::2]
        assert (
            sums[0::2]
            == fingerprints(rows, arrays.addresses(values.ctypes.data), 2 * num_tensors)[0::2]
        )
        launches = controls.cuda("launches")
        program.run(communicator, addresses, run_id=2, timeout_s=60.0)
        launches = controls.cuda("launches") - launches
        peaks = [controls.cuda("peak_bytes", gpu.ordinal) for gpu in gpus]
        staging = program.describe_rounds(range(ranks)).staging_bytes
    assert controls.violations() == ""
    return Costs(launches, [peak - n for peak, n in zip(peaks, before, strict=True)], staging)


def _regions(box: Box, num_tensors: int) -> array[int]:
    """Returns the rows of fingerprints of both ends of every box, each with a sum of its own."""
    rows = array("q")
    for buffer in range(2 * num_tensors):
        strides = box.dst_strides if buffer % 2 else box.src_strides
        rows.extend([buffer, buffer, 0, int(_BF16), int(_BF16), -1, buffer // 2, len(box.sizes)])
        rows.extend([*box.sizes, *strides, *dense(box.sizes, DType.UINT8), 0])
    return rows
