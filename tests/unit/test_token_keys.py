"""Keys follow from the token alone, and only the key of the same token is let in."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from reshard.token_keys import TokenKeys, answer_zap, hkdf_sha256


def _request(key: bytes) -> list[bytes]:
    return [b"1.0", b"7", b"reshard", b"127.0.0.1", b"", b"CURVE", key]


def test_equal_tokens_give_equal_keys_and_others_do_not() -> None:
    keys = TokenKeys.derive("a secret of sixteen")
    assert TokenKeys.derive("a secret of sixteen") == keys
    other = TokenKeys.derive("secret ")
    everything = [*_fields(keys), *_fields(other)]
    assert len(set(everything)) == len(everything)
    assert zmq.curve_public(keys.server_secret) == keys.server_public


def _fields(keys: TokenKeys) -> list[bytes]:
    return [keys.server_public, keys.server_secret, keys.client_public, keys.client_secret]


def test_derivation_is_hkdf_as_published() -> None:
    # RFC 5869, appendix A.3 (neither salt nor info), the first 32 of its 42 bytes.
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert hkdf_sha256(bytes([0x0B]) * 22, b"", salt=b"").hex() == expected


def test_keys_do_not_show() -> None:
    keys = TokenKeys.derive("a secret of sixteen")
    assert keys.server_secret.decode() not in repr(keys)


def test_only_the_key_of_the_token_is_let_in() -> None:
    keys = TokenKeys.derive("a secret of sixteen")
    answer = answer_zap(_request(z85.decode(keys.client_public)), keys)
    assert answer == [b"1.0", b"7", b"200", b"OK", b"", b""]
    other = z85.decode(TokenKeys.derive("other").client_public)
    assert answer_zap(_request(other), keys)[2] == b"400"
    assert answer_zap(_request(z85.decode(keys.server_public)), keys)[2] == b"400"


def test_a_strange_request_is_refused() -> None:
    keys = TokenKeys.derive("a secret of sixteen")
    known = z85.decode(keys.client_public)
    for frames in (
        [],
        [b"1.0"],
        [*_request(known), b""],
        [b"1.0", b"7", b"", b"", b"", b"NULL", known],
    ):
        answer = answer_zap(frames, keys)
        assert len(answer) == 6
        assert answer[2] == b"400"
