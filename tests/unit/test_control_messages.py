"""Messages come back as they were sent; everything else is refused, whatever its bytes are."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.control_messages import (
    Begin,
    Bye,
    Done,
    Fail,
    Failed,
    Gathered,
    Hello,
    Member,
    MessageError,
    Post,
    ProtocolVersionError,
    Reply,
    Request,
    Started,
    Unknown,
    Welcome,
    Withdraw,
    decode_reply,
    decode_request,
    encode,
    encode_refusal,
)
from reshard.error_report import ErrorReport
from reshard.errors import RendezvousError

MEMBER = Member("source", "trainer", 1, 2, (2, 3), 4, "host", 12, "0.1.0")
REPORT = ErrorReport("TransferTimeout", "silent", 1, 2, 3, 4)
PREFIX = b"reshard-control/2\n"

REQUESTS: list[Request] = [
    Hello(request=1, member=MEMBER, min_destinations=2, last_epoch=7),
    Begin(request=2, timeout_s=1.5, known_epoch=3, version=9),
    Post(request=3, epoch=1, refit=2, name="done", timeout_s=0.0),
    Fail(request=4, epoch=1, refit=2, error=REPORT, culprit=0),
    Withdraw(request=5),
    Bye(request=6),
]
REPLIES: list[Reply] = [
    Welcome(request=1, max_message_bytes=64),
    Started(request=2, epoch=1, refit=1, version=None, process=0, members=(MEMBER, MEMBER)),
    Started(request=2, epoch=1, refit=1, version=5, process=0, members=None),
    Gathered(request=3),
    Done(request=4),
    Failed(request=5, error=REPORT),
    Unknown(request=6),
]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_request_comes_back_as_it_was_sent(message: Request) -> None:
    assert decode_request(encode(message)) == message


@pytest.mark.parametrize("message", REPLIES, ids=lambda message: type(message).__name__)
def test_a_reply_comes_back_as_it_was_sent(message: Reply) -> None:
    assert decode_reply(encode(message)) == message


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_every_truncation_is_refused(message: Request) -> None:
    frame = encode(message)
    for length in range(len(frame)):
        with pytest.raises((MessageError, ProtocolVersionError)):
            decode_request(frame[:length])
    with pytest.raises(MessageError):
        decode_request(frame + b"\x00")


def test_a_reply_is_not_a_request() -> None:
    with pytest.raises(MessageError):
        decode_request(encode(Done(request=1)))
    with pytest.raises(MessageError):
        decode_reply(encode(Bye(request=1)))


def _hello(**changes: object) -> list[object]:
    """Returns the fields of a hello as they travel, with some changed."""
    member: dict[str, object] = {
        "role": "source",
        "group": "g",
        "process": 0,
        "num_processes": 1,
        "ranks": [0],
        "num_ranks": 1,
        "host": "h",
        "pid": 1,
        "library_version": "0",
    }
    member.update(changes)
    return [1, list(member.values()), 1, 0, 1]


def test_the_fields_of_a_hello_are_as_this_test_writes_them() -> None:
    assert isinstance(decode_request(PREFIX + msgspec.msgpack.encode(_hello())), Hello)


@pytest.mark.parametrize(
    "body",
    [
        _hello(role="trainer"),
        _hello(group=""),
        _hello(group="x" * 257),
        _hello(process=-1),
        _hello(process=1 << 31),
        _hello(num_processes=0),
        _hello(ranks=[]),
        _hello(ranks=[-1]),
        _hello(ranks="0"),
        _hello(ranks=[0] * 65537),
        _hello(pid="1"),
        [*_hello()[:3], 1 << 30, 1],
        [2, float("nan"), 0, None, 1],
        [2, float("inf"), 0, None, 1],
        [2, -1.0, 0, None, 1],
        [2, 1.0, -1, None, 1],
        [2, 1.0, 0, 1 << 62, 1],
        [2, 1.0, 1 << 31, None, 1],
        [6],
        [6, -1],
        [6, 1, 1],
        [99, 1],
        {"request": 1},
        [],
        None,
        7,
    ],
    ids=lambda body: str(body)[:40],
)
def test_a_field_out_of_its_bounds_is_refused(body: object) -> None:
    with pytest.raises(MessageError):
        decode_request(PREFIX + msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (_hello(group=""), 1),
        ([2, float("nan"), 0, None, 5], 5),
        ([99, 6], 6),
        ([6, -1], None),
        ([6, "1"], None),
        ([], None),
        ({"request": 1}, None),
        ([0] * 16, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refused_request_keeps_its_number(body: object, number: int | None) -> None:
    with pytest.raises(MessageError) as caught:
        decode_request(PREFIX + msgspec.msgpack.encode(body))
    assert caught.value.request == number


def test_a_run_has_an_id_in_every_epoch_that_can_travel() -> None:
    largest = (1 << 31) - 1
    members = (MEMBER,)
    for epoch in (largest, largest + 1):
        frame = encode(
            Started(request=1, epoch=epoch, refit=1, version=None, process=0, members=members)
        )
        if epoch << 32 < 1 << 63:
            decode_reply(frame)
        else:
            with pytest.raises(MessageError):
                decode_reply(frame)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_decode_or_be_refused(body: bytes) -> None:
    for frame in (body, PREFIX + body):
        for decode in (decode_request, decode_reply):
            try:
                decode(frame)
            except RendezvousError:
                continue


def test_another_version_is_told_from_nonsense() -> None:
    with pytest.raises(ProtocolVersionError, match="version 3 meets version 2"):
        decode_request(b"reshard-control/3\nwhatever that is")
    with pytest.raises(ProtocolVersionError, match="version 3 meets version 2"):
        decode_reply(b"reshard-control/3\nwhatever that is")
    with pytest.raises(MessageError, match="starts with b'GET / HTTP"):
        decode_request(b"GET / HTTP/1.1\r\n")


def test_a_refusal_is_understood_without_knowing_the_version() -> None:
    with pytest.raises(ProtocolVersionError, match=r"^version 7 meets version 2$"):
        decode_reply(encode_refusal("version 7 meets version 2"))
    assert encode_refusal("x") == b"reshard-control/refused\nx"


def test_a_member_is_a_value() -> None:
    assert eval(repr(MEMBER)) == MEMBER
    assert pickle.loads(pickle.dumps(MEMBER)) == MEMBER
    assert len({MEMBER, msgspec.structs.replace(MEMBER)}) == 1


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((0,), "rank 0"),
        ((0, 1, 2), "ranks 0-2"),
        ((0, 1, 5, 7, 8), "ranks 0-1, 5, 7-8"),
        ((0, 2, 4, 6, 8), "ranks 0, 2, 4, 6, ..."),
    ],
)
def test_a_member_is_described_with_its_ranks(ranks: tuple[int, ...], text: str) -> None:
    member = msgspec.structs.replace(MEMBER, ranks=ranks)
    assert member.describe() == f"source 'trainer' process 1 ({text}, pid 12 on host)"
