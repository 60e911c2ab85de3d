"""Programs whose ranks are all in this process: tables in, bytes out, errors with the row named."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from itertools import chain

import numpy as np
import pytest
from helpers.threads import inside_elsewhere

from reshard import _native
from reshard.dtypes import DType
from reshard.errors import PlanError, UnsupportedError

SEND, RECEIVE = 0, 1
BF16, F32 = 10, 11
U8, I64 = 1, 8


def operation(stream, buffer, offset, memory, wire, sizes, strides):
    return [stream, buffer, offset, memory, wire, len(sizes), *sizes, *strides]


def make_program(streams, operations, extents, zeros=(), chunk_bytes=64):
    return _native.Program(
        array("q", chain(*streams)),
        array("q", chain(*operations)),
        array("q", chain(*zeros)),
        array("q", chain(*extents)),
        len(extents),
        chunk_bytes,
    )


def addresses_of(*arrays):
    return array("Q", [item.ctypes.data for item in arrays])


def run(program, *arrays, run_id=1):
    return program.run(None, addresses_of(*arrays), run_id=run_id, timeout_s=5)


def test_moves_a_transposed_box_between_ranks_of_one_process():
    source = np.arange(12 * 7, dtype=np.float32).reshape(12, 7)
    destination = np.zeros((7, 12), np.float32)
    program = make_program(
        [[SEND, 0, 1], [RECEIVE, 0, 1]],
        [
            operation(0, 0, 0, F32, F32, [12, 7], [28, 4]),
            operation(1, 1, 0, F32, F32, [12, 7], [4, 48]),
        ],
        [(0, source.nbytes), (0, destination.nbytes)],
    )
    stats = run(program, source, destination)
    np.testing.assert_array_equal(destination, source.T)
    assert (stats.bytes_local, stats.bytes_sent, stats.bytes_received) == (source.nbytes, 0, 0)
    assert stats.chunks == -(-source.nbytes // 64)


def test_runs_again_with_other_addresses():
    program = make_program(
        [[RECEIVE, 3, 3], [SEND, 3, 3]],
        [operation(1, 0, 8, I64, I64, [3], [8]), operation(0, 1, 0, I64, I64, [3], [-8 + 16])],
        [(0, 32), (0, 24)],
    )
    for run_id in range(3):
        source = np.arange(run_id, run_id + 4)
        destination = np.zeros(3, np.int64)
        run(program, source, destination, run_id=run_id)
        np.testing.assert_array_equal(destination, source[1:])


def test_narrows_on_the_way():
    source = np.array([1.0, 1.00390625, -2.5, 3e38], np.float32)
    destination = np.zeros(4, np.uint16)
    program = make_program(
        [[SEND, 0, 0], [RECEIVE, 0, 0]],
        [
            operation(0, 0, 0, F32, BF16, [4], [4]),
            operation(1, 1, 0, BF16, BF16, [4], [2]),
        ],
        [(0, 16), (0, 8)],
    )
    run(program, source, destination)
    assert destination.tolist() == [0x3F80, 0x3F80, 0xC020, 0x7F62]


def test_fills_padding_with_zeros_every_run():
    buffer = np.full((4, 6), 7, np.uint8)
    program = make_program([], [], [(0, 24)], zeros=[[0, 4, 1, 2, 4, 2, 6, 1]])
    run(program, buffer)
    np.testing.assert_array_equal(buffer[:, 4:], 0)
    np.testing.assert_array_equal(buffer[:, :4], 7)


def test_describe_counts_what_moves():
    program = make_program(
        [[SEND, 0, 0], [RECEIVE, 0, 0], [SEND, 0, 5], [RECEIVE, 6, 0]],
        [
            operation(0, 0, 0, U8, U8, [100], [1]),
            operation(1, 1, 0, U8, U8, [10, 10], [10, 1]),
            operation(2, 0, 0, U8, U8, [65], [1]),
            operation(3, 1, 0, U8, U8, [0, 4], [4, 1]),
        ],
        [(0, 100), (0, 100)],
    )
    info = program.describe()
    assert info.num_streams == 4
    assert info.num_local_streams == 1
    assert info.num_operations == 3
    assert info.num_chunks == 2 + 2
    assert (info.bytes_local, info.bytes_to_send, info.bytes_to_receive) == (100, 65, 0)


ONE_WAY = [[SEND, 0, 1], [RECEIVE, 2, 1]]


@pytest.mark.parametrize(
    ("streams", "operations", "extents", "zeros", "message"),
    [
        ([[2, 0, 1]], [], [], [], "row 0: direction 2"),
        ([[0, -1, 1]], [], [], [], "rank -1"),
        ([[0, 0, 1], [0, 0, 1]], [], [], [], "row 1: .*is in row 0 already"),
        ([[0, 0]], [], [], [], "row 0: 3 more values expected but 2 are left"),
        (ONE_WAY, [[0, 0, 0, U8]], [(0, 1)], [], "row 0: 6 more values"),
        (ONE_WAY, [[2, 0, 0, U8, U8, 0]], [(0, 1)], [], "stream 2 is not in 0..1"),
        (ONE_WAY, [[0, 1, 0, U8, U8, 0]], [(0, 1)], [], "buffer 1 is not in 0..0"),
        (ONE_WAY, [[0, 0, 0, 99, U8, 0]], [(0, 1)], [], "memory dtype code 99"),
        (ONE_WAY, [[0, 0, 0, U8, U8, 17]], [(0, 1)], [], "ndim 17"),
        (ONE_WAY, [[0, 0, 0, U8, U8, 1, -3, 1]], [(0, 1)], [], "size -3 of dim 0 is negative"),
        (ONE_WAY, [[0, 0, 0, U8, U8, 1, 5, 1]], [(0, 4)], [], r"bytes \[0, 5\) of buffer 0"),
        (ONE_WAY, [[0, 0, 0, U8, U8, 1, 5, -1]], [(0, 4)], [], r"bytes \[-4, 1\) of buffer 0"),
        (ONE_WAY, [[0, 0, 0, U8, U8, 2, 2**40, 2**40, 1, 1]], [(0, 4)], [], "2\\^62 bytes"),
        (ONE_WAY, [[0, 0, 0, U8, U8, 1, 2**40, 2**40]], [(0, 4)], [], "does not fit 64 bits"),
        (ONE_WAY, [[1, 0, 0, U8, U8, 1, 4, 0]], [(0, 4)], [], "stride 0"),
        (ONE_WAY, [], [(4, 0)], [], "low 4 is above high 0"),
        ([], [], [(0, 8)], [[0, 0, 3, 1, 3, 3]], r"zeros table, row 0: .*\[0, 9\)"),
        ([], [], [(0, 8)], [[0, 0, 0, 0]], "element size 0"),
        (
            [[SEND, 0, 1], [RECEIVE, 0, 1]],
            [[0, 0, 0, U8, U8, 1, 4, 1], [1, 0, 4, U8, U8, 1, 3, 1]],
            [(0, 8)],
            [],
            "operation 0 sends 4 elements of uint8 but receives 3",
        ),
        (
            [[SEND, 0, 1], [RECEIVE, 0, 1]],
            [[0, 0, 0, U8, U8, 1, 4, 1], [1, 0, 4, F32, F32, 1, 4, 4]],
            [(0, 20)],
            [],
            "operation 0 sends 4 elements of uint8 but receives 4 of float32",
        ),
    ],
)
def test_wrong_tables_are_refused_with_the_row(streams, operations, extents, zeros, message):
    with pytest.raises(PlanError, match=message):
        make_program(streams, operations, extents, zeros)


@pytest.mark.parametrize("memory", list(DType))
def test_casts_are_those_that_planning_knows(memory):
    for wire in DType:
        row = [0, 0, 0, int(memory), int(wire), 0]
        try:
            make_program([[SEND, 0, 1]], [row], [(0, 16)], chunk_bytes=64).close()
        except UnsupportedError:
            assert not memory.can_cast_to(wire), (memory, wire)
        else:
            assert memory.can_cast_to(wire), (memory, wire)


def test_a_cast_that_does_not_exist_is_unsupported():
    with pytest.raises(UnsupportedError, match="no cast from int64 to float32"):
        make_program([[SEND, 0, 1]], [[0, 0, 0, I64, F32, 0]], [(0, 8)])


def test_wrong_runs_are_refused():
    program = make_program([[SEND, 0, 1]], [[0, 0, 0, U8, U8, 0]], [(0, 8)])
    data = np.zeros(8, np.uint8)
    with pytest.raises(PlanError, match="0 buffers given but 1 needed"):
        run(program)
    with pytest.raises(PlanError, match="needs a communicator"):
        run(program, data)
    program.close()
    program.close()
    with pytest.raises(PlanError, match=r"used after close\(\)"):
        run(program, data)


def test_chunk_bytes_has_limits():
    with pytest.raises(PlanError, match="chunk_bytes 15"):
        make_program([], [], [], chunk_bytes=15)


_WITH_LITTLE_ROOM = """
import resource
from array import array
from pathlib import Path
import numpy as np
from reshard import _native

source = np.arange(1 << 22, dtype=np.uint8)
destination = np.zeros_like(source)
row = [1, source.nbytes, 1]
program = _native.Program(
    array("q", [0, 0, 1, 1, 0, 1]),
    array("q", [0, 0, 0, 1, 1, *row, 1, 1, 0, 1, 1, *row]),
    array("q"),
    array("q", [0, source.nbytes, 0, source.nbytes]),
    2,
    1 << 22,
)
addresses = array("Q", [source.ctypes.data, destination.ctypes.data])
pages = int(Path("/proc/self/statm").read_text().split()[0])
room = pages * resource.getpagesize() + (12 << 20)  # a thread takes 8 MiB and more
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (room, before[1]))
program.run(None, addresses, run_id=1, timeout_s=10, num_threads=8)
resource.setrlimit(resource.RLIMIT_AS, before)  # to compare takes memory too
assert (source == destination).all()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_system_that_gives_no_more_threads_is_served_with_those_there():
    """The process was aborted when the second could not start."""
    subprocess.run([sys.executable, "-c", _WITH_LITTLE_ROOM], check=True, timeout=60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX, where it is loaded
def test_a_forked_child_closes_without_the_threads_of_its_parent():
    program = make_program([[SEND, 0, 1]], [[0, 0, 0, U8, U8, 0]], [(0, 8)])
    with inside_elsewhere(program._busy.hold()):
        child = os.fork()
        if child == 0:
            try:
                program.close()
            finally:
                os._exit(1 if sys.exc_info()[0] else 0)
        assert os.waitpid(child, 0)[1] == 0
    program.close()
