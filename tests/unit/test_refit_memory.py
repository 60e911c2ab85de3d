"""Where the memory of an end is, which transport it asks for, and on which streams it works."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reshard import Layout, LayoutError, Mesh, Shard, TensorSpec, UnsupportedError
from reshard.contribution import make_contribution
from reshard.destination import Destination
from reshard.loopback import buffer_of_array
from reshard.source import Source

SPEC = TensorSpec("w", (8, 4), "float32", Layout(Mesh.of(x=1), (Shard(0),)))
W = np.arange(32, dtype=np.float32).reshape(8, 4)
OPTIONS: dict[str, Any] = {"ranks": [0], "num_ranks": 1, "timeout_s": 30.0}
LOOPBACK = "tcp://127.0.0.1:0"


@contextlib.contextmanager
def opened(**transports: str) -> Iterator[tuple[Source, Destination]]:
    with contextlib.ExitStack() as stack:
        asked = [{"transport": transports[k]} if k in transports else {} for k in ("src", "dst")]
        source = stack.enter_context(Source(LOOPBACK, [SPEC], **OPTIONS, **asked[0]))
        address = str(source.address)
        destination = stack.enter_context(Destination(address, [SPEC], **OPTIONS, **asked[1]))
        yield source, destination


def refit(source: Source, destination: Destination, version: int) -> np.ndarray:
    array = np.zeros_like(W)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(destination.refit, {(0, "w"): buffer_of_array(array)}, streams={})
        source.publish({(0, "w"): buffer_of_array(W)}, version=version, streams={})
        waiting.result(30)
    return array


@pytest.mark.parametrize("transports", [{}, {"src": "shm"}, {"src": "shm", "dst": "auto"}], ids=str)
def test_host_memory_moves_as_ever(transports: dict[str, str]) -> None:
    with opened(**transports) as (source, destination):
        np.testing.assert_array_equal(refit(source, destination, 1), W)


@pytest.mark.parametrize("end", [Source, Destination])
def test_a_transport_that_does_not_exist_is_refused_at_once(end: Any) -> None:
    with pytest.raises(LayoutError, match=r"transport='ncll' is none of .* Did you mean 'nccl'\?"):
        end(LOOPBACK, [SPEC], **OPTIONS, transport="ncll")


@pytest.mark.parametrize("end", [Source, Destination])
def test_nccl_is_refused_at_once_where_something_is_missing(end: Any, monkeypatch: Any) -> None:
    problem = "cannot use NCCL: libcuda.so.1 cannot be loaded."
    monkeypatch.setattr("reshard.nccl_check.nccl_here", lambda: ((), problem))
    with pytest.raises(UnsupportedError, match=r"cannot use NCCL: libcuda\.so\.1 cannot be"):
        end(LOOPBACK, [SPEC], **OPTIONS, transport="nccl")


@pytest.mark.parametrize(
    ("streams", "text"),
    [({7: 0}, "streams name rank 7"), ({0: -1}, "-1 of rank 0 is no handle of a CUDA stream")],
)
def test_streams_that_are_none_are_told_to_both_sides(streams: Any, text: str) -> None:
    with opened() as (source, destination), concurrent.futures.ThreadPoolExecutor(1) as pool:
        array = np.zeros_like(W)
        waiting = pool.submit(destination.refit, {(0, "w"): buffer_of_array(array)})
        with pytest.raises(LayoutError, match=text):
            source.publish({(0, "w"): buffer_of_array(W)}, version=1, streams=streams)
        with pytest.raises(LayoutError, match=text):
            waiting.result(30)


def test_an_end_tells_the_others_where_its_memory_is_and_what_it_asked_for(
    monkeypatch: Any,
) -> None:
    told: list[tuple[Any, Any]] = []

    def make(*specs: Any, devices: Any, transport: Any, **options: Any) -> Any:
        told.append((devices, transport))
        return make_contribution(*specs, devices=devices, transport=transport, **options)

    monkeypatch.setattr("reshard.refit_end.make_contribution", make)
    with opened(dst="shm") as (source, destination):
        refit(source, destination, 1)
    assert sorted(told, key=str) == [({0: None}, "auto"), ({0: None}, "shm")]


def test_memory_that_moved_to_another_device_ends_the_session() -> None:
    """Its transport was chosen for the memory that it had."""
    with opened() as (source, destination):
        refit(source, destination, 1)
        array = np.zeros_like(W)
        on_host = buffer_of_array(array)
        session = destination._session
        assert destination._problem_of({(0, "w"): on_host}) is None
        assert destination._session is session is not None
        assert destination._problem_of({(0, "w"): dataclasses.replace(on_host, device=0)}) is None
        assert destination._session is None
        np.testing.assert_array_equal(refit(source, destination, 2), W)
