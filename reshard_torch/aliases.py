"""Several names of one memory, as tied weights have them."""

from __future__ import annotations

from reshard import LayoutError, Part

__all__ = ["with_aliases"]


def with_aliases(
    name: str, parts: tuple[Part, ...], other: str, other_parts: tuple[Part, ...]
) -> tuple[Part, ...]:
    """Returns the parts of a stored tensor with the canonical names of its second name added.

    Raises:
        LayoutError: if the two names say that the same memory means different tensors.
    """
    added: dict[int, tuple[str, ...]] = {}
    for other_part in other_parts:
        meaning = other_part.form, other_part.elementwise
        index = next(
            (i for i, part in enumerate(parts) if (part.form, part.elementwise) == meaning), None
        )
        if index is None:
            if any(part.form == other_part.form for part in parts):
                raise LayoutError(
                    f"{name} and {other} share memory, but their values differ: "
                    f"elementwise={other_part.elementwise!r} of {other} is no rule of {name}. Give "
                    "both names the same rules, or one name only."
                )
            raise LayoutError(
                f"{name} and {other} share memory, but their forms differ: {other_part.form} of "
                f"{other} is no form of {name}. Give both names the same forms, or one name only."
            )
        new = [n for n in other_part.names if n not in parts[index].names]
        added[index] = (*added.get(index, ()), *new)
    return tuple(
        Part(part.name, part.form, (*part.aliases, *added.get(index, ())), part.elementwise)
        for index, part in enumerate(parts)
    )
