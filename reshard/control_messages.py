"""The messages between a process and the store, and how they are written and read.

One message is one ZeroMQ message: a header frame (a prefix that names the protocol version, then
msgpack) and, where bytes of the caller travel, one frame for each of them, untouched. Every field
is typed and bounded; what does not decode is a `MessageError`. The prefix and the form of a refusal
never change, so that two versions can at least tell each other apart.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from reshard.error_report import ErrorReport
from reshard.errors import RendezvousError

__all__ = [
    "MAX_NAME_LENGTH",
    "MAX_RANKS_PER_PROCESS",
    "MAX_SEEN_EPOCH",
    "PROTOCOL_VERSION",
    "Begin",
    "Bye",
    "Done",
    "Ended",
    "Fail",
    "Failed",
    "Gathered",
    "Hello",
    "Member",
    "MessageError",
    "Post",
    "ProtocolVersionError",
    "Refuse",
    "Reply",
    "Request",
    "Role",
    "Started",
    "Unknown",
    "Welcome",
    "Withdraw",
    "decode_reply",
    "decode_request",
    "encode",
    "encode_refusal",
]

PROTOCOL_VERSION: Final = 2

_FAMILY: Final = b"reshard-control/"
_PREFIX: Final = _FAMILY + b"%d\n" % PROTOCOL_VERSION
_REFUSAL: Final = _FAMILY + b"refused\n"
_SHORT_ARRAY: Final = 0x90  # msgpack: the upper four bits; the lower ones are the length

Role: TypeAlias = Literal["source", "destination"]
_Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
# An epoch and the number of a refit in it make one signed 64-bit number, the id of a run. What a
# process has seen is bounded below that, so that the store can go on counting from there.
MAX_SEEN_EPOCH: Final = (1 << 30) - 1
_Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_SeenEpoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEEN_EPOCH)]
MAX_NAME_LENGTH: Final = 256
MAX_RANKS_PER_PROCESS: Final = 65536
_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
_Ranks: TypeAlias = Annotated[
    tuple[_Index, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS_PER_PROCESS)
]


class MessageError(RendezvousError):
    """Bytes that are not a message of this protocol.

    Attributes:
        request: the number that a request has in spite of it, or None.
    """

    request: int | None = None


class ProtocolVersionError(RendezvousError):
    """A message of another version of this protocol."""


class Member(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One process of one program, as it introduced itself.

    Attributes:
        role: side of the refit that the program is.
        group: name of the program; unique among the programs that are connected.
        process: index of the process in its program.
        num_processes: processes of the program.
        ranks: ranks of the program that this process drives.
        num_ranks: ranks of the program.
        host: name of its machine.
        pid: its process id there.
        library_version: version of reshard that it runs.
    """

    role: Role
    group: _Name
    process: _Index
    num_processes: _Count
    ranks: _Ranks
    num_ranks: _Count
    host: _Name
    pid: _Index
    library_version: _Name

    def describe(self) -> str:
        """Returns how messages name the process."""
        return (
            f"{self.role} {self.group!r} process {self.process} "
            f"({_describe_ranks(self.ranks)}, pid {self.pid} on {self.host})"
        )


class _Message(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """A message; `request` numbers a process's requests, and a reply repeats the number."""

    request: _Number


class Hello(_Message, frozen=True, tag=1):
    """Registers a process.

    Attributes:
        member: who it is.
        min_destinations: from a source, how many complete destinations a refit needs.
        last_epoch: largest epoch that the process has seen; later ones will be larger.
    """

    member: Member
    min_destinations: _Count = 1
    last_epoch: _SeenEpoch = 0


class Begin(_Message, frozen=True, tag=2):
    """Takes part in the next refit; one frame: the payload for all members.

    Attributes:
        timeout_s: how long the process waits.
        known_epoch: epoch whose list of members the process holds already; 0 for none.
        version: from a source, the version that it is about to publish.
    """

    timeout_s: _Seconds
    known_epoch: _Epoch = 0
    version: _Number | None = None


class Post(_Message, frozen=True, tag=3):
    """Takes part in one exchange of a refit; one frame: the payload for all members."""

    epoch: _Epoch
    refit: _Number
    name: _Name
    timeout_s: _Seconds


class Fail(_Message, frozen=True, tag=4):
    """Closes an epoch with an error for all members.

    Attributes:
        epoch: which one.
        refit: refit of the epoch in which it happened; a later one is not touched.
        error: what the others will raise.
        culprit: index of the member that is to blame, or None.
    """

    epoch: _Epoch
    refit: _Number
    error: ErrorReport
    culprit: _Index | None = None


class Withdraw(_Message, frozen=True, tag=5):
    """Gives up waiting for the reply to the `Begin` with this number; has no reply."""


class Bye(_Message, frozen=True, tag=6):
    """Leaves; the whole program leaves with the process."""


class Refuse(_Message, frozen=True, tag=7):
    """Says why the process takes no part in the next refit.

    Everybody else gets the error once: who waits for that refit at once, any other with its next
    begin, unless a refit has formed meanwhile. So calls on all processes fail alike, although the
    process may have begun again already.
    """

    error: ErrorReport


class Welcome(_Message, frozen=True, tag=64):
    """Answers `Hello`: the largest frame that the store accepts."""

    max_message_bytes: _Number


class Started(_Message, frozen=True, tag=65):
    """Answers `Begin`: a refit has formed; frames: the payloads of all members in order.

    Attributes:
        epoch: number of this set of members.
        refit: number of the refit within the epoch, from 1.
        version: what the source publishes, or None where it did not say.
        process: index of the receiver among the members.
        members: all members, or None where the receiver said that it knows them.
    """

    epoch: _Epoch
    refit: _Number
    version: _Number | None
    process: _Index
    members: tuple[Member, ...] | None


class Gathered(_Message, frozen=True, tag=66):
    """Answers `Post`; frames: the payloads of all members in order."""


class Done(_Message, frozen=True, tag=67):
    """Answers `Bye`, `Fail` and `Refuse`, when what follows from them is on its way to all."""


class Failed(_Message, frozen=True, tag=68):
    """Answers any request that cannot be served."""

    error: ErrorReport


class Unknown(_Message, frozen=True, tag=69):
    """Answers a request of a connection that did not say hello to this store."""


class Ended(_Message, frozen=True, tag=70):
    """Tells a member that waits in no exchange what ended its refit; answers nothing.

    Its next exchange of that refit raises it, even if the store is gone by then.

    Attributes:
        epoch: which one.
        refit: refit of the epoch in which it happened.
        error: what the member will raise.
    """

    epoch: _Epoch
    refit: _Number
    error: ErrorReport


Request: TypeAlias = Hello | Begin | Post | Fail | Withdraw | Bye | Refuse
Reply: TypeAlias = Welcome | Started | Gathered | Done | Failed | Unknown | Ended

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_fields_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_number_decoder = msgspec.msgpack.Decoder(_Number)
_reply_decoder = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """Returns the header frame of a message."""
    return _PREFIX + _encoder.encode(message)


def encode_refusal(text: str) -> bytes:
    """Returns a header frame that every version of the protocol understands as a refusal."""
    return _REFUSAL + text.encode()


def decode_request(frame: bytes) -> Request:
    """Returns the request that a header frame holds.

    Raises:
        ProtocolVersionError: the frame is of another version.
        MessageError: the frame is nothing of ours; holds the request number if there is one.
    """
    body = _body_of(frame)
    try:
        return _request_decoder.decode(body)
    except msgspec.DecodeError as error:
        refusal = MessageError(f"control message does not decode: {error}")
        refusal.request = _number_in(body)
        raise refusal from error


def decode_reply(frame: bytes) -> Reply:
    """Returns the reply that a header frame holds.

    Raises:
        ProtocolVersionError: the other end refused our version; holds its text.
        MessageError: the frame is nothing of ours.
    """
    if frame.startswith(_REFUSAL):
        raise ProtocolVersionError(frame[len(_REFUSAL) :].decode(errors="replace"))
    try:
        return _reply_decoder.decode(_body_of(frame))
    except msgspec.DecodeError as error:
        raise MessageError(f"control message does not decode: {error}") from error


def _number_in(body: memoryview) -> int | None:
    """Returns the number of a request whose other fields are wrong, or None if it has none."""
    # An array of at most 15 elements. A longer one is none of ours, and may be made to be costly.
    if not body or body[0] & 0xF0 != _SHORT_ARRAY:
        return None
    try:
        fields = _fields_decoder.decode(body)
        # msgspec puts fields that are given by name only behind all others: `request` is the last.
        return _number_decoder.decode(fields[-1]) if fields else None
    except msgspec.DecodeError:
        return None


def _body_of(frame: bytes) -> memoryview:
    if frame.startswith(_PREFIX):
        return memoryview(frame)[len(_PREFIX) :]
    if frame.startswith(_FAMILY):
        version = frame[len(_FAMILY) :].split(b"\n", 1)[0][:16].decode(errors="replace")
        raise ProtocolVersionError(
            f"control protocol version {version} meets version {PROTOCOL_VERSION}. "
            "Install the same version of reshard in both programs."
        )
    raise MessageError(f"control message starts with {frame[:16]!r}, not with {_FAMILY!r}")


def _describe_ranks(ranks: tuple[int, ...]) -> str:
    """Returns `ranks 0-3, 6`: runs of consecutive ranks as ranges, at most four of them."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:4]]
    more = ", ..." if len(runs) > len(shown) else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(shown)}{more}"
