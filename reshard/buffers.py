"""Memory of one local array: address, shape, strides, element type, and who keeps it alive."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from reshard.dtypes import DType
from reshard.errors import LayoutError
from reshard.overlap import overlaps_itself, share_bytes
from reshard.tensor_spec import TensorSpec

__all__ = [
    "Buffer",
    "BufferChecks",
    "BufferKey",
    "BufferSnapshot",
    "check_apart",
    "check_buffers",
    "devices_of",
    "name_of_device",
]

BufferKey = tuple[int, str]
"""(rank, stored name)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Buffer:
    """One rank's local array of one stored tensor, in host memory or in that of a CUDA device.

    Args:
        address: of the element at index 0 in every dim; ignored if there is no element. CUDA has
            one space of addresses for the host and all devices of a process, so equal addresses
            are the same memory whatever `device` says.
        shape: local shape, in elements.
        strides: bytes between neighbours per dim; may be negative, and zero for reading only.
        dtype: element type.
        is_writable: False for arrays that must not change.
        owner: whatever keeps the memory alive; held as long as the buffer is.
        device: ordinal of the CUDA device in this process whose memory it is, as CUDA counts those
            that are visible; None for host memory, pinned or not.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    is_writable: bool = True
    owner: object = field(default=None, repr=False, compare=False)
    device: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "strides", tuple(self.strides))
        if len(self.shape) != len(self.strides):
            raise LayoutError(
                f"buffer of shape {self.shape} has strides {self.strides}; "
                "give one per dim, in bytes."
            )
        if self.device is not None and (type(self.device) is not int or self.device < 0):
            raise LayoutError(
                f"buffer on device {self.device!r}: give the ordinal of a CUDA device, 0 or more, "
                "or None for host memory."
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


_Span = tuple[int, int, int, BufferKey, Buffer]
"""First and one-past-last address of an array, its group, and whose it is."""


class BufferSnapshot:
    """Remembers which buffers a mapping had, without keeping them or their memory alive."""

    def __init__(self, buffers: Mapping[BufferKey, Buffer]) -> None:
        self._keys = list(buffers)
        self._buffers = [weakref.ref(buffer) for buffer in buffers.values()]

    def is_of(self, buffers: Mapping[BufferKey, Buffer]) -> bool:
        """True if the mapping has the very same buffers; they are frozen, so nothing changed."""
        before = [reference() for reference in self._buffers]
        return list(buffers) == self._keys and all(map(operator.is_, buffers.values(), before))


class BufferChecks:
    """Checks that every rank has the local arrays that its layouts say, before anything moves.

    All arrays of a rank are in one memory, that of the host or of one device: a rank is one device.

    Args:
        specs: tensors of one side, in its own rank numbers.
        ranks: the ranks of this process.
        writes: True for a destination, whose arrays are written and so must not share memory.
    """

    def __init__(self, specs: Sequence[TensorSpec], ranks: Sequence[int], *, writes: bool) -> None:
        self._writes = writes
        self._expected: list[tuple[BufferKey, tuple[int, ...], TensorSpec]] = []
        for spec in specs:
            for rank in ranks:
                shape = spec.layout.local_shape(rank, spec.shape)
                if shape is not None:
                    self._expected.append(((rank, spec.name), shape, spec))

    def check(self, buffers: Mapping[BufferKey, Buffer]) -> dict[int, int | None]:
        """Returns the device of each rank, as `devices_of` does.

        Raises:
            LayoutError: naming tensor, rank, both values and the remedy.
        """
        spans: list[_Span] = []
        devices = _Devices()
        for key, shape, spec in self._expected:
            buffer = buffers.get(key)
            if buffer is None or buffer.shape != shape or buffer.dtype is not spec.dtype:
                self._refuse(spec, key[0], shape, buffer)
                continue
            devices.add(key, buffer)
            if self._writes and not buffer.is_empty:
                _check_writable(spec, key[0], buffer)
                spans.append(_span(key, buffer, len(spans)))
        for first, second in _sharing(spans):
            raise LayoutError(_overlap_text(first[3], second[3]))
        return devices.found

    def _refuse(
        self, spec: TensorSpec, rank: int, shape: tuple[int, ...], buffer: Buffer | None
    ) -> None:
        """Raises for an array that is not as expected; none is needed where none has elements."""
        if buffer is None:
            if 0 in shape:
                return
            raise LayoutError(
                f"{spec.name}: rank {rank} gave no array, but its layout {spec.layout} says it "
                f"holds {shape} of {spec.shape}."
            )
        if buffer.shape != shape:
            raise LayoutError(
                f"{spec.name}: the local array of rank {rank} has shape {buffer.shape}, but layout "
                f"{spec.layout} of shape {spec.shape} gives {shape}. Declare the layout that the "
                "array really has."
            )
        raise LayoutError(
            f"{spec.name}: the local array of rank {rank} is {buffer.dtype}, the spec says "
            f"{spec.dtype}. Give both the same dtype; a refit casts only where a rule says so."
        )


class _Devices:
    """The device of each rank, from one array after the other.

    Attributes:
        found: by rank; None for host memory. Ranks without elements are not in it.
    """

    def __init__(self) -> None:
        self.found: dict[int, int | None] = {}
        self._names: dict[int, str] = {}

    def add(self, key: BufferKey, buffer: Buffer) -> None:
        """Takes one array into account.

        Raises:
            LayoutError: if it is in another memory than what its rank gave before.
        """
        if buffer.is_empty:
            return
        rank, name = key
        first = self.found.setdefault(rank, buffer.device)
        if first == buffer.device:
            self._names.setdefault(rank, name)
            return
        raise LayoutError(
            f"{name}: the local array of rank {rank} is on {name_of_device(buffer.device)}, that "
            f"of {self._names[rank]} on {name_of_device(first)}. A rank is one device with its "
            "memory: move one of the two, or give it to a rank of its own."
        )


def devices_of(*sides: Mapping[BufferKey, Buffer]) -> dict[int, int | None]:
    """Returns the device of each rank, None for host memory; ranks without elements are left out.

    Args:
        sides: local arrays by (rank, stored name); a process of both sides gives both, in one
            numbering of ranks.

    Raises:
        LayoutError: if the arrays of a rank are in different memories.

    Example:
        >>> gpu = Buffer(4096, (2,), (4,), DType.FLOAT32, device=1)
        >>> devices_of({(0, "a"): gpu, (1, "a"): Buffer(64, (0,), (4,), DType.FLOAT32)})
        {0: 1}
    """
    devices = _Devices()
    for buffers in sides:
        for key, buffer in buffers.items():
            devices.add(key, buffer)
    return devices.found


def name_of_device(device: int | None) -> str:
    """Returns how messages call a memory: `the host` or `cuda:1`."""
    return "the host" if device is None else f"cuda:{device}"


def _span(key: BufferKey, buffer: Buffer, group: int) -> _Span:
    low, high = buffer.extent
    return buffer.address + low, buffer.address + high, group, key, buffer


def _sharing(spans: list[_Span]) -> Iterator[tuple[_Span, _Span]]:
    """Yields the pairs of arrays of different groups that have a byte in common, in any order.

    Only arrays of one memory can have one, and addresses tell memories apart (see `Buffer`).
    Arrays are swept by address: a model has many, and some callers check before every move.
    """
    spans.sort(key=lambda span: span[:3])
    active: list[_Span] = []
    for span in spans:
        active = [other for other in active if other[1] > span[0]]
        for other in active:
            if other[2] != span[2] and share_bytes(other[4], span[4]):
                yield other, span
        active.append(span)


_READ, _WRITTEN = 0, 1


def check_apart(
    sources: Mapping[BufferKey, Buffer], destinations: Mapping[BufferKey, Buffer]
) -> None:
    """Checks that what is written is not read as well; for a process that has both.

    Raises:
        LayoutError: naming both arrays.
    """
    spans = [
        _span(key, buffer, group)
        for group, buffers in ((_READ, sources), (_WRITTEN, destinations))
        for key, buffer in buffers.items()
        if not buffer.is_empty
    ]
    for pair in _sharing(spans):
        (*_, read, _), (*_, written, _) = sorted(pair, key=lambda span: span[2])
        raise LayoutError(
            f"{written[1]}: the destination array of rank {written[0]} shares memory with the "
            f"source array {read[1]} of rank {read[0]}, so writing it would change what is still "
            "to be sent. Give the destination memory of its own."
        )


def _overlap_text(first: BufferKey, second: BufferKey) -> str:
    return (
        f"destination arrays {first[1]} (rank {first[0]}) and {second[1]} (rank {second[0]}) "
        "overlap in memory. Declare one storage once, with the other name as an alias, or give "
        "disjoint arrays."
    )


def _check_writable(spec: TensorSpec, rank: int, buffer: Buffer) -> None:
    if not buffer.is_writable:
        raise LayoutError(
            f"{spec.name}: the local array of rank {rank} is read-only. Give one that is not."
        )
    if overlaps_itself(buffer):
        raise LayoutError(
            f"{spec.name}: the local array of rank {rank} has shape {buffer.shape} and strides "
            f"{buffer.strides} in bytes, so one byte stands for several elements. Give a "
            "destination memory of its own."
        )


def check_buffers(
    specs: Sequence[TensorSpec],
    ranks: Sequence[int],
    buffers: Mapping[BufferKey, Buffer],
    *,
    writes: bool,
) -> None:
    """Checks the arrays of one call; see `BufferChecks`."""
    BufferChecks(specs, ranks, writes=writes).check(buffers)
