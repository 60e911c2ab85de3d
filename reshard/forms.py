"""What users and ready-made models say about canonical (Hugging Face) tensors in stored ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from reshard.errors import LayoutError
from reshard.tensor_spec import Padding, Part, PartsLike, read_parts

__all__ = ["Forms", "Paddings", "check_names", "padding_of", "parts_of"]

Forms = Callable[[str, tuple[int, ...]], PartsLike | None] | Mapping[str, PartsLike | None]
"""Stored name and global stored shape -> the canonical tensors in it; None: stored as it is.

They are a tuple of `Part`; one `Part`; or a `Form`, where the one canonical tensor is called as the
stored one.
"""

Paddings = Padding | Mapping[str, Padding]
"""What stored elements are that no canonical tensor covers: of all tensors, or by stored name."""


def parts_of(forms: Forms | None, name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Returns the parts of one stored tensor; one of the same name where the forms do not say.

    Raises:
        LayoutError: if the forms give something else than parts.

    Example:
        >>> from reshard.form import Form
        >>> forms = {"kernel": Part("weight"), "w": Form("in out -> out in")}
        >>> [parts_of(forms, name, (2, 3))[0].name for name in ("kernel", "w", "bias")]
        ['weight', 'w', 'bias']
    """
    given = None
    if forms is not None:
        given = forms.get(name) if isinstance(forms, Mapping) else forms(name, shape)
    if given is None:
        return (Part(name),)
    parts = read_parts(name, given, "form is")
    if not parts:
        raise LayoutError(
            f"{name}: its form is {given!r}. Give a tuple of reshard.Part, or None for a tensor "
            "that is stored as it is."
        )
    return parts


def padding_of(paddings: Paddings, name: str) -> Padding:
    """Returns the padding of one stored tensor; `refuse` where a mapping does not name it."""
    return paddings if isinstance(paddings, str) else paddings.get(name, "refuse")


def check_names(argument: str, given: object, names: Collection[str]) -> None:
    """Refuses a mapping that names tensors which are not there.

    Raises:
        LayoutError: listing them.
    """
    unknown = sorted(set(given) - set(names), key=str) if isinstance(given, Mapping) else []
    if unknown:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise LayoutError(
            f"{argument} name tensors that are not there: {', '.join(map(str, unknown[:10]))}. "
            f"There are {', '.join(sorted(names)[:5])}{more}."
        )
