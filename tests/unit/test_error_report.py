"""An error arrives as an error of the same class, whoever raised it."""

from __future__ import annotations

import os

import msgspec
import pytest

from reshard import errors
from reshard.control_messages import Member
from reshard.error_report import ErrorReport, rebuild_error, report_error


@pytest.mark.parametrize("name", errors.__all__)
def test_every_class_arrives_as_itself(name: str) -> None:
    kind = getattr(errors, name)
    error = rebuild_error(report_error(kind("what is wrong")))
    assert type(error) is kind
    assert str(error) == "what is wrong"


def test_the_fields_of_a_transport_error_arrive() -> None:
    error = rebuild_error(report_error(errors.TransferTimeout("late", rank=3, peer=5, status=7)))
    assert isinstance(error, errors.TransferTimeout)
    assert (error.rank, error.peer, error.status) == (3, 5, 7)


def test_an_error_of_somebody_else_is_named() -> None:
    error = rebuild_error(report_error(KeyError("wq"), origin="process 3", process=3))
    assert type(error) is errors.RendezvousError
    assert str(error) == "process 3: KeyError: 'wq'"
    assert str(rebuild_error(report_error(KeyboardInterrupt()))) == "KeyboardInterrupt"


def test_a_subclass_arrives_as_the_class_that_is_promised() -> None:
    class OwnError(errors.PlanError):
        pass

    report = report_error(OwnError("what is wrong"))
    assert report == ErrorReport("PlanError", "what is wrong")


def test_a_class_of_a_later_version_arrives_as_a_rendezvous_error() -> None:
    error = rebuild_error(ErrorReport("NewKindOfError", "what is wrong"))
    assert type(error) is errors.RendezvousError
    assert str(error) == "NewKindOfError: what is wrong"


def test_a_text_has_a_limit() -> None:
    report = report_error(errors.PlanError("x" * 100_000 + "end"))
    assert len(report.message) <= 16384
    assert report.message.startswith("xxx")
    assert report.message.endswith("xend")
    assert "(100003 characters)" in report.message


@pytest.mark.parametrize("kind", [errors.PlanError, OSError])
def test_a_text_that_utf_8_cannot_encode_arrives_with_escapes(kind: type[Exception]) -> None:
    error = kind("cannot read " + os.fsdecode(b"caf\xe9.bin"))
    report = report_error(error, origin="process \udce9")
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=ErrorReport)
    assert arrived.message.startswith("process \\udce9: ")
    assert arrived.message.endswith("cannot read caf\\udce9.bin")


def test_a_text_at_its_limit_still_fits_behind_the_longest_name_of_a_process() -> None:
    member = Member("source", "\x01" * 256, 0, 1, (0,), 1, "h" * 256, 1, "0")
    report = report_error(errors.PlanError("x" * 100_000))
    told = msgspec.structs.replace(report, message=f"{member.describe()}: {report.message}")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=ErrorReport) == told
