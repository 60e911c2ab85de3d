"""Programs of native code with boxes of one's own, run on GPUs of one process, or on its host.

Below plans and control messages: what is measured here is what native code does in every refit.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.gpu_libraries import Libraries
from reshard import DType, UnsupportedError
from reshard._native import Communicator, Program
from reshard._native_communicator import GpuRank
from reshard._native_libraries import CudaLibrary, NcclLibrary
from reshard.device_kernels import kernel_image
from reshard.nccl_copies import find_nccl

__all__ = ["Box", "dense", "extent", "join", "make_program"]

_SEND, _RECEIVE = 0, 1


class Box(NamedTuple):
    """A box that moves from an array of its own to another; it lies at the address of each.

    Attributes:
        sizes: elements per dim, the outermost first.
        src_strides, dst_strides: bytes per dim, not negative.
        src_dtype, dst_dtype: different ones are a cast, made by the sender.
    """

    sizes: tuple[int, ...]
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]
    src_dtype: DType
    dst_dtype: DType

    @property
    def src_bytes(self) -> int:
        """Bytes that the source array needs."""
        return extent(self.sizes, self.src_strides, self.src_dtype)

    @property
    def dst_bytes(self) -> int:
        """The same for the destination."""
        return extent(self.sizes, self.dst_strides, self.dst_dtype)

    @property
    def num_elements(self) -> int:
        """Elements that move."""
        return math.prod(self.sizes)


def extent(sizes: Sequence[int], strides: Sequence[int], dtype: DType) -> int:
    """Returns the bytes from the first to the end of the last element."""
    if 0 in sizes:
        return 0
    steps = ((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return sum(steps) + dtype.itemsize


def dense(sizes: Sequence[int], dtype: DType) -> tuple[int, ...]:
    """Returns the strides of a row-major array."""
    strides, step = [], dtype.itemsize
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def make_program(boxes: Sequence[Box], src_rank: int, dst_rank: int, num_rounds: int) -> Program:
    """Returns a program in which one rank hands boxes to another, or to itself.

    Buffer 2 i is the source of box i, and 2 i + 1 its destination. The boxes share the time by
    their bytes.

    Args:
        boxes: what moves.
        src_rank, dst_rank: both of this process.
        num_rounds: on GPUs; 0 for host memory.
    """
    operations, spans = array("q"), array("q")
    total = sum(box.num_elements * box.dst_dtype.itemsize for box in boxes)
    for stream in (_SEND, _RECEIVE):
        passed = 0
        for number, box in enumerate(boxes):
            own = box.dst_dtype if stream == _RECEIVE else box.src_dtype
            operations.extend([stream, 2 * number + stream, 0, int(own), int(box.dst_dtype)])
            operations.extend([len(box.sizes), *box.sizes])
            operations.extend(box.dst_strides if stream == _RECEIVE else box.src_strides)
            nbytes = box.num_elements * box.dst_dtype.itemsize
            spans.extend([passed, passed + nbytes, total])
            passed += nbytes
    return Program(
        array("q", [_SEND, src_rank, dst_rank, _RECEIVE, src_rank, dst_rank]),
        operations,
        array("q"),
        array("q", [n for box in boxes for n in (0, box.src_bytes, 0, box.dst_bytes)]),
        2 * len(boxes),
        1 << 20,
        hops=array("q", [0, 0] if num_rounds else []),
        spans=spans if num_rounds else None,
        num_rounds=num_rounds,
    )


def join(devices: Sequence[int], own: Libraries) -> Communicator:
    """Returns a communicator whose ranks 0, 1, ... are GPUs of this process.

    Args:
        devices: the GPU of each rank.
        own: what is opened.

    Raises:
        UnsupportedError: a library or a GPU is missing.
    """
    cuda = CudaLibrary(own.driver)
    copies = [own.nccl] if own.nccl else [copy.path for copy in find_nccl()]
    if not copies:
        raise UnsupportedError("no NCCL: pip install nvidia-nccl-cu12")
    nccl = NcclLibrary(copies[0])
    local = []
    for rank, gpu in enumerate(devices):
        image = own.image or kernel_image(cuda.architecture(gpu), driver_version=cuda.version)
        local.append(GpuRank(rank, gpu, image))
    made = Communicator.nccl(nccl, cuda, nccl.make_id(), range(len(devices)), local)
    made.connect(60.0)
    return made
