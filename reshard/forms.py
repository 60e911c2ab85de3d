"""What users and ready-made models say about canonical (Hugging Face) tensors in stored ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reshard.errors import LayoutError
from reshard.tensor_spec import Part

__all__ = ["Forms", "parts_of"]

Forms = (
    Callable[[str, tuple[int, ...]], tuple[Part, ...] | None]
    | Mapping[str, tuple[Part, ...] | None]
)
"""Stored name and global stored shape -> the canonical tensors in it; None: stored as it is."""


def parts_of(forms: Forms | None, name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Returns the parts of one stored tensor; one of the same name where the forms do not say.

    Raises:
        LayoutError: if the forms give something else than parts.
    """
    given = None
    if forms is not None:
        given = forms.get(name) if isinstance(forms, Mapping) else forms(name, shape)
    if given is None:
        return (Part(name),)
    parts = tuple(given)
    if not parts or not all(isinstance(part, Part) for part in parts):
        raise LayoutError(
            f"{name}: its form is {given!r}. Give a tuple of reshard.Part, or None for a tensor "
            "that is stored as it is."
        )
    return parts
