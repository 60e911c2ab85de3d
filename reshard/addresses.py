"""Addresses of the control plane: `tcp://host:port`, with IPv6 hosts in brackets.

Also what else is checked before a connection is opened: that a token is there, and heartbeats.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
import socket

from reshard.errors import LayoutError, RendezvousError

__all__ = ["Address", "heartbeat_ms", "parse_address", "require_token"]

_FORM = re.compile(r"tcp://(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})")
_SHORTEST_TOKEN = 16
_MAKE_TOKEN = "python -c 'import secrets; print(secrets.token_hex(16))'"
_LARGEST_PORT = 65535
_MAX_HEARTBEAT_S = 1e6  # libzmq counts milliseconds in 32 bits


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """A host (name or number, without brackets) and a port; port 0 asks for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Says whether only processes of this machine can reach the address.

        A name other than `localhost` counts as reachable, whatever it resolves to today.
        """
        if self.host == "localhost":
            return True
        number = _number_of(self.host)
        return number is not None and number.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Says whether the address means every interface: right to bind, nowhere to connect."""
        number = _number_of(self.host)
        return number is not None and number.is_unspecified

    def with_port(self, port: int) -> Address:
        """Returns the same host with another port."""
        return dataclasses.replace(self, port=port)

    def reachable_here(self) -> Address:
        """Returns the address under which a process of this machine reaches a bound socket."""
        if not self.is_wildcard:
            return self
        return dataclasses.replace(self, host="::1" if ":" in self.host else "127.0.0.1")

    def resolve(self) -> Address:
        """Returns the address with its host as a number; IPv4 goes first where a name has both.

        Raises:
            RendezvousError: the name is unknown.
        """
        if _number_of(self.host) is not None:
            return self
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise RendezvousError(
                f"{self}: the host name cannot be resolved ({error.strerror}). "
                "Check the name, or give the number of an interface."
            ) from error
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        return dataclasses.replace(self, host=str(found[0][4][0]))


def parse_address(text: object) -> Address:
    """Returns the parts of `tcp://host:port`.

    Raises:
        RendezvousError: the text has another form, or the port is out of range.

    Example:
        >>> parse_address("tcp://[::1]:29500")
        Address(host='::1', port=29500)
    """
    if text is None:
        raise RendezvousError(
            "the address is None. It is the source's, such as tcp://10.0.0.1:29500; "
            "`Source.address` is known to its process 0 alone, which has to tell the others."
        )
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise RendezvousError(
            f"address {text!r} is not of the form tcp://host:port. "
            "Write for example tcp://10.0.0.1:29500, or tcp://[fd00::1]:29500 for IPv6."
        )
    host = match["ipv6"] or ("0.0.0.0" if match["host"] == "*" else match["host"])
    port = int(match["port"])
    if port > _LARGEST_PORT:
        raise RendezvousError(f"address {text!r}: port {port} is over {_LARGEST_PORT}.")
    if match["ipv6"] is not None and _version_of(host) != 6:
        raise RendezvousError(f"address {text!r}: {host!r} in brackets is not an IPv6 number.")
    return Address(host, port)


def require_token(address: Address, token: object) -> None:
    """Refuses an address that other machines can reach when there is no token, and weak tokens.

    Raises:
        RendezvousError: the token is missing, or so short that it could be guessed.
    """
    if token is not None and (not isinstance(token, str) or len(token) < _SHORTEST_TOKEN):
        found = f"{len(token)} characters" if isinstance(token, str) else type(token).__name__
        raise RendezvousError(
            f"{address}: the token is no text of at least {_SHORTEST_TOKEN} characters, but "
            f"{found}, and could be guessed. Make one with {_MAKE_TOKEN}."
        )
    if token is None and not address.is_loopback:
        raise RendezvousError(
            f"{address} is not a loopback address, so anybody who reaches it could take part. "
            "Give the same secret token=... to every process of both programs "
            f"({_MAKE_TOKEN}), or use tcp://127.0.0.1."
        )


def heartbeat_ms(interval_s: float, timeout_s: float) -> tuple[int, int]:
    """Returns how often a connection is checked and for how long it may be silent, for libzmq.

    Raises:
        LayoutError: one of them is not above 0, or too long.
    """
    for name, value in (("heartbeat_interval_s", interval_s), ("heartbeat_timeout_s", timeout_s)):
        if not 0.0 < value <= _MAX_HEARTBEAT_S:
            raise LayoutError(
                f"{name}={value} is not above 0 and at most {_MAX_HEARTBEAT_S:g}. Give seconds."
            )
    return math.ceil(interval_s * 1000), math.ceil(timeout_s * 1000)


def _number_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _version_of(host: str) -> int | None:
    number = _number_of(host)
    return None if number is None else number.version
