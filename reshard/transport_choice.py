"""Which transport carries a refit, from what every process says that it holds and wants.

Pure: equal inputs give equal answers, so every member of an epoch chooses the same one by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, cast, get_args

from reshard.errors import LayoutError, UnsupportedError
from reshard.suggestion import did_you_mean

__all__ = ["Chosen", "Transport", "Wish", "check_transport", "choose_transport"]

Transport: TypeAlias = Literal["auto", "shm", "nccl"]
"""What a user may ask for: `auto` goes by the memory that the tensors are in."""

Chosen: TypeAlias = Literal["local", "shm", "nccl"]

_TRANSPORTS: Final = get_args(Transport)
_MAX_LISTED: Final = 4


class Wish(NamedTuple):
    """What one process brings to the choice.

    Attributes:
        transport: what its user asked for.
        holds_host: whether any of its arrays is in host memory.
        holds_cuda: whether any of them is in the memory of a CUDA device. A process whose ranks
            have no elements holds neither, and goes along with the others.
        problem: why it cannot use NCCL; empty if it can, or if it was never looked at.
    """

    transport: Transport
    holds_host: bool
    holds_cuda: bool
    problem: str = ""


def check_transport(given: object) -> Transport:
    """Returns the transport that a user asks for.

    Raises:
        LayoutError: if there is none of this name.
    """
    if isinstance(given, str) and given in _TRANSPORTS:
        return cast(Transport, given)
    hint = did_you_mean(given.lower(), _TRANSPORTS) if isinstance(given, str) else ""
    listed = ", ".join(map(repr, _TRANSPORTS))
    raise LayoutError(f"transport={given!r} is none of {listed}.{hint}")


def choose_transport(names: Sequence[str], wishes: Sequence[Wish]) -> Chosen:
    """Returns the transport of an epoch: `local` where one process has everything in host memory.

    Where nobody holds anything, no bytes move, and what would carry them is not asked.

    Args:
        names: per process, how messages call it.
        wishes: per process, what it holds and asks for.

    Raises:
        UnsupportedError: naming the processes that are in the way, and what to do.
    """
    asked = {t: _who(names, [w.transport == t for w in wishes]) for t in ("shm", "nccl")}
    if asked["shm"] and asked["nccl"]:
        raise UnsupportedError(
            f"{asked['shm']} asked for transport='shm' and {asked['nccl']} for transport='nccl'. "
            "A refit has one transport: ask for the same on both sides, or for 'auto'."
        )
    on_host = _who(names, [wish.holds_host for wish in wishes])
    on_cuda = _who(names, [wish.holds_cuda for wish in wishes])
    wanted = "nccl" if asked["nccl"] else "shm" if asked["shm"] else ""
    if on_host and on_cuda:
        raise UnsupportedError(
            f"the weights of {on_host} are in host memory and those of {on_cuda} on GPUs; a refit "
            "moves between memories of one kind. Move one side: to GPUs (module.cuda(), "
            "jax.device_put), for NCCL, or to the host (module.cpu(), "
            "jax.device_put(x, x.sharding.with_memory_kind('pinned_host'))), for shared memory."
        )
    if on_cuda and wanted == "shm":
        raise UnsupportedError(
            f"{asked['shm']} asked for transport='shm', which moves host memory, but the weights "
            f"of {on_cuda} are on GPUs. Ask for 'nccl' or 'auto', or move the weights to the host."
        )
    if wanted == "nccl":
        _check_nccl(names, wishes, asked["nccl"], on_host)
    elif on_cuda:
        _check_usable(names, wishes)
    if on_cuda:
        return "nccl"
    return "local" if len(wishes) == 1 else "shm"


def _check_nccl(names: Sequence[str], wishes: Sequence[Wish], asked: str, on_host: str) -> None:
    """Refuses NCCL that was asked for where it cannot be; what is missing is said first."""
    _check_usable(names, wishes)
    if on_host:
        raise UnsupportedError(
            f"{asked} asked for transport='nccl', which moves GPU memory, but the weights of "
            f"{on_host} are in host memory. Move them to GPUs (module.cuda(), jax.device_put), or "
            "ask for 'shm' or 'auto'."
        )


def _check_usable(names: Sequence[str], wishes: Sequence[Wish]) -> None:
    for name, wish in zip(names, wishes, strict=True):
        if wish.problem:
            raise UnsupportedError(f"{name}: {wish.problem}")


def _who(names: Sequence[str], are_meant: Sequence[bool]) -> str:
    """Returns the names of some processes, the first few of many; empty if there is none."""
    meant = [name for name, is_meant in zip(names, are_meant, strict=True) if is_meant]
    more = len(meant) - _MAX_LISTED
    rest = [f"{more} more"] if more > 0 else []
    listed = meant[:_MAX_LISTED] + rest
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} and {listed[-1]}"
