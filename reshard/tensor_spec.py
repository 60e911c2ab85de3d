"""Everything about one stored tensor: name, shape, element type, layout, and what it means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from reshard.box import Box
from reshard.dtypes import DType
from reshard.errors import LayoutError
from reshard.form import Form, ResolvedForm
from reshard.layout import AnyLayout

__all__ = ["Padding", "Part", "TensorSpec"]

Padding = Literal["refuse", "keep", "zero"]


@dataclass(frozen=True, slots=True)
class Part:
    """A canonical tensor that a stored tensor holds.

    Args:
        name: canonical (Hugging Face) name.
        form: index map from the stored tensor; None means stored as it is.
        aliases: further canonical names of the same elements (tied weights).
    """

    name: str
    form: Form | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "aliases", tuple(self.aliases))

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical name and its aliases."""
        return (self.name, *self.aliases)

    def resolve(self, shape: tuple[int, ...]) -> ResolvedForm:
        """Returns the form in numbers for the stored shape."""
        form = Form.identity(len(shape)) if self.form is None else self.form
        return form.resolve(shape)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor of one side.

    Args:
        name: what the framework calls it.
        shape: global shape, in elements.
        dtype: element type; a name such as `"bfloat16"` is accepted.
        layout: which rank holds which boxes of it.
        parts: the canonical tensors in it; empty means one of the same name, stored as it is.
        padding: what elements are that no part covers: an error (`refuse`), left alone (`keep`), or
            set to zero by every refit (`zero`).

    Raises:
        LayoutError: if layout, parts and shape do not fit each other. UnsupportedError: for the
            dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: AnyLayout
    parts: tuple[Part, ...] = ()
    padding: Padding = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", DType.of(self.dtype))
        object.__setattr__(self, "parts", tuple(self.parts) or (Part(self.name),))
        if min(self.shape, default=0) < 0:
            raise LayoutError(f"{self.name}: shape {self.shape} has a negative number.")
        if self.padding not in get_args(Padding):
            raise LayoutError(
                f"{self.name}: padding {self.padding!r} is unknown; use one of {get_args(Padding)}."
            )
        try:
            self.layout.check(self.shape)
            uncovered = self.uncovered()
        except LayoutError as error:
            raise LayoutError(f"{self.name}: {error}") from None
        if uncovered and self.padding == "refuse":
            raise LayoutError(
                f"{self.name}: no part covers {', '.join(map(str, uncovered[:3]))} of shape "
                f"{self.shape}. Add the missing parts, or declare padding='keep' or 'zero'."
            )

    def uncovered(self) -> list[Box]:
        """Returns disjoint boxes of stored elements that no part covers.

        Raises:
            LayoutError: if two parts cover the same stored element.
        """
        if len(self.parts) == 1 and self.parts[0].form is None:
            return []
        forms = [part.resolve(self.shape) for part in self.parts]
        stacks = _stacks([form for form in forms if all(row.extent for row in form.rows)])
        rest = [Box((0,) * len(self.shape), self.shape)]
        for i, (box, is_complete) in enumerate(stacks):
            for earlier, _ in stacks[:i]:
                if box.intersect(earlier):
                    raise LayoutError(f"parts cover stored elements {box} and {earlier} twice.")
            if is_complete:
                rest = [piece for whole in rest for piece in whole.subtract(box)]
            elif self.padding == "zero":
                raise LayoutError(
                    f"parts cover only some slices of {box}; padding='zero' would clear the "
                    "others. Add the missing parts, or declare padding='keep'."
                )
        return [box for box in rest if not box.is_empty]

    def shifted(self, offset: int) -> TensorSpec:
        """Returns the same tensor with `offset` added to every rank of its layout."""
        layout = self.layout.shifted(offset)
        return TensorSpec(self.name, self.shape, self.dtype, layout, self.parts, self.padding)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} {self.layout}"


def _stacks(forms: list[ResolvedForm]) -> list[tuple[Box, bool]]:
    """Returns, per group of forms that cut one stored box alike, the box and if it is complete.

    A slice at a fixed index of a minor digit is not a box, so slices are told apart by their
    indices.

    Raises:
        LayoutError: if two forms are the same slice.
    """
    slices: dict[object, set[tuple[int, ...]]] = {}
    boxes: dict[object, tuple[Box, int]] = {}
    for form in forms:
        digits = [digit for row in form.rows for digit in row.digits]
        key = tuple((row.start, tuple((d.kind, d.size) for d in row.digits)) for row in form.rows)
        here = tuple(digit.value for digit in digits if digit.kind == "index")
        if here in slices.setdefault(key, set()):
            raise LayoutError(f"two parts are slice {here} of the same stack.")
        slices[key].add(here)
        box = Box(tuple(row.start for row in form.rows), tuple(row.extent for row in form.rows))
        boxes[key] = box, math.prod(digit.size for digit in digits if digit.kind == "index")
    return [(box, len(slices[key]) == total) for key, (box, total) in boxes.items()]
