"""Changes of values that go with a tensor: how what is stored relates to the canonical numbers.

Some frameworks store a weight multiplied by a constant, or a norm as 1 + w. A rule says so, for one
side; a `Change` is what the rules of both sides come to. Native code follows it while it packs or
unpacks (`native/src/affine.h`, which has the same steps); this module has the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from reshard.errors import LayoutError

__all__ = ["Change", "Elementwise", "change_of"]

Values: TypeAlias = Any
"""One float, or an array of float64 of any library; what is returned is the same."""


@dataclass(frozen=True, slots=True, init=False)
class Elementwise:
    """How a stored element becomes the canonical one: `stored * scale / divisor + offset`.

    A destination is the other way round: `(canonical - offset) * divisor / scale`. Equal rules of
    both sides cancel, and bytes are copied.

    Args:
        scale, divisor, offset: finite numbers, of any type that `float` takes; scale and divisor
            are not 0. A model that rounds its constant to a dtype has it rounded here as well: give
            the constant in that dtype.

    Numbers: float64, each step rounded once, then rounded to the wider of float32 and both dtypes,
    then cast. A step by 1 or by an offset of 0 is none. So a single step with a float32 constant is
    what float32 arithmetic gives, bit for bit: `(w.astype(f32) * f32(scale)).astype(dtype)`.

    Raises:
        LayoutError: for what is no finite number, or a scale or divisor of 0.

    | stored | rule |
    |---|---|
    | MaxText Llama query, divided by sqrt(head_dim) | `Elementwise(scale=np.float32(128) ** 0.5)` |
    | MaxText Gemma embedding, times sqrt(embed) | `Elementwise(divisor=50.5)`, in bfloat16 |
    | MaxText Gemma norm, 1 + w | `Elementwise(offset=-1)` |

    Example:
        >>> norm = Elementwise(offset=-1)
        >>> norm.to_canonical(1.5), norm.to_stored(0.5)
        (0.5, 1.5)
    """

    scale: float
    divisor: float
    offset: float

    def __init__(self, scale: float = 1.0, divisor: float = 1.0, offset: float = 0.0) -> None:
        given = {"scale": scale, "divisor": divisor, "offset": offset}
        numbers = {name: _number(value) for name, value in given.items()}
        if None in numbers.values() or 0 in (numbers["scale"], numbers["divisor"]):
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise LayoutError(
                f"Elementwise({shown}): give finite numbers, and a scale and a divisor that are "
                "not 0, as in Elementwise(scale=8) or Elementwise(offset=-1)."
            )
        for name, number in numbers.items():
            object.__setattr__(self, name, number)

    @property
    def is_identity(self) -> bool:
        """True if nothing changes."""
        return (self.scale, self.divisor, self.offset) == (1.0, 1.0, 0.0)

    def to_canonical(self, stored: Values) -> Values:
        """Returns canonical values of stored ones, in float64."""
        values = stored
        if self.scale != 1:
            values = values * self.scale
        if self.divisor != 1:
            values = values / self.divisor
        return values + self.offset if self.offset else values

    def to_stored(self, canonical: Values) -> Values:
        """Returns stored values of canonical ones, in float64."""
        values = canonical
        if self.offset:
            values = values - self.offset
        if self.divisor != 1:
            values = values * self.divisor
        return values / self.scale if self.scale != 1 else values

    def __str__(self) -> str:
        return str(Change(self, Elementwise()))


def _number(given: Any) -> float | None:  # noqa: ANN401 (callers may give anything)
    """Returns a finite float, with one zero; None for anything else."""
    if isinstance(given, bool | str | bytes):
        return None
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return number + 0.0 if math.isfinite(number) else None


class Change(NamedTuple):
    """What happens to values between the two sides; `str` writes it with x for what is stored.

    Attributes:
        src: the source's rule, which is followed.
        dst: the destination's rule, which is undone.
    """

    src: Elementwise
    dst: Elementwise

    @property
    def numbers(self) -> tuple[float, ...]:
        """Scale, divisor and offset of both: a row of the native table of rules."""
        src, dst = self
        return (src.scale, src.divisor, src.offset, dst.scale, dst.divisor, dst.offset)

    def of(self, values: Values) -> Values:
        """Returns what the destination stores of what the source stores, in float64."""
        return self.dst.to_stored(self.src.to_canonical(values))

    def __str__(self) -> str:
        text = "x"
        steps = (
            ("*", self.src.scale, 1),
            ("/", self.src.divisor, 1),
            ("+", self.src.offset, 0),
            ("+", -self.dst.offset, 0),
            ("*", self.dst.divisor, 1),
            ("/", self.dst.scale, 1),
        )
        is_sum = False
        for sign, number, nothing in steps:
            if number == nothing:
                continue
            if sign != "+":
                text = f"({text})" if is_sum else text
            elif number < 0:
                sign, number = "-", -number
            text, is_sum = f"{text} {sign} {repr(number).removesuffix('.0')}", sign in "+-"
        return text


def change_of(src: Elementwise | None, dst: Elementwise | None) -> Change | None:
    """Returns what two rules come to; None where both sides store the same numbers."""
    if src == dst:
        return None
    return Change(src or Elementwise(), dst or Elementwise())
