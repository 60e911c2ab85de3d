"""What users and ready-made models say about canonical (Hugging Face) tensors in stored ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence

from reshard.errors import LayoutError
from reshard.tensor_spec import Padding, Part, PartsLike, read_parts

__all__ = [
    "Forms",
    "Paddings",
    "check_config",
    "check_forms",
    "check_names",
    "padding_of",
    "parts_of",
]

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


def check_forms(forms: object, names: Collection[str]) -> None:
    """Refuses forms that can say nothing of a tensor, and those of tensors that are not there.

    Raises:
        LayoutError: saying what was given instead.
    """
    if forms is None:
        return
    remedy = (
        "Give a mapping from stored names, or a function of a stored name and its shape, such as "
        "reshard_torch.models.transformers_qwen3(model.config)."
    )
    if isinstance(forms, Mapping):
        check_names("forms", forms, names)
        return
    if not callable(forms):
        raise LayoutError(f"forms={forms!r:.80} is neither a mapping nor a function. {remedy}")
    try:
        inspect.signature(forms).bind("name", ())
    except TypeError as error:
        name = getattr(forms, "__name__", repr(forms))
        raise LayoutError(
            f"forms={name} cannot be called with a name and a shape: {error}. {remedy}"
        ) from error
    except ValueError:
        return  # a function of C, which does not say


def check_config(function: str, config: object, attributes: Sequence[str], wanted: str) -> None:
    """Refuses a configuration of another kind than that of a ready-made model.

    Args:
        function: that was called.
        config: what it was given.
        attributes: that are read.
        wanted: what it should have been given.

    Raises:
        LayoutError: naming what is not there.
    """
    missing = [name for name in attributes if not hasattr(config, name)]
    if missing:
        kind = type(config)
        raise LayoutError(
            f"{function}: a {kind.__module__}.{kind.__qualname__} has no "
            f"{' and no '.join(missing)}. Give {wanted}."
        )


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
