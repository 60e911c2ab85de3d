"""How leaves relate to canonical (Hugging Face) tensors: the type that users and models give."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reshard import LayoutError, Part

__all__ = ["Forms", "parts_of"]

Forms = (
    Callable[[str, tuple[int, ...]], tuple[Part, ...] | None]
    | Mapping[str, tuple[Part, ...] | None]
)
"""Stored name and global shape -> the canonical tensors in the leaf; None means stored as it is."""


def parts_of(forms: Forms | None, name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Returns the parts of one leaf; one of the same name where the forms do not say.

    Raises:
        LayoutError: if the forms give something else than parts.
    """
    if forms is None:
        return (Part(name),)
    given = forms.get(name) if isinstance(forms, Mapping) else forms(name, shape)
    if given is None:
        return (Part(name),)
    parts = tuple(given)
    if not parts or not all(isinstance(part, Part) for part in parts):
        raise LayoutError(
            f"{name}: its form is {given!r}. Give a tuple of reshard.Part, or None for a leaf that "
            "is stored as it is."
        )
    return parts
