"""Source and Destination of modules, both in this process; more is in processes/test_torch*."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn  # noqa: E402

import reshard_torch  # noqa: E402
from reshard import LayoutError, PlanError, TransferTimeout  # noqa: E402

pytestmark = pytest.mark.torch

TIMEOUT_S = 20.0


class _Router(nn.Module):
    """Parameters and each kind of buffer, as models with experts and norms have them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.gate = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("e_score_correction_bias", torch.randn(4))
        self.register_buffer("inv_freq", torch.randn(2), persistent=False)
        self.norm.running_mean.normal_()
        self.norm.num_batches_tracked.fill_(seed)


def _refit(src: nn.Module, dst: nn.Module, *, src_buffers: bool, dst_buffers: bool) -> None:
    with reshard_torch.Source(
        "tcp://127.0.0.1:0", src, buffers=src_buffers, timeout_s=TIMEOUT_S
    ) as source:
        _refit_from(source, dst, buffers=dst_buffers)


def _refit_from(source: reshard_torch.Source, dst: nn.Module, **options: bool) -> None:
    address = source.address
    assert address is not None
    with (
        reshard_torch.Destination(address, dst, timeout_s=TIMEOUT_S, **options) as destination,
        ThreadPoolExecutor(1) as pool,
    ):
        published = pool.submit(source.publish, version=1)
        try:
            destination.refit()
        finally:
            error = published.exception(TIMEOUT_S)
        assert error is None


def test_everything_that_is_saved_of_a_module_moves_unless_told_otherwise() -> None:
    src, dst = _Router(1), _Router(2)
    kept = dst.inv_freq.clone()
    with reshard_torch.Source("tcp://127.0.0.1:0", src, timeout_s=TIMEOUT_S) as source:
        _refit_from(source, dst)
    found = dst.state_dict()
    assert "norm.num_batches_tracked" in found
    for name, value in src.state_dict().items():
        assert torch.equal(found[name], value), name
    assert torch.equal(dst.inv_freq, kept)


def test_buffers_can_be_left_out() -> None:
    src, dst = _Router(1), _Router(2)
    kept = {name: buffer.clone() for name, buffer in dst.named_buffers()}
    _refit(src, dst, src_buffers=False, dst_buffers=False)
    assert torch.equal(dst.gate.weight, src.gate.weight)
    for name, buffer in dst.named_buffers():
        assert torch.equal(buffer, kept[name]), name


@pytest.mark.parametrize("is_taken_by_source", [True, False])
def test_buffers_that_one_side_alone_takes_are_an_error(is_taken_by_source: bool) -> None:
    with pytest.raises(PlanError, match=r"e_score_correction_bias: no (source|destination)"):
        _refit(
            _Router(1),
            _Router(2),
            src_buffers=is_taken_by_source,
            dst_buffers=not is_taken_by_source,
        )


def _fail_to_make_a_destination(source: reshard_torch.Source) -> None:
    with pytest.raises(LayoutError, match="w"):
        reshard_torch.Destination(str(source.address), {"w": "no tensor"})  # type: ignore[dict-item]


def test_a_destination_that_cannot_be_made_fails_the_publish_that_waits() -> None:
    tensors = {"w": torch.ones(3)}
    with (
        reshard_torch.Source("tcp://127.0.0.1:0", tensors, timeout_s=TIMEOUT_S) as source,
        ThreadPoolExecutor(1) as pool,
    ):
        published = pool.submit(source.publish, version=1)
        while not published.done():  # the first may come before the publish waits
            _fail_to_make_a_destination(source)
        with pytest.raises(LayoutError, match=r"destination 'destination' process 0.*w"):
            published.result()


def test_a_destination_that_could_not_be_made_is_the_reason_of_a_later_timeout() -> None:
    with reshard_torch.Source("tcp://127.0.0.1:0", {"w": torch.ones(3)}, timeout_s=1.0) as source:
        _fail_to_make_a_destination(source)
        with pytest.raises(TransferTimeout, match=r"left .* ago after its error: .*w"):
            source.publish(version=1)


def test_ends_print_who_they_are_and_what_they_did_last() -> None:
    src, dst = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
    with reshard_torch.Source("tcp://127.0.0.1:0", src, timeout_s=TIMEOUT_S) as source:
        assert f"{source!r}".startswith("<source 'source' process 0 (rank 0")
        assert f"{source!r}".endswith("1 tensors, last refit: None>")
        with (
            reshard_torch.Destination(str(source.address), dst) as destination,
            ThreadPoolExecutor(1) as pool,
        ):
            published = pool.submit(source.publish, version=7)
            destination.refit()
            published.result()
            assert "last refit: version 7: 1 parameters" in f"{destination!r}"
        assert f"{destination!r}".endswith(", closed>")
