"""How long the processor takes to issue one round of 1,000 boxes, on the tests' doubles of GPUs.

What is timed is processor time of the thread that drives a run, for both of its ends: that queues
copies, kernels and groups of messages, and asks whether they are over. The calls that only ask are
taken off, for they depend on how long the bytes take. The doubles' own part of each call is in it.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from array import array

import numpy as np

from benchmarks import report
from benchmarks.gpu_device import Gpu
from benchmarks.gpu_libraries import Libraries, doubles
from benchmarks.gpu_program import Box, dense, join, make_program
from benchmarks.machine import describe_machine
from benchmarks.results import IssueResult, IssueResults, Spread
from benchmarks.targets import judge_issues
from reshard import DType
from reshard._native import Communicator, Program

__all__ = ["CASES", "main", "measure", "time_issue"]

NUM_BOXES = 1000
_PAUSE_S = 200e-6
_BF16 = DType.BFLOAT16

# Small boxes share messages; those of the second kind are large enough for messages of their own.
CASES = {
    "packed, 8 x 16 transposed": Box((8, 16), (2, 16), dense((8, 16), _BF16), _BF16, _BF16),
    "messages of 256 KiB": Box((1 << 17,), (2,), (2,), _BF16, _BF16),
}


def measure(*, quick: bool) -> IssueResults:
    """Measures both kinds of boxes.

    Raises:
        RuntimeError: a byte is wrong, or the doubles complain.
    """
    own = doubles()
    repetitions = 10 if quick else 40
    cases = [_case(name, box, own, repetitions) for name, box in CASES.items()]
    return IssueResults(describe_machine(), cases)


def _case(name: str, box: Box, own: Libraries, repetitions: int) -> IssueResult:
    boxes = [box] * NUM_BOXES
    step = -(-max(box.src_bytes, box.dst_bytes) // 256) * 256
    gpus = [Gpu(own.driver, ordinal) for ordinal in (0, 1)]
    places = [gpu.allocate(step * NUM_BOXES) for gpu in gpus]
    addresses = array("Q", [place + step * i for i in range(NUM_BOXES) for place in places])
    communicator = join([0, 1], own)
    program = make_program(boxes, 0, 1, 1)
    values = np.random.default_rng(1).integers(0, 256, step * NUM_BOXES, np.uint8)
    gpus[0].upload(places[0], values)
    first, times = 0.0, []
    for run in range(1, repetitions + 2):
        seconds, num_messages = time_issue(program, communicator, addresses, run)
        if run == 1:
            first = seconds
        else:
            times.append(seconds)
    arrived = gpus[1].download(places[1], step * NUM_BOXES)
    _check(box, step, values, arrived)
    program.close()
    communicator.close()
    for gpu in gpus:
        gpu.close()
    return IssueResult(name, NUM_BOXES, num_messages, first, Spread.of(times))


def _check(box: Box, step: int, values: np.ndarray, arrived: np.ndarray) -> None:
    strided = [
        np.lib.stride_tricks.as_strided(
            array_.view(np.uint16), (NUM_BOXES, *box.sizes), (step, *strides)
        )
        for array_, strides in ((values, box.src_strides), (arrived, box.dst_strides))
    ]
    if not np.array_equal(strided[0], strided[1]):
        message = "the bytes that arrived are not those that were sent"
        raise RuntimeError(message)


def time_issue(
    program: Program, communicator: Communicator, addresses: array[int], run_id: int
) -> tuple[float, int]:
    """Returns the processor seconds that issuing a run took, and its messages.

    A call that does not get on costs the same every time, and most calls are such: what the median
    call takes is taken off all of them.
    """
    calls = []
    begin = time.thread_time()
    with program.begin(communicator, addresses, run_id=run_id, timeout_s=60.0) as run:
        total = time.thread_time() - begin
        while run.stats is None:
            begin = time.thread_time()
            run.progress(0.0)
            calls.append(time.thread_time() - begin)
            time.sleep(_PAUSE_S)
        stats = run.stats
    return total + sum(calls) - len(calls) * statistics.median(calls), stats.chunks


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS / "gpu_issue.json")
    options = parser.parse_args(arguments)
    results = measure(quick=options.quick)
    report.write(results, options.output)
    report.print_issues(results)
    report.print_verdicts(judge_issues(results.cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
