"""Names of tensors, those that differ in numbers only together."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["NameGroups", "split_name"]

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def split_name(name: str) -> tuple[str, tuple[int, ...]]:
    """Returns a name with `*` for its numbers, and the numbers.

    A name of which that could not be undone, such as one with a `*`, stays as it is.

    Example:
        >>> split_name("model.layers.11.mlp.experts.3.up_proj.weight")
        ('model.layers.*.mlp.experts.*.up_proj.weight', (11, 3))
    """
    numbers = _NUMBER.findall(name)
    if "*" in name or any(number != "0" and number[0] == "0" for number in numbers):
        return name, ()
    return _NUMBER.sub("*", name), tuple(map(int, numbers))


class NameGroups:
    """Names by template.

    Attributes:
        templates: names with `*` for numbers, in order of first appearance.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def templates(self) -> list[str]:
        """Names with `*` for numbers, in order of first appearance."""
        return list(self._numbers)

    def group(self, names: Iterable[tuple[str, int]]) -> list[dict[str, object]]:
        """Returns names of one kind by template.

        Args:
            names: (name, turn) of each.

        Returns:
            Per template its number, the numbers of each name one after the other, and the turns.
        """
        groups: dict[int, tuple[list[int], list[int]]] = {}
        for name, turn in names:
            template, numbers = split_name(name)
            index = self._numbers.setdefault(template, len(self._numbers))
            flat, turns = groups.setdefault(index, ([], []))
            flat += numbers
            turns.append(turn)
        return [
            {"template": index, "numbers": flat, "turns": turns}
            for index, (flat, turns) in groups.items()
        ]
