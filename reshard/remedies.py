"""What to do about sides that do not pair up, in words."""

from __future__ import annotations

from collections.abc import Iterable

from reshard.dtypes import DType

__all__ = ["listed", "remedies"]

_MAX_LISTED = 20


def listed(problems: list[str]) -> str:
    """Returns the problems of one kind, one per line, cut after a number of them."""
    more = len(problems) - _MAX_LISTED
    rest = [f"... and {more} more like the last"] if more > 0 else []
    return "".join(f"\n  {line}" for line in problems[:_MAX_LISTED] + rest)


def remedies(
    num_problems: int,
    missing_casts: Iterable[tuple[DType, DType]],
    unused: list[str],
    uncovered: list[str],
) -> str:
    """Returns what to do about all problems of a kind at once, one line per kind that is there."""
    text = ""
    rules = ", ".join(f"({str(a)!r}, {str(b)!r})" for a, b in missing_casts)
    if rules and num_problems > 1:  # a single problem has said it
        text += f"\nTo convert between dtypes, pass casts=[{rules}]."
    if unused or uncovered:
        text += (
            "\nCheck the forms (names are Hugging Face names), or allow names with "
            "allow_unmatched=[...]."
        )
    for side, names, others in (
        ("source", unused, uncovered),
        ("destination", uncovered, unused),
    ):
        prefix = _common_prefix(names, others)
        if prefix:
            text += (
                f"\nNames of the {side} are those of the other side with {prefix!r} in front: give "
                "the part of the model below it, or forms that leave it out."
            )
    return text


def _common_prefix(names: list[str], others: list[str]) -> str:
    """Returns what stands in front of most names and of none of their partners; or nothing."""
    if not (names and others):
        return ""
    partners = set(others)
    first = names[0]
    starts = [at + 1 for at, character in enumerate(first) if character == "."]
    prefix = next((first[:at] for at in starts if first[at:] in partners), "")
    num_pairs = sum(name.startswith(prefix) and name[len(prefix) :] in partners for name in names)
    return prefix if prefix and 2 * num_pairs >= len(names) else ""
