"""Element types: name, size, native code, and which casts exist.

Any type moves as bytes when both sides agree on it. A cast between different types has to be asked
for, and exists between floating-point types only: integers and booleans are never converted.
"""

from __future__ import annotations

import enum
from typing import Final

from reshard.errors import UnsupportedError

__all__ = ["DType"]


class DType(enum.IntEnum):
    """Element type of a tensor; the value is the native code of `reshard.h`."""

    BOOL = 0
    UINT8 = 1
    INT8 = 2
    UINT16 = 3
    INT16 = 4
    UINT32 = 5
    INT32 = 6
    UINT64 = 7
    INT64 = 8
    FLOAT16 = 9
    BFLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    FLOAT8_E4M3FN = 15
    FLOAT8_E5M2 = 16
    FLOAT8_E4M3FNUZ = 17
    FLOAT8_E5M2FNUZ = 18
    FLOAT8_E8M0FNU = 19
    FLOAT8_E4M3 = 20
    FLOAT8_E3M4 = 21
    FLOAT8_E4M3B11FNUZ = 22

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZES[self]

    @classmethod
    def of(cls, name: str | DType) -> DType:
        """Returns the type of a framework's name, such as `"bfloat16"` or `"torch.bfloat16"`.

        Raises:
            UnsupportedError: if the name is unknown or elements are smaller than one byte.
        """
        if isinstance(name, DType):
            return name
        short = name.rsplit(".", 1)[-1]
        try:
            return cls[short.upper()]
        except KeyError:
            pass
        if short.startswith(_SUB_BYTE_PREFIXES):
            raise UnsupportedError(
                f"dtype {short!r}: elements of less than one byte are stored packed in ways that "
                "differ between frameworks. Move the packed storage as uint8 with its own layout."
            )
        known = ", ".join(member.name.lower() for member in cls)
        raise UnsupportedError(f"dtype {short!r} is unknown; known are {known}.")

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.name.lower()

    def can_cast_to(self, other: DType) -> bool:
        """True if values of this type can be converted to `other` (equal types always can)."""
        return self == other or (self in _CASTABLE and other in _CASTABLE)


_SUB_BYTE_PREFIXES: Final = ("int4", "uint4", "int2", "uint2", "int1", "uint1", "float4", "bits")

_ITEMSIZES: Final = {
    member: size
    for size, members in {
        1: (0, 1, 2, 15, 16, 17, 18, 19, 20, 21, 22),
        2: (3, 4, 9, 10),
        4: (5, 6, 11),
        8: (7, 8, 12, 13),
        16: (14,),
    }.items()
    for member in map(DType, members)
}

_CASTABLE: Final = frozenset(
    {
        DType.FLOAT16,
        DType.BFLOAT16,
        DType.FLOAT32,
        DType.FLOAT64,
        DType.FLOAT8_E4M3FN,
        DType.FLOAT8_E5M2,
    }
)
