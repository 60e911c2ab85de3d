"""Tensors as buffers: strides as they are, and clear words for what has no usable memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from reshard import LayoutError, UnsupportedError  # noqa: E402
from reshard_torch import buffer_of  # noqa: E402

pytestmark = pytest.mark.torch


def test_contiguous() -> None:
    tensor = torch.zeros(3, 4, dtype=torch.float64)
    buffer = buffer_of(tensor)
    assert buffer.address == tensor.data_ptr()
    assert (buffer.shape, buffer.strides) == ((3, 4), (32, 8))
    assert buffer.is_writable


@pytest.mark.parametrize(
    ("view", "shape", "strides"),
    [
        (lambda t: t.t(), (4, 3), (2, 8)),
        (lambda t: t[:, ::2], (3, 2), (8, 4)),
        (lambda t: t[1:, 1:], (2, 3), (8, 2)),
        (lambda t: t[1], (4,), (2,)),
        (lambda t: t[2, 3], (), ()),
        (lambda t: t.unsqueeze(1), (3, 1, 4), (8, 8, 2)),
    ],
)
def test_c13_strides_are_kept(view, shape, strides) -> None:
    base = torch.zeros(3, 4, dtype=torch.bfloat16)
    tensor = view(base)
    buffer = buffer_of(tensor)
    assert (buffer.shape, buffer.strides) == (shape, strides)
    assert buffer.address == tensor.data_ptr()


def test_parameter_with_gradient() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.sum().backward()
    buffer = buffer_of(parameter)
    assert buffer.address == parameter.data_ptr()


def test_result_of_an_operation() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    product = parameter * 2
    assert buffer_of(product).address == product.data_ptr()


def test_empty_and_zero_dims() -> None:
    assert buffer_of(torch.zeros(0, 4)).is_empty
    assert buffer_of(torch.tensor(3.0)).shape == ()


def test_buffer_keeps_memory_alive() -> None:
    buffer = buffer_of(torch.full((1 << 16,), 7, dtype=torch.uint8))
    assert bytes(buffer.owner.numpy()[:4]) == b"\7\7\7\7"


def test_fb56_freed_storage() -> None:
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(LayoutError, match="w: its storage was freed"):
        buffer_of(tensor, "w")


def test_meta_tensor() -> None:
    with pytest.raises(LayoutError, match="w: is on the meta device"):
        buffer_of(torch.zeros(3, device="meta"), "w")


def test_lazy_conjugate() -> None:
    with pytest.raises(LayoutError, match="resolve_conj"):
        buffer_of(torch.zeros(3, dtype=torch.complex64).conj())


def test_sparse_tensor() -> None:
    with pytest.raises(UnsupportedError, match="sparse"):
        buffer_of(torch.eye(3).to_sparse())


def test_wrapper_without_memory() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(UnsupportedError, match="TwoTensor is a wrapper"):
        buffer_of(TwoTensor(torch.zeros(2), torch.zeros(2)))


def test_fake_tensor() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tensor = torch.zeros(3)
    with pytest.raises((LayoutError, UnsupportedError), match="w: "):
        buffer_of(tensor, "w")


class OnDevice:
    """Stands in for a tensor on a device that is not here: what `buffer_of` asks of one."""

    def __init__(self, device, **changes):
        self._host = torch.zeros(6, 4, dtype=torch.bfloat16)[::2]
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self.__dict__.update(changes)

    def get_device(self):
        return self.device.index

    def untyped_storage(self):
        return self

    def nbytes(self):
        return 48

    def detach(self):
        return self

    def __getattr__(self, name):
        return getattr(self._host, name)


def test_a_cuda_tensor_is_taken_by_its_address_and_ordinal() -> None:
    tensor = OnDevice("cuda:3", data_ptr=lambda: 0x7F00_0000_0200)
    buffer = buffer_of(tensor)
    assert (buffer.address, buffer.device) == (0x7F00_0000_0200, 3)
    assert (buffer.shape, buffer.strides, str(buffer.dtype)) == ((3, 4), (16, 2), "bfloat16")
    assert buffer.is_writable and buffer.owner is tensor


def test_a_cuda_tensor_without_elements_is_nowhere() -> None:
    assert buffer_of(OnDevice("cuda:3", numel=lambda: 0, shape=(0, 4))).device is None


def test_host_tensors_have_no_device() -> None:
    assert buffer_of(torch.zeros(3)).device is None


@pytest.mark.parametrize("device", ["mps:0", "xpu:1", "hpu:0", "privateuseone:0"])
def test_other_devices_are_refused_by_name(device) -> None:
    kind = device.split(":")[0]
    with pytest.raises(
        UnsupportedError, match=rf"w: is on device {device}; .* that of '{kind}' is not\. Give"
    ):
        buffer_of(OnDevice(device), "w")


def test_gpus_of_amd_are_refused_though_torch_calls_them_cuda(monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2.0")
    with pytest.raises(UnsupportedError, match=r"w: is on cuda:0 of a torch for AMD GPUs"):
        buffer_of(OnDevice("cuda:0"), "w")
    assert buffer_of(torch.zeros(3)).device is None


@pytest.mark.gpu
def test_cuda_tensor() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    tensor = torch.zeros(3, 4, device="cuda")[:, ::2]
    buffer = buffer_of(tensor)
    assert (buffer.address, buffer.device) == (tensor.data_ptr(), tensor.device.index)
    assert buffer.strides == (16, 8)
