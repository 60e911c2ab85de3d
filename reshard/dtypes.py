"""Element types: name, size, native code, and which casts exist.

Any type moves as bytes when both sides agree on it. A cast between different types has to be asked
for, and exists between floating-point types only: integers and booleans are never converted.
"""

from __future__ import annotations

import enum
import re
from difflib import get_close_matches
from typing import Final

from reshard.errors import UnsupportedError

__all__ = ["DType", "DTypeLike"]

DTypeLike = object
"""An element type as callers may write it: a `DType`, its name, or a framework's own object.

No narrower type says that without importing the frameworks; `DType.of` refuses what is none.
"""


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
    def of(cls, given: DTypeLike) -> DType:
        """Returns the type that a name or a framework's object stands for.

        Args:
            given: a `DType`; a name such as `"bfloat16"` or `"torch.bfloat16"`; or an object whose
                name says it: `torch.bfloat16`, `np.dtype("float32")`, `np.float32`,
                `ml_dtypes.bfloat16`, `jnp.bfloat16`.

        Raises:
            UnsupportedError: if the name is unknown, elements are smaller than one byte, or their
                bytes are in the order of another machine.

        Example:
            >>> DType.of("torch.bfloat16"), DType.of(DType.INT8)
            (DType.BFLOAT16, DType.INT8)
        """
        if isinstance(given, DType):
            return given
        short = _short_name(given)
        try:
            found = cls[short.upper()]
        except KeyError:
            raise UnsupportedError(_unknown_text(given, short)) from None
        if getattr(given, "isnative", True) is False:
            raise UnsupportedError(
                f"dtype {given!r}: its bytes are in the order of another machine, and a refit "
                f"moves bytes. Convert first, with array.astype({short!r})."
            )
        return found

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.name.lower()

    @property
    def has_casts(self) -> bool:
        """True for floating-point types whose values can be converted, and so be changed."""
        return self in _CASTABLE

    def can_cast_to(self, other: DType) -> bool:
        """True if values of this type can be converted to `other` (equal types always can)."""
        if self == other:
            return True
        is_wide = self in _WIDE_FLOATS or other in _WIDE_FLOATS
        return is_wide and self in _CASTABLE and other in _CASTABLE


def _short_name(given: object) -> str:
    """Returns the last word of a name, or of the name that a framework's object has."""
    name = given
    for attribute in ("name", "__name__"):
        if not isinstance(name, str):
            name = getattr(given, attribute, given)
    return (name if isinstance(name, str) else str(given)).rsplit(".", 1)[-1]


def _unknown_text(given: object, short: str) -> str:
    """Returns why something is no type, with the names that may have been meant."""
    if _SUB_BYTE.fullmatch(short):
        return (
            f"dtype {short!r}: elements of less than one byte are stored packed in ways that "
            "differ between frameworks. Move the packed storage as uint8 with its own layout."
        )
    known = [str(member) for member in DType]
    near = _SHORT_FORMS.get(short.lower()) or get_close_matches(short.lower(), known, 3)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    shown = repr(short if isinstance(given, str) else given)[:60]
    return f"dtype {shown} is unknown.{meant} Known are {', '.join(known)}."


# They are not taken as types: what some of them mean differs between frameworks.
_SHORT_FORMS: Final = {
    "bf16": ["bfloat16"],
    "fp16": ["float16"],
    "f16": ["float16"],
    "half": ["float16"],
    "fp32": ["float32"],
    "f32": ["float32"],
    "float": ["float32", "float64"],
    "single": ["float32"],
    "fp64": ["float64"],
    "f64": ["float64"],
    "double": ["float64"],
    "fp8": ["float8_e4m3fn", "float8_e5m2"],
    "e4m3": ["float8_e4m3fn", "float8_e4m3"],
    "e5m2": ["float8_e5m2"],
    "int": ["int32", "int64"],
    "long": ["int64"],
    "bool_": ["bool"],
}

_SUB_BYTE: Final = re.compile(r"(u?int|float)[1-7](_\w+)?|q?u?int[1-7]x\d|bits[1-7]x\d")

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

# One end of every cast is one of these, as in native/src/dtype.cc.
_WIDE_FLOATS: Final = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
_CASTABLE: Final = _WIDE_FLOATS | {DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2}
