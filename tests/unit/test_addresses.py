"""Addresses of the control plane: form, loopback, wildcard, names."""

from __future__ import annotations

import pickle
import socket

import pytest

from reshard.addresses import Address, parse_address, require_token
from reshard.errors import RendezvousError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://10.0.0.1:29500", "10.0.0.1", 29500),
        ("tcp://127.0.0.1:0", "127.0.0.1", 0),
        ("tcp://trainer-0.cluster.local:65535", "trainer-0.cluster.local", 65535),
        ("tcp://[::1]:29500", "::1", 29500),
        ("tcp://[fd00::7]:1", "fd00::7", 1),
        ("tcp://localhost:5", "localhost", 5),
    ],
)
def test_an_address_parses_and_prints_as_itself(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text
    assert eval(repr(address)) == address
    assert pickle.loads(pickle.dumps(address)) == address


def test_a_star_means_every_ipv4_interface() -> None:
    assert parse_address("tcp://*:7") == Address("0.0.0.0", 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:29500",
        "http://10.0.0.1:29500",
        "tcp://10.0.0.1",
        "tcp://10.0.0.1:",
        "tcp://:29500",
        "tcp://::1:29500",
        "tcp://[::1]",
        "tcp://a b:1",
        "tcp://host:1/path",
        "tcp://host:-1",
        "tcp://host:1 ",
        "tcp://host:1\n",
    ],
)
def test_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RendezvousError, match="not of the form tcp://host:port"):
        parse_address(text)


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(RendezvousError, match="port 65536 is over 65535"):
        parse_address("tcp://host:65536")


def test_a_name_in_brackets_is_refused() -> None:
    with pytest.raises(RendezvousError, match="not an IPv6 number"):
        parse_address("tcp://[host]:1")
    with pytest.raises(RendezvousError, match="not an IPv6 number"):
        parse_address("tcp://[127.0.0.1]:1")


@pytest.mark.parametrize(
    ("host", "is_loopback", "is_wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.8.9.10", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.0.0.1", False, False),
        ("128.0.0.1", False, False),
        ("localhost.example.com", False, False),
        ("127.0.0.1.example.com", False, False),
    ],
)
def test_what_other_machines_can_reach(host: str, is_loopback: bool, is_wildcard: bool) -> None:
    address = Address(host, 1)
    assert (address.is_loopback, address.is_wildcard) == (is_loopback, is_wildcard)


def test_a_token_is_required_off_loopback_only() -> None:
    require_token(parse_address("tcp://127.0.0.1:1"), None)
    require_token(parse_address("tcp://10.0.0.1:1"), "a secret of sixteen")
    for text in ("tcp://10.0.0.1:1", "tcp://*:1", "tcp://trainer:1", "tcp://[fd00::1]:1"):
        with pytest.raises(RendezvousError, match="is not a loopback address"):
            require_token(parse_address(text), None)


@pytest.mark.parametrize("token", ["", "fifteen letters", b"a secret of sixteen"])
def test_a_token_that_could_be_guessed_is_refused(token: object) -> None:
    with pytest.raises(RendezvousError, match=r"16 characters, but (0|15|bytes)"):
        require_token(parse_address("tcp://127.0.0.1:1"), token)  # type: ignore[arg-type]


def test_a_wildcard_is_reached_over_loopback() -> None:
    assert str(Address("0.0.0.0", 5).reachable_here()) == "tcp://127.0.0.1:5"
    assert str(Address("::", 5).reachable_here()) == "tcp://[::1]:5"
    assert str(Address("10.0.0.1", 5).reachable_here()) == "tcp://10.0.0.1:5"


def test_names_resolve_to_numbers_with_ipv4_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, type: int) -> list[object]:
        return [
            (socket.AF_INET6, type, 6, "", ("fd00::1", port, 0, 0)),
            (socket.AF_INET, type, 6, "", ("10.0.0.9", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert Address("trainer", 5).resolve() == Address("10.0.0.9", 5)
    assert Address("::1", 5).resolve() == Address("::1", 5)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(RendezvousError, match=r"tcp://no-such-host.invalid:5: the host name"):
        Address("no-such-host.invalid", 5).resolve()
