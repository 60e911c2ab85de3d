"""How a stored tensor relates to the canonical tensor of the same weights.

A form is an index map, written as an einops-style pattern from the dims of the stored tensor to the
dims of the canonical one. Shared names are the factors of which both are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from reshard.box import whole_numbers
from reshard.errors import LayoutError
from reshard.patterns import patterns_of

__all__ = ["Digit", "Form", "ResolvedForm", "Row"]

_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z_][A-Za-z_0-9]*|1)")


@dataclass(frozen=True, slots=True, init=False)
class Form:
    """An index map from stored to canonical dims.

    Args:
        pattern: `"stored dims -> canonical dims"`. A dim is a name, a group `(major minor)` of
            merged factors, or `1`. A name on both sides is a factor. A name on the left alone must
            be in `index` (this tensor is one slice of a stack) or in `repeat` (every slice is a
            copy).
        sizes: sizes of factors that the stored shape does not tell: all but one of a group, and
            those of dims that are longer than the factor (padding, fusion).
        index: factor name -> the one index at which this tensor lies.
        repeat: names of factors whose every index holds the same elements.
        start: stored dim -> index at which this tensor begins, for a segment of a fusion.

    `sizes`, `index` and `start` are mappings or pairs; they are kept as sorted pairs.

    Raises:
        LayoutError: if the pattern does not parse or a name has no meaning.

    | what | form |
    |---|---|
    | Tunix `q_proj.w` | `Form("embed heads dim -> (heads dim) embed")` |
    | layer 3 of a scanned kernel | `Form("embed layers ffn -> ffn embed", index={"layers": 3})` |
    | gate of interleaved gate/up | `Form("(ffn two) embed -> ffn embed", {"two": 2}, {"two": 0})` |
    | KV heads repeated over ranks | `Form("(heads r) d -> heads d", {"r": 4}, repeat=("r",))` |
    | rows 128.. of a fused tensor | `Form("n embed -> n embed", {"n": 64}, start={0: 128})` |

    Source: einops 0.8 `rearrange` patterns, with `index`, `repeat` and `start` added.
    """

    pattern: str
    sizes: tuple[tuple[str, int], ...]
    index: tuple[tuple[str, int], ...]
    repeat: tuple[str, ...]
    start: tuple[tuple[int, int], ...]

    def __init__(
        self,
        pattern: str,
        sizes: Mapping[str, int] | Iterable[tuple[str, int]] = (),
        index: Mapping[str, int] | Iterable[tuple[str, int]] = (),
        repeat: Iterable[str] = (),
        start: Mapping[int, int] | Iterable[tuple[int, int]] = (),
    ) -> None:
        if not isinstance(pattern, str):
            raise LayoutError(
                f'Form({pattern!r}): its pattern is no text. Give one such as "in out -> out in".'
            )
        object.__setattr__(self, "pattern", str.__str__(pattern))
        try:
            object.__setattr__(self, "sizes", tuple(sorted(map(_of_name, _items(sizes)))))
            object.__setattr__(self, "index", tuple(sorted(map(_of_name, _items(index)))))
            object.__setattr__(self, "start", tuple(sorted(map(_of_dim, _items(start)))))
        except (TypeError, ValueError):
            raise LayoutError(
                f"form {pattern!r}: sizes {sizes!r}, index {index!r} and start {start!r} are "
                'mappings to whole numbers, such as {"heads": 8}; start is one of dims: {0: 128}.'
            ) from None
        names = map(str.__str__, patterns_of("repeat", repeat))
        object.__setattr__(self, "repeat", tuple(sorted(names)))
        self._check()

    def _check(self) -> None:
        """Raises LayoutError if the pattern does not parse or a name has no meaning."""
        stored, canonical = _parse(self.pattern)
        left = [name for group in stored for name in group]
        right = [name for group in canonical for name in group]
        alone = set(left) - set(right)
        fixed = {name for name, _ in self.index} | set(self.repeat)
        if alone != fixed or not set(right) <= set(left):
            raise LayoutError(
                f"form {self.pattern!r}: names on the left alone are {sorted(alone)}, index and "
                f"repeat name {sorted(fixed)}, names on the right alone are "
                f"{sorted(set(right) - set(left))}. Each left-only name needs an index or a "
                "repeat; nothing may be on the right alone."
            )
        both = {name for name, _ in self.index} & set(self.repeat)
        if both:
            raise LayoutError(
                f"form {self.pattern!r}: {sorted(both)} is in index and in repeat. A tensor is one "
                "slice (index) or every slice is a copy (repeat); name it in one of them."
            )
        unknown = {name for name, _ in self.sizes} - set(left)
        if unknown:
            raise LayoutError(f"form {self.pattern!r}: sizes of unknown names {sorted(unknown)}.")
        if min((size for _, size in self.sizes), default=0) < 0:
            raise LayoutError(f"form {self.pattern!r}: sizes {self.sizes} has a negative number.")
        if any(not 0 <= dim < len(stored) or first < 0 for dim, first in self.start):
            raise LayoutError(
                f"form {self.pattern!r}: start {self.start} must name stored dims 0 to "
                f"{len(stored) - 1}, each with the index at which the tensor begins."
            )

    @classmethod
    def identity(cls, ndim: int) -> Form:
        """Returns the form of a tensor that is stored as its canonical one."""
        dims = " ".join(f"d{dim}" for dim in range(ndim))
        return cls(f"{dims} -> {dims}")

    def resolve(self, shape: tuple[int, ...]) -> ResolvedForm:
        """Returns the map in numbers for a stored tensor of this shape.

        Raises:
            LayoutError: if the pattern does not fit the shape, or a size cannot be told.
        """
        return _resolve(self, shape)

    def __str__(self) -> str:
        return self.pattern


_Key = TypeVar("_Key", str, int)


def _items(given: Mapping[_Key, int] | Iterable[tuple[_Key, int]]) -> Iterable[tuple[_Key, int]]:
    return given.items() if isinstance(given, Mapping) else given


def _of_name(pair: tuple[str, int]) -> tuple[str, int]:
    name, given = pair
    (number,) = whole_numbers((given,))
    return str.__str__(name), number


def _of_dim(pair: tuple[int, int]) -> tuple[int, int]:
    dim, first = whole_numbers(pair)
    return dim, first


class Digit(NamedTuple):
    """One factor of a stored dim. `value` is the fixed index of kind `index`, else 0."""

    kind: Literal["factor", "index", "repeat"]
    name: str
    size: int
    value: int


class Row(NamedTuple):
    """A stored dim: its index = `start` + mixed-radix number of its digits, first digit major."""

    start: int
    digits: tuple[Digit, ...]

    @property
    def extent(self) -> int:
        """Number of stored indices that the digits span."""
        return math.prod(digit.size for digit in self.digits)


@dataclass(frozen=True, slots=True)
class ResolvedForm:
    """A form in numbers: rows of the stored dims, (name, size) factors of the canonical dims."""

    rows: tuple[Row, ...]
    canonical: tuple[tuple[tuple[str, int], ...], ...]

    @property
    def canonical_shape(self) -> tuple[int, ...]:
        """Shape of the canonical tensor."""
        return tuple(math.prod(size for _, size in factors) for factors in self.canonical)


@lru_cache(maxsize=4096)
def _parse(pattern: str) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    sides = pattern.split("->")
    if len(sides) != 2:
        raise LayoutError(f"form {pattern!r} needs exactly one '->', as in 'in out -> out in'.")
    return _parse_side(pattern, sides[0]), _parse_side(pattern, sides[1])


def _parse_side(pattern: str, text: str) -> tuple[tuple[str, ...], ...]:
    dims: list[tuple[str, ...]] = []
    group: list[str] | None = None
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise LayoutError(f"form {pattern!r}: cannot read {text[position:]!r}.")
        token, position = match[1], match.end()
        if token == "(" and group is None:
            group = []
        elif token == ")" and group is not None:
            dims.append(tuple(group))
            group = None
        elif token in "()":
            raise LayoutError(f"form {pattern!r}: unmatched {token!r}.")
        elif group is not None:
            group.extend(() if token == "1" else (token,))
        else:
            dims.append(() if token == "1" else (token,))
    if group is not None:
        raise LayoutError(f"form {pattern!r}: a group is not closed.")
    names = [name for dim in dims for name in dim]
    if len(set(names)) != len(names):
        raise LayoutError(f"form {pattern!r}: a name comes twice on one side.")
    return tuple(dims)


@lru_cache(maxsize=4096)
def _resolve(form: Form, shape: tuple[int, ...]) -> ResolvedForm:
    stored, canonical = _parse(form.pattern)
    if len(stored) != len(shape):
        raise LayoutError(
            f"form {form.pattern!r} has {len(stored)} stored dims, the tensor has shape {shape}."
        )
    sizes = dict(form.sizes)
    for length, group in zip(shape, stored, strict=True):
        _infer_size(form, shape, length, group, sizes)
    index, starts = dict(form.index), dict(form.start)
    rows = []
    for dim, group in enumerate(stored):
        digits = tuple(_digit(name, sizes[name], index, form.repeat) for name in group)
        rows.append(Row(starts.get(dim, 0), digits))
        if rows[-1].start + rows[-1].extent > shape[dim]:
            raise LayoutError(
                f"form {form.pattern!r}: dim {dim} needs {rows[-1].start} + {rows[-1].extent} "
                f"elements but the tensor of shape {shape} has {shape[dim]}."
            )
    for name, value in form.index:
        if not 0 <= value < sizes[name]:
            raise LayoutError(
                f"form {form.pattern!r}: index {name}={value} is outside its {sizes[name]} slices."
            )
    factors = tuple(tuple((name, sizes[name]) for name in group) for group in canonical)
    return ResolvedForm(tuple(rows), factors)


def _digit(name: str, size: int, index: dict[str, int], repeat: tuple[str, ...]) -> Digit:
    if name in index:
        return Digit("index", name, size, index[name])
    return Digit("repeat" if name in repeat else "factor", name, size, 0)


def _infer_size(
    form: Form, shape: tuple[int, ...], length: int, group: tuple[str, ...], sizes: dict[str, int]
) -> None:
    unknown = [name for name in group if name not in sizes]
    known = math.prod(sizes[name] for name in group if name in sizes)
    if len(unknown) > 1 or (unknown and (known == 0 or length % known)):
        raise LayoutError(
            f"form {form.pattern!r}: cannot tell the sizes of {unknown} from a dim of {length} "
            f"with {known} known, in shape {shape}. Give sizes={{name: size}}."
        )
    for name in unknown:
        sizes[name] = length // known
