"""An error in a form that can be sent, and the same kind of error again at the other end."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from reshard import errors

__all__ = ["ErrorReport", "encodable", "rebuild_error", "report_error"]

_MAX_TEXT_LENGTH: Final = 16384
_MAX_OWN_TEXT_LENGTH: Final = 12288  # the store puts the name of the process in front

_CLASSES: Final[dict[str, type[errors.ReshardError]]] = {
    name: getattr(errors, name) for name in errors.__all__
}


class ErrorReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One error of one process.

    Attributes:
        kind: name of the class in `reshard.errors`.
        message: the text, with the process that reports in front.
        process: index of the process that reports, or None where no single one does.
        rank: as in `TransportError`; so are `peer` and `status`.
    """

    kind: Annotated[str, msgspec.Meta(max_length=64)]
    message: Annotated[str, msgspec.Meta(max_length=_MAX_TEXT_LENGTH)]
    process: int | None = None
    rank: int | None = None
    peer: int | None = None
    status: int | None = None


def report_error(
    error: BaseException, *, origin: str | None = None, process: int | None = None
) -> ErrorReport:
    """Returns the report of an error; a class that is not of this library is named in the text.

    Args:
        error: what was raised.
        origin: who reports, put in front of the text; None leaves the text as it is.
        process: index of the process that reports.
    """
    kind, text = _kind_of(error), str(error)
    if not isinstance(error, errors.ReshardError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    message = _shorten(encodable(text if origin is None else f"{origin}: {text}"))
    if isinstance(error, errors.TransportError):
        return ErrorReport(kind, message, process, error.rank, error.peer, error.status)
    return ErrorReport(kind, message, process)


def rebuild_error(report: ErrorReport) -> errors.ReshardError:
    """Returns a new error of the reported class; an unknown class becomes a RendezvousError."""
    kind = _CLASSES.get(report.kind)
    if kind is None:
        return errors.RendezvousError(f"{report.kind}: {report.message}")
    if issubclass(kind, errors.TransportError):
        return kind(report.message, rank=report.rank, peer=report.peer, status=report.status)
    return kind(report.message)


def _kind_of(error: BaseException) -> str:
    """Returns the class of ours that an error is of, else RendezvousError."""
    for ancestor in type(error).__mro__:
        if _CLASSES.get(ancestor.__name__) is ancestor:
            return ancestor.__name__
    return errors.RendezvousError.__name__


def encodable(text: str) -> str:
    """Returns a text that UTF-8 can encode, with escapes for lone surrogates.

    `os.fsdecode` makes these of file names that are not UTF-8, and errors name files.
    """
    return text.encode(errors="backslashreplace").decode()


def _shorten(text: str) -> str:
    if len(text) <= _MAX_OWN_TEXT_LENGTH:
        return text
    half = _MAX_OWN_TEXT_LENGTH // 2 - 32
    return f"{text[:half]} ... ({len(text)} characters) ... {text[-half:]}"
