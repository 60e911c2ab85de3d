"""Who is behind a descriptor, whatever is read first and however often it was accepted."""

from __future__ import annotations

from reshard.connections import Connections


def test_a_process_is_found_when_its_connection_ends() -> None:
    connections = Connections()
    for descriptor, process in ((7, b"a"), (8, b"b")):
        connections.accept(descriptor)
        assert connections.hello(descriptor, process) == []
    assert connections.end(8) == b"b"
    assert connections.end(7) == b"a"
    assert connections.end(7) is None


def test_whoever_said_no_hello_is_nobody() -> None:
    connections = Connections()
    connections.accept(7)
    assert connections.end(7) is None


def test_a_hello_that_is_read_after_the_end_is_of_a_process_that_is_gone() -> None:
    connections = Connections()
    connections.accept(7)
    assert connections.end(7) is None
    assert connections.hello(7, b"a") == [b"a"]
    connections.accept(7)
    assert connections.hello(7, b"b") == []
    assert connections.end(7) == b"b"


def test_a_hello_that_is_read_after_the_descriptor_was_accepted_again() -> None:
    connections = Connections()
    connections.accept(7)
    assert connections.end(7) is None
    connections.accept(7)
    assert connections.hello(7, b"a") == []  # it looks like that of the new one
    assert connections.hello(7, b"b") == [b"a"]
    assert connections.end(7) == b"b"


def test_a_second_hello_of_one_process_ends_nothing() -> None:
    connections = Connections()
    connections.accept(7)
    assert connections.hello(7, b"a") == connections.hello(7, b"a") == []
    assert connections.end(7) == b"a"


def test_an_old_end_does_not_concern_the_next_of_a_descriptor() -> None:
    connections = Connections()
    connections.accept(7)
    assert connections.hello(7, b"a") == []
    assert connections.end(7) == b"a"
    connections.accept(7)
    assert connections.hello(7, b"b") == []
    assert connections.end(7) == b"b"
