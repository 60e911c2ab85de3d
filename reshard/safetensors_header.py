"""The header of a safetensors file: names, types and shapes. The data behind it is never read.

Source: the safetensors format, 8 bytes of length (little-endian) and that many bytes of JSON.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from reshard.dtypes import DType
from reshard.errors import LayoutError, UnsupportedError

__all__ = ["HeaderEntry", "is_pointer", "read_header"]

HeaderEntry = tuple[DType, tuple[int, ...]]
"""Element type and shape of one tensor."""

# What safetensors itself accepts.
_MAX_HEADER_BYTES: Final = 100_000_000
_LENGTH_BYTES: Final = 8

_DTYPES: Final = {
    "BOOL": DType.BOOL,
    "U8": DType.UINT8,
    "I8": DType.INT8,
    "U16": DType.UINT16,
    "I16": DType.INT16,
    "U32": DType.UINT32,
    "I32": DType.INT32,
    "U64": DType.UINT64,
    "I64": DType.INT64,
    "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
    "C64": DType.COMPLEX64,
    "F8_E4M3": DType.FLOAT8_E4M3FN,
    "F8_E5M2": DType.FLOAT8_E5M2,
    "F8_E8M0": DType.FLOAT8_E8M0FNU,
}


def is_pointer(path: Path) -> bool:
    """True for what a Git checkout has in place of a large file that was not downloaded."""
    try:
        with path.open("rb") as file:
            return file.read(16) == b"version https://"
    except OSError:  # whoever reads the header says why
        return False


def read_header(path: Path) -> dict[str, HeaderEntry]:
    """Returns type and shape of every tensor in a safetensors file.

    The file may end after its header: nothing else is read.

    Raises:
        LayoutError: if the file cannot be read or its header is not sound.
        UnsupportedError: for elements smaller than one byte.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES)
            length = int.from_bytes(start, "little")
            if len(start) < _LENGTH_BYTES or not 2 <= length <= _MAX_HEADER_BYTES:
                raise LayoutError(
                    f"{path}: not a safetensors file, its header would have {length} bytes. From "
                    f"2 to {_MAX_HEADER_BYTES} are right; download the file again."
                )
            text = file.read(length)
    except OSError as error:
        raise LayoutError(f"{path}: cannot be read, {error.strerror or error}.") from error
    if len(text) < length:
        raise LayoutError(
            f"{path}: ends after {len(text)} of the {length} bytes of its header. Download at "
            f"least the first {_LENGTH_BYTES + length} bytes."
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: the header is not JSON, {error}.") from None
    if not isinstance(found, dict):
        raise LayoutError(f"{path}: the header is a {type(found).__name__}, not an object.")
    return {
        name: _read_entry(entry, f"{path}, {name}")
        for name, entry in found.items()
        if name != "__metadata__"
    }


def _read_entry(entry: Any, where: str) -> HeaderEntry:  # noqa: ANN401 - JSON
    keys = ("dtype", "shape", "data_offsets")
    if not isinstance(entry, dict) or not all(key in entry for key in keys):
        raise LayoutError(f"{where}: {entry!r:.80} lacks one of {', '.join(keys)}.")
    kind, shape, offsets = (entry[key] for key in keys)
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise LayoutError(
            f"{where}: shape {shape!r:.60} and data_offsets {offsets!r:.60} must be lists of whole "
            "numbers from 0, the latter of two."
        )
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise UnsupportedError(
            f"{where}: dtype {kind!r:.30} is none of {', '.join(_DTYPES)}. Elements of less than "
            "one byte have no layout of their own; describe the packed storage as U8."
        )
    dtype = _DTYPES[kind]
    nbytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise LayoutError(
            f"{where}: {kind}{shape} has {nbytes} bytes, its data_offsets {offsets} span "
            f"{offsets[1] - offsets[0]}. The file is damaged; download it again."
        )
    return dtype, tuple(shape)


def _are_counts(given: object) -> bool:
    return isinstance(given, list) and all(type(n) is int and n >= 0 for n in given)
