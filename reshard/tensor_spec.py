"""Everything about one stored tensor: name, shape, element type, layout, and what it means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from reshard.box import Box, whole_numbers
from reshard.dtypes import DType, DTypeLike
from reshard.elementwise import Elementwise
from reshard.errors import LayoutError, UnsupportedError
from reshard.form import Form, ResolvedForm
from reshard.layout import AnyLayout

__all__ = ["Padding", "Part", "PartsLike", "TensorSpec", "read_parts"]

Padding = Literal["refuse", "keep", "zero"]
_PADDINGS = get_args(Padding)


@dataclass(frozen=True, slots=True, init=False)
class Part:
    """A canonical tensor that a stored tensor holds.

    Args:
        name: canonical (Hugging Face) name.
        form: index map from the stored tensor; None means stored as it is.
        aliases: further canonical names of the same elements (tied weights).
        elementwise: how stored values become canonical ones; None, as a rule that changes nothing,
            means that they are the same.

    Raises:
        LayoutError: if a name is no text, `form` is no Form, `aliases` is one string or
            `elementwise` is no Elementwise.
    """

    name: str
    form: Form | None
    aliases: tuple[str, ...]
    elementwise: Elementwise | None

    def __init__(
        self,
        name: str,
        form: Form | None = None,
        aliases: Iterable[str] = (),
        elementwise: Elementwise | None = None,
    ) -> None:
        aliases = tuple(aliases) if _is_list(aliases) else aliases
        _check_part(name, form, aliases)
        if elementwise is not None and not isinstance(elementwise, Elementwise):
            raise LayoutError(
                f"Part({name!r}, elementwise={elementwise!r}): give a reshard.Elementwise or None, "
                f"as in Part({name!r}, elementwise=Elementwise(offset=-1))."
            )
        if elementwise is not None and elementwise.is_identity:
            elementwise = None
        object.__setattr__(self, "name", str.__str__(name))
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "aliases", tuple(map(str.__str__, aliases)))
        object.__setattr__(self, "elementwise", elementwise)

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical name and its aliases."""
        return (self.name, *self.aliases)

    def resolve(self, shape: tuple[int, ...]) -> ResolvedForm:
        """Returns the form in numbers for the stored shape."""
        form = Form.identity(len(shape)) if self.form is None else self.form
        return form.resolve(shape)


def _is_list(given: object) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str)


def _check_part(name: object, form: object, aliases: object) -> None:
    is_form = form is None or isinstance(form, Form)
    are_names = isinstance(aliases, tuple) and all(isinstance(alias, str) for alias in aliases)
    if not (isinstance(name, str) and is_form and are_names):
        raise LayoutError(
            f"Part({name!r}, {form!r}, aliases={aliases!r}): give a name, a reshard.Form or None, "
            'and a tuple of names, as in Part("w", Form("in out -> out in"), aliases=("v",)). '
            "Names are texts."
        )


PartsLike = Part | Form | Iterable[Part]
"""Parts as callers may write them: some, one, or the form of the one of the same name."""


def read_parts(name: str, given: PartsLike, what: str = "parts are") -> tuple[Part, ...]:
    """Returns the parts of the stored tensor `name`; a `Form` stands for `Part(name, form)`.

    Args:
        name: stored name.
        given: its parts.
        what: how messages call them.

    Raises:
        LayoutError: if something else than parts is given.
    """
    if isinstance(given, Form):
        return (Part(name, given),)
    if isinstance(given, Part):
        return (given,)
    parts = _all_parts(given)
    if parts is None:
        raise LayoutError(
            f"{name}: its {what} {given!r}. Give a tuple of reshard.Part, as in "
            f'(Part({name!r}, Form("in out -> out in")),), or the Form alone where the canonical '
            "tensor has the same name."
        )
    return parts


def _all_parts(given: object) -> tuple[Part, ...] | None:
    parts = tuple(given) if isinstance(given, Iterable) else (given,)
    return parts if all(isinstance(part, Part) for part in parts) else None


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """One stored tensor of one side.

    Args:
        name: what the framework calls it.
        shape: global shape, in elements.
        dtype: element type; all that `DType.of` knows, such as `"bfloat16"` or `torch.bfloat16`.
        layout: which rank holds which boxes of it.
        parts: the canonical tensors in it; empty means one of the same name, stored as it is. One
            part may be given alone, and a `Form` alone stands for `Part(name, form)`.
        padding: what elements are that no part covers: an error (`refuse`), left alone (`keep`), or
            set to zero by every refit (`zero`).

    Raises:
        LayoutError: if the name is no text, or layout, parts and shape do not fit each other.
            UnsupportedError: for the dtype, also where a part changes values and it has no casts.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: AnyLayout
    parts: tuple[Part, ...]
    padding: Padding

    def __init__(
        self,
        name: str,
        shape: Iterable[int],
        dtype: DTypeLike,
        layout: AnyLayout,
        parts: PartsLike = (),
        padding: Padding = "refuse",
    ) -> None:
        object.__setattr__(self, "name", _read_name(name))
        object.__setattr__(self, "shape", _read_shape(name, shape))
        object.__setattr__(self, "dtype", DType.of(dtype))
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "parts", read_parts(name, parts) or (Part(name),))
        object.__setattr__(self, "padding", padding)
        self._check()

    def _check(self) -> None:
        """Raises LayoutError or UnsupportedError if layout, parts, shape and dtype do not fit."""
        layout: object = self.layout
        if isinstance(layout, type) or not callable(getattr(layout, "check", None)):
            raise LayoutError(
                f"{self.name}: its layout is {self.layout!r}. Give a reshard.Layout, as in "
                "Layout(Mesh.of(tp=2), (Shard(0),)), a BoxLayout or a SegmentedLayout."
            )
        if min(self.shape, default=0) < 0:
            raise LayoutError(f"{self.name}: shape {self.shape} has a negative number.")
        if self.padding not in _PADDINGS:
            raise LayoutError(
                f"{self.name}: padding {self.padding!r} is unknown; use one of {_PADDINGS}."
            )
        object.__setattr__(self, "padding", str.__str__(self.padding))
        for part in self.parts:
            if part.elementwise is not None and not self.dtype.has_casts:
                raise UnsupportedError(
                    f"{self.name}: {part.elementwise!r} of {part.name!r} changes values, and "
                    f"{self.dtype} has none that can be changed. That is for float16, bfloat16, "
                    "float32, float64, float8_e4m3fn and float8_e5m2; leave the rule out."
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
        return self.placed(self.layout.shifted(offset))

    def placed(self, layout: AnyLayout) -> TensorSpec:
        """Returns the same tensor on other ranks, without another check.

        Args:
            layout: the tensor's own, with other numbers of ranks.
        """
        spec = object.__new__(TensorSpec)
        for name in ("name", "shape", "dtype", "parts", "padding"):
            object.__setattr__(spec, name, getattr(self, name))
        object.__setattr__(spec, "layout", layout)
        return spec

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} {self.layout}"


def _read_name(given: object) -> str:
    if not isinstance(given, str):
        raise LayoutError(
            f"tensor name {given!r} is of type {type(given).__name__}. Names are texts, such as "
            '"model.norm.weight"; a mapping of tensors has them as its keys.'
        )
    return str.__str__(given)


def _read_shape(name: str, given: Iterable[int]) -> tuple[int, ...]:
    try:
        return whole_numbers(given)
    except TypeError:
        raise LayoutError(
            f"{name}: its shape is {given!r}. Give the number of elements along each dim, such as "
            "(4, 6)."
        ) from None


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
