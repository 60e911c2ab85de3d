"""Which copy of NCCL each process of a communicator takes, so that all run one version.

NCCL refuses a communicator whose ranks run different versions. A trainer's and an engine's
environment usually have different ones, but often more than one each: what a framework loaded, an
installed wheel, the system's. Pure: equal inputs give equal answers on every process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from reshard.errors import UnsupportedError
from reshard.library_files import Origin

__all__ = ["NcclOffer", "choose_nccl", "nccl_version_text"]

_Version: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class NcclOffer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A copy of NCCL that a process could take, as it travels to the others.

    Attributes:
        path: of the file on the machine of the process; the bare name where only the loader knows.
        version: as NCCL counts it: 23203 is 2.32.3.
        origin: how it was found.
        is_loaded: whether the process has it open already. Another one costs memory and threads.
    """

    path: str
    version: _Version
    origin: Origin
    is_loaded: bool


def nccl_version_text(version: int) -> str:
    """Returns "2.32.3" for 23203, as NCCL counts since 2.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def choose_nccl(
    names: Sequence[str], offers: Sequence[Sequence[NcclOffer]]
) -> tuple[NcclOffer, ...]:
    """Returns one copy per process, all of one version.

    If the copies that the processes have loaded first are of one version, these; else the highest
    version that every process has, loaded copies first. A copy that `RESHARD_NCCL_LIBRARY` names
    is the only one of its process.

    Args:
        names: per process, how messages call it.
        offers: per process, its copies, the one that it likes best first.

    Raises:
        UnsupportedError: if no version is everywhere; names them and the command that mends it.

    Example:
        >>> torch = [NcclOffer("/t/libnccl.so.2", 22705, "loaded", True)]
        >>> jax = [NcclOffer("/j/libnccl.so.2", 23007, "loaded", True),
        ...        NcclOffer("/w/libnccl.so.2", 22705, "wheel", False)]
        >>> [copy.path for copy in choose_nccl(["engine", "trainer"], [torch, jax])]
        ['/t/libnccl.so.2', '/w/libnccl.so.2']
    """
    usable = [_usable(own) for own in offers]
    loaded = [next((offer for offer in own if offer.is_loaded), None) for own in usable]
    first = [offer for offer in loaded if offer is not None]
    if len(first) == len(usable) and len({offer.version for offer in first}) <= 1:
        return tuple(first)
    common = _common(usable)
    if not common:
        raise UnsupportedError(_nothing_common(names, usable))
    version = max(common)
    return tuple(_best_of(own, version) for own in usable)


def _usable(own: Sequence[NcclOffer]) -> list[NcclOffer]:
    named = [offer for offer in own if offer.origin == "named"]
    return named[:1] or list(own)


def _common(usable: Sequence[Sequence[NcclOffer]]) -> set[int]:
    versions = [{offer.version for offer in own} for own in usable]
    return set.intersection(*versions) if versions else set()


def _best_of(own: Sequence[NcclOffer], version: int) -> NcclOffer:
    found = [offer for offer in own if offer.version == version]
    return min(found, key=lambda offer: not offer.is_loaded)  # the first of equals


def _nothing_common(names: Sequence[str], usable: Sequence[Sequence[NcclOffer]]) -> str:
    counts = Counter(version for own in usable for version in {offer.version for offer in own})
    lines = [
        f"\n  {name}: {', '.join(map(_describe, own)) or 'none'}"
        for name, own in _grouped(names, usable)
    ]
    text = (
        "the processes have no version of NCCL in common, and NCCL refuses a communicator of "
        f"unequal versions:{''.join(lines)}"
    )
    if not counts:
        return f"{text}\nInstall one everywhere: {_command('')}."
    # What the most processes have, so that the fewest environments change.
    version = max(counts, key=lambda each: (counts[each], each))
    lacking = [(n, own) for n, own in zip(names, usable, strict=True) if not _has(own, version)]
    named = [name for name, own in lacking if own and own[0].origin == "named"]
    others = [name for name, own in lacking if own and own[0].origin != "named"]
    without = [name for name, own in lacking if not own]
    pin = nccl_version_text(version)
    if without:
        text += f"\nIn the environment of {_listed(without)}: {_command(f'=={pin}')}."
    if others:
        text += (
            f"\nFor {_listed(others)}, beside the copy that its framework needs: "
            f"{_command(f'=={pin}', f'--no-deps --target nccl-{pin} ')}, then start it with "
            f"RESHARD_NCCL_LIBRARY=$PWD/nccl-{pin}/nvidia/nccl/lib/libnccl.so.2."
        )
    if named:
        text += (
            f"\n{_listed(named)} takes the copy that its RESHARD_NCCL_LIBRARY names and no other: "
            f"name one of {pin} there, or unset it."
        )
    return text


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (" and others" if names[_MAX_LISTED:] else "")


_MAX_LISTED = 4


def _has(own: Sequence[NcclOffer], version: int) -> bool:
    return any(offer.version == version for offer in own)


def _command(pin: str, options: str = "") -> str:
    return f"pip install {options}nvidia-nccl-cu12{pin} (with CUDA 13: nvidia-nccl-cu13{pin})"


def _describe(offer: NcclOffer) -> str:
    state = "loaded" if offer.is_loaded else "not loaded"
    origin = "RESHARD_NCCL_LIBRARY, " if offer.origin == "named" else ""
    return f"{nccl_version_text(offer.version)} ({origin}{offer.path}, {state})"


def _grouped(
    names: Sequence[str], usable: Sequence[Sequence[NcclOffer]]
) -> list[tuple[str, Sequence[NcclOffer]]]:
    """Returns the names of processes that have the same copies in one line."""
    groups: dict[tuple[NcclOffer, ...], list[str]] = {}
    for name, own in zip(names, usable, strict=True):
        groups.setdefault(tuple(own), []).append(name)
    return [
        (first[0] + (f" and {len(first) - 1} more" if first[1:] else ""), own)
        for own, first in groups.items()
    ]
