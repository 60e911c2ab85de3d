"""Every exception that reshard raises, and what the caller may do about it.

Each class is also the built-in kind that a caller would expect, so both families can be caught.
"""

from __future__ import annotations

__all__ = [
    "LayoutError",
    "NativeLibraryError",
    "PlanError",
    "RendezvousError",
    "ReshardError",
    "TransferTimeout",
    "TransportError",
    "UnsupportedError",
    "VerificationError",
]


class ReshardError(Exception):
    """Any error of this library; catch it to catch all of them."""


class LayoutError(ReshardError, ValueError):
    """A value does not describe a tensor (box, mesh, layout, form, buffer).

    Fix the call; nothing was sent.
    """


class PlanError(ReshardError, ValueError):
    """Two sides do not fit (names, shapes, dtypes, coverage, digests).

    Fix the call; nothing was sent.
    """


class UnsupportedError(ReshardError, NotImplementedError):
    """Something this version does not do; the message names the limit and another route."""


class TransportError(ReshardError, RuntimeError):
    """Bytes could not be moved; the communicator is closed and has to be opened anew on every rank.

    Attributes:
        rank: the rank that reports, or None where the process drives several.
        peer: the rank at the other end, or None where no single one is known.
        status: the native status code, or None where the error did not come from native code.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        peer: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.status = status


class TransferTimeout(TransportError, TimeoutError):
    """A deadline passed; the message says who was silent."""


class RendezvousError(TransportError):
    """The control plane failed: nobody at the address, a refused token, a member that left."""


class NativeLibraryError(ReshardError, ImportError):
    """A native library is missing or unusable; install it or point to it."""


class VerificationError(ReshardError, RuntimeError):
    """Source and destination, or two replicas, hold different values after a refit.

    The destination is torn until the next full refit; the message names every tensor that differs.
    """
