"""What a shared token proves: CURVE keys derived from it, and the check of the client's key.

Both key pairs follow from the token by HKDF-SHA256 (RFC 5869), so no key is ever handed out. The
server proves that it knows the token by holding the server key, the client by holding the client
key, which the server checks through ZeroMQ's ZAP (RFC 27). Whoever listens on the wire learns
nothing, but whoever can pose as the server can try tokens offline: use a random token of at least
16 characters, not a word.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Sequence

import zmq
import zmq.utils.z85

__all__ = ["ZAP_ENDPOINT", "TokenKeys", "answer_zap", "hkdf_sha256"]

ZAP_ENDPOINT = "inproc://zeromq.zap.01"

_SALT = b"reshard control plane 1"
_NUM_ZAP_FRAMES_CURVE = 7


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TokenKeys:
    """Both CURVE key pairs of one token, in Z85 text; never printed."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def derive(cls, token: str) -> TokenKeys:
        """Returns the keys of a token; equal tokens give equal keys."""
        server_secret = zmq.utils.z85.encode(hkdf_sha256(token.encode(), b"server key"))
        client_secret = zmq.utils.z85.encode(hkdf_sha256(token.encode(), b"client key"))
        return cls(
            server_public=zmq.curve_public(server_secret),
            server_secret=server_secret,
            client_public=zmq.curve_public(client_secret),
            client_secret=client_secret,
        )


def answer_zap(frames: Sequence[bytes], keys: TokenKeys) -> list[bytes]:
    """Returns the answer to one ZAP request: only the client key of this token is let in."""
    version, request = (*frames, b"", b"")[:2]
    expected = zmq.utils.z85.decode(keys.client_public)
    is_known = (
        len(frames) == _NUM_ZAP_FRAMES_CURVE
        and frames[5] == b"CURVE"
        and hmac.compare_digest(frames[6], expected)
    )
    status, text = (b"200", b"OK") if is_known else (b"400", b"wrong token")
    return [version, request, status, text, b"", b""]


def hkdf_sha256(secret: bytes, info: bytes, *, salt: bytes = _SALT) -> bytes:
    """Returns 32 bytes by extract and expand; they are one SHA-256 block, so one round of expand.

    Source: RFC 5869, sections 2.2 and 2.3.
    """
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)
