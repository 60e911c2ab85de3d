"""The streams on which a caller works: asked for where memory is on a GPU, and only there."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import reshard_torch  # noqa: E402
from reshard import Buffer, DType, LayoutError, UnsupportedError  # noqa: E402
from reshard_torch.streams import streams_of  # noqa: E402

pytestmark = pytest.mark.torch


def buffer(device, address=4096, shape=(2,)):
    return Buffer(address, shape, (4,), DType.FLOAT32, device=device)


@pytest.fixture
def _gpus(monkeypatch):
    """Current streams of devices that are not here: 1000 + ordinal."""

    def current_stream(device):
        return types.SimpleNamespace(cuda_stream=1000 + device)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_host_memory_has_no_stream_and_torch_is_not_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", None)
    assert streams_of({(0, "w"): buffer(None)}) == {}
    assert streams_of({(0, "w"): buffer(None, shape=(0,))}, {}) == {}


@pytest.mark.usefixtures("_gpus")
def test_each_rank_has_the_current_stream_of_its_device():
    assert streams_of({(0, "w"): buffer(1), (0, "v"): buffer(1)}) == {0: 1001}
    assert streams_of({(0, "w"): buffer(1)}, {(1, "w"): buffer(0), (0, "v"): buffer(1)}) == {
        0: 1001,
        1: 1000,
    }


@pytest.mark.usefixtures("_gpus")
def test_a_rank_on_two_devices_is_refused():
    with pytest.raises(LayoutError, match="rank 0 is on cuda:0, that of w on cuda:1"):
        streams_of({(0, "w"): buffer(1)}, {(0, "v"): buffer(0)})


@pytest.mark.usefixtures("_gpus")
def test_a_refit_is_not_captured_in_a_graph(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UnsupportedError, match="cannot be captured in a CUDA graph"):
        streams_of({(0, "w"): buffer(1)})
    assert streams_of({(0, "w"): buffer(None)}) == {}


def test_the_ends_hand_streams_on(monkeypatch):
    """`publish` and `refit` say which stream the caller is on, read after the tensors were."""
    seen = []
    for module in ("source", "destination"):
        monkeypatch.setattr(f"reshard_torch.{module}.streams_of", lambda buffers: {0: 77})

    def take_part(self, buffers, *, streams, **options):
        seen.append((type(self).__name__, dict(streams)))
        raise KeyError("enough")

    monkeypatch.setattr("reshard.refit_end.RefitEnd._take_part", take_part)
    tensors = {"w": torch.zeros(2)}
    with (
        reshard_torch.Source("tcp://127.0.0.1:0", tensors) as source,
        reshard_torch.Destination(source.address, tensors) as destination,
    ):
        with pytest.raises(KeyError):
            source.publish(version=1)
        with pytest.raises(KeyError):
            destination.refit()
    assert seen == [("Source", {0: 77}), ("Destination", {0: 77})]


@pytest.mark.parametrize("transport", ["ncll", None])
def test_ends_take_known_transports_only(transport):
    tensors = {"w": torch.zeros(2)}
    for make in (reshard_torch.Source, reshard_torch.Destination):
        with pytest.raises(LayoutError, match="is none of 'auto', 'shm', 'nccl'"):
            make("tcp://127.0.0.1:0", tensors, transport=transport)


@pytest.mark.gpu
def test_the_stream_of_a_context_is_the_one_that_counts():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    given = {(0, "w"): reshard_torch.buffer_of(torch.zeros(3, device="cuda:0"))}
    stream = torch.cuda.Stream(0)
    with torch.cuda.stream(stream):
        assert streams_of(given) == {0: stream.cuda_stream}
    assert streams_of(given) == {0: torch.cuda.default_stream(0).cuda_stream}
