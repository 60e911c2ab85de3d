"""What the trainer and the engine say to each other on the rollout channel.

Requests for rollouts and their answers, typed and bounded (msgspec, MessagePack). Weights never
travel here: they go through reshard.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt


class Array(msgspec.Struct, frozen=True):
    """A dense row-major array as plain bytes.

    Attributes:
        dtype: NumPy's name of the element type, such as `int64`.
        shape: Elements per dim.
        data: `shape` elements, row-major, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(values: npt.NDArray[Any]) -> Array:
        """Copies an array into a message."""
        dense = np.ascontiguousarray(values)
        return Array(dtype=dense.dtype.name, shape=dense.shape, data=dense.tobytes())

    def numpy(self) -> npt.NDArray[Any]:
        """Returns a read-only view of the message as an array."""
        return np.frombuffer(self.data, dtype=np.dtype(self.dtype)).reshape(self.shape)


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Asks whether the engine is ready."""


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Asks for one sampled completion per prompt.

    Attributes:
        prompts: Token numbers, (num_prompts, prompt_length).
        num_tokens: Tokens to sample per prompt.
        temperature: Sampling temperature.
        seed: Seed of the sampler: equal seeds and weights give equal tokens.
    """

    prompts: Array
    num_tokens: int
    temperature: float
    seed: int


class Refit(msgspec.Struct, frozen=True, tag="refit"):
    """Says that the trainer is publishing weights now: take them."""


class Logits(msgspec.Struct, frozen=True, tag="logits"):
    """Asks for the logits of given tokens, (num_sequences, length)."""

    tokens: Array


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Asks the engine to end."""


Request: TypeAlias = Hello | Generate | Refit | Logits | Stop


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Answers `Hello` and `Stop`."""

    num_ranks: int


class Values(msgspec.Struct, frozen=True, tag="values"):
    """Answers `Generate` (token numbers) and `Logits` (float32)."""

    values: Array


class Refitted(msgspec.Struct, frozen=True, tag="refitted"):
    """Answers `Refit`: which weights the engine has now, and their fingerprints by name."""

    version: int
    fingerprints: dict[str, int]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Answers any request that could not be served; the engine ends after sending it."""

    error: str


Reply: TypeAlias = Ready | Values | Refitted | Failed

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """Returns a message as bytes."""
    return _encoder.encode(message)


def decode_request(payload: bytes) -> Request:
    """Returns the request in `payload`."""
    return _request_decoder.decode(payload)


def decode_reply(payload: bytes) -> Reply:
    """Returns the reply in `payload`."""
    return _reply_decoder.decode(payload)
