"""How stored tensors relate to canonical (Hugging Face) ones: what users and models give."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reshard import LayoutError, Part

__all__ = ["Forms", "parts_of", "with_aliases"]

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


def with_aliases(
    name: str, parts: tuple[Part, ...], other: str, other_parts: tuple[Part, ...]
) -> tuple[Part, ...]:
    """Returns the parts of a stored tensor with the canonical names of its second name added.

    Raises:
        LayoutError: if the two names say that the same memory means different tensors.
    """
    added: dict[int, tuple[str, ...]] = {}
    for other_part in other_parts:
        index = next((i for i, part in enumerate(parts) if part.form == other_part.form), None)
        if index is None:
            raise LayoutError(
                f"{name} and {other} share memory, but their forms differ: {other_part.form} of "
                f"{other} is no form of {name}. Give both names the same forms, or one name only."
            )
        new = [n for n in other_part.names if n not in parts[index].names]
        added[index] = (*added.get(index, ()), *new)
    return tuple(
        Part(part.name, part.form, (*part.aliases, *added.get(index, ())))
        for index, part in enumerate(parts)
    )
