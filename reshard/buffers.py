"""Memory of one local array: address, shape, strides, element type, and who keeps it alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from reshard.dtypes import DType
from reshard.errors import LayoutError
from reshard.tensor_spec import TensorSpec

__all__ = ["Buffer", "BufferKey", "check_buffers"]

BufferKey = tuple[int, str]
"""(rank, stored name)."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One rank's local array of one stored tensor, in host memory.

    Args:
        address: of the element at index 0 in every dim; ignored if there is no element.
        shape: local shape, in elements.
        strides: bytes between neighbours per dim; may be negative, and zero for reading only.
        dtype: element type.
        is_writable: False for arrays that must not change.
        owner: whatever keeps the memory alive; held as long as the buffer is.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    is_writable: bool = True
    owner: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "strides", tuple(self.strides))
        if len(self.shape) != len(self.strides):
            raise LayoutError(
                f"buffer of shape {self.shape} has strides {self.strides}; "
                "give one per dim, in bytes."
            )

    @property
    def is_empty(self) -> bool:
        """True if there is no element."""
        return 0 in self.shape

    @property
    def extent(self) -> tuple[int, int]:
        """First and one-past-last byte of all elements, relative to `address`."""
        if self.is_empty:
            return 0, 0
        spans = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(span for span in spans if span < 0)
        high = sum(span for span in spans if span > 0)
        return low, high + self.dtype.itemsize


def check_buffers(
    specs: list[TensorSpec], ranks: list[int], buffers: Mapping[BufferKey, Buffer], *, writes: bool
) -> None:
    """Checks that every rank has the local array that each layout says, before anything moves.

    Args:
        specs: tensors of one side, in its own rank numbers.
        ranks: the ranks of this process.
        buffers: per (rank, stored name).
        writes: True for a destination, whose arrays are written and so must not share memory.

    Raises:
        LayoutError: naming tensor, rank, both values and the remedy.
    """
    spans: list[tuple[int, int, str]] = []
    for spec in specs:
        for rank in ranks:
            expected = spec.layout.local_shape(rank, spec.shape)
            if expected is None:
                continue
            buffer = _check_buffer(spec, rank, expected, buffers.get((rank, spec.name)), writes)
            if writes and buffer is not None and not buffer.is_empty:
                low, high = buffer.extent
                where = f"{spec.name} (rank {rank})"
                spans.append((buffer.address + low, buffer.address + high, where))
    spans.sort()
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start < end:
            raise LayoutError(
                f"destination arrays {first} and {second} overlap in memory. Declare one storage "
                "once, with the other name as an alias, or give disjoint arrays."
            )


def _check_buffer(
    spec: TensorSpec,
    rank: int,
    expected: tuple[int, ...],
    buffer: Buffer | None,
    writes: bool,
) -> Buffer | None:
    if buffer is None:
        if 0 in expected:
            return None
        raise LayoutError(
            f"{spec.name}: rank {rank} gave no array, but its layout {spec.layout} says it holds "
            f"{expected} of {spec.shape}."
        )
    if buffer.shape != expected:
        raise LayoutError(
            f"{spec.name}: the local array of rank {rank} has shape {buffer.shape}, but layout "
            f"{spec.layout} of shape {spec.shape} gives {expected}. Declare the layout "
            "that the array really has."
        )
    if buffer.dtype != spec.dtype:
        raise LayoutError(
            f"{spec.name}: the local array of rank {rank} is {buffer.dtype}, the spec says "
            f"{spec.dtype}."
        )
    if writes and not buffer.is_writable:
        raise LayoutError(f"{spec.name}: the local array of rank {rank} is read-only.")
    if (
        writes
        and not buffer.is_empty
        and any(s == 0 and n > 1 for n, s in zip(buffer.shape, buffer.strides, strict=True))
    ):
        raise LayoutError(
            f"{spec.name}: the local array of rank {rank} has strides {buffer.strides}, so one "
            "byte stands for several elements. Give a destination memory of its own."
        )
    return buffer
