"""Shell-style patterns of names, as users give them."""

from __future__ import annotations

from collections.abc import Iterable

from reshard.errors import LayoutError

__all__ = ["patterns_of"]


def patterns_of(argument: str, given: Iterable[str]) -> tuple[str, ...]:
    """Returns patterns as a tuple.

    Args:
        argument: how messages call them.
        given: the patterns.

    Raises:
        LayoutError: for a text, whose characters would each be a pattern; for what is no text.
    """
    if isinstance(given, str):
        raise LayoutError(f"{argument}={given!r} is one text. Give a list: {argument}=[{given!r}].")
    patterns = tuple(given)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise LayoutError(f"{argument} holds {pattern!r}, which is no text.")
    return tuple(map(str.__str__, patterns))  # texts of other classes cannot be sent
