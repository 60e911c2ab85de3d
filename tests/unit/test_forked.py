"""Which descriptors a forked child lets go of: those of the control plane, and nobody else's."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from reshard import forked

LOOPBACK, OTHER = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def store() -> Iterator[tuple[socket.socket, int]]:
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen()
        port = listening.getsockname()[1]
        forked.bound_here(LOOPBACK, port, 1)
        yield listening, port
        forked.bound_here(LOOPBACK, port, -1)


def test_the_listening_and_the_accepted_socket_of_a_store(
    store: tuple[socket.socket, int],
) -> None:
    listening, port = store
    with socket.create_connection((LOOPBACK, port)) as client, listening.accept()[0] as accepted:
        assert forked._is_of_control_plane(listening.fileno())
        assert forked._is_of_control_plane(accepted.fileno())
        assert not forked._is_of_control_plane(client.fileno())
        forked.connected_to(LOOPBACK, port, 1)
        assert forked._is_of_control_plane(client.fileno())
        forked.connected_to(LOOPBACK, port, -1)
        assert not forked._is_of_control_plane(client.fileno())


def test_sockets_of_others_on_the_same_port_are_left_alone(
    store: tuple[socket.socket, int],
) -> None:
    _, port = store
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((OTHER, port))
        listening.listen()
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        datagrams.bind((LOOPBACK, port))
        pair = [stack.enter_context(each) for each in socket.socketpair()]
        for own in (listening, datagrams, *pair):
            assert not forked._is_of_control_plane(own.fileno())
    reader, writer = os.pipe()
    assert not forked._is_of_control_plane(reader)
    os.close(reader)
    os.close(writer)
    assert not forked._is_of_control_plane(reader)
