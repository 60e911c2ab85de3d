"""What is read from modules and mappings: names, aliases, metadata.

Names of tests begin with the case row.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch.distributed as dist  # noqa: E402
from helpers.torch_moves import describe_ranks, refit_in_process  # noqa: E402
from helpers.torch_ranks import fake_rank, filled  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402

from reshard import (  # noqa: E402
    Box,
    BoxLayout,
    DType,
    Elementwise,
    Form,
    Layout,
    LayoutError,
    Mesh,
    Part,
    PlanError,
    Replicate,
    UnsupportedError,
)
from reshard_torch.side import Side  # noqa: E402
from reshard_torch.tensors import TensorReader  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = Side(0, 1, {0: 0})


class _Model(nn.Module):
    def __init__(self, is_tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(tokens)))


def _names(specs) -> dict[str, tuple[str, ...]]:
    return {spec.name: spec.parts[0].names for spec in specs}


def test_parameters_of_a_module() -> None:
    model = _Model(is_tied=False)
    current = TensorReader(ALONE).read(model)
    assert list(_names(current.specs)) == [
        "embed.weight",
        "norm.weight",
        "norm.bias",
        "head.weight",
        "steps",
    ]
    assert current.specs[0].shape == (10, 4)
    assert current.specs[0].dtype is DType.FLOAT32
    assert current.buffers()[0, "head.weight"].address == model.head.weight.data_ptr()


def test_persistent_buffers_unless_they_are_left_out() -> None:
    names = _names(TensorReader(ALONE).read(_Model()).specs)
    assert "steps" in names
    assert "cache" not in names
    assert "steps" not in _names(TensorReader(ALONE, buffers=False).read(_Model()).specs)


def test_all_names_of_shared_modules_and_buffers_are_read() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    model.append(model[0])
    model[1].register_buffer("scale", torch.ones(2))
    model[1].register_buffer("same", model[1].scale)
    names = _names(TensorReader(ALONE).read(model).specs)
    assert set().union(*names.values()) == set(model.state_dict())
    assert names["0.running_mean"] == ("0.running_mean", "2.running_mean")
    assert names["1.scale"] == ("1.scale", "1.same")


def test_d9_tied_parameters_are_one_tensor_with_two_names() -> None:
    specs = TensorReader(ALONE).read(_Model()).specs
    assert _names(specs)["embed.weight"] == ("embed.weight", "head.weight")
    assert "head.weight" not in _names(specs)


def test_d9_state_dict_knows_tied_parameters_by_their_memory() -> None:
    specs = TensorReader(ALONE).read(_Model().state_dict()).specs
    assert _names(specs)["embed.weight"] == ("embed.weight", "head.weight")


def test_d9_alias_of_the_forms_and_of_the_memory_are_one() -> None:
    def forms(name: str, shape: tuple[int, ...]) -> tuple[Part, ...] | None:
        return (Part(name, None, ("head.weight",)),) if name == "embed.weight" else None

    for model in (_Model(), {"embed.weight": torch.zeros(10, 4)}):
        specs = TensorReader(ALONE, forms=forms).read(model).specs
        assert _names(specs)["embed.weight"] == ("embed.weight", "head.weight")


@pytest.mark.parametrize("is_source_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("is_destination_tied", [True, False], ids=["tied", "untied"])
def test_d9_ties_on_both_sides_and_on_one(is_source_tied: bool, is_destination_tied: bool) -> None:
    embed, head = filled("embed", (10, 4)), filled("head", (10, 4))

    def model(is_tied: bool) -> dict[str, torch.Tensor]:
        first = embed.clone()
        return {"embed": first, "head": first if is_tied else head.clone()}

    def empty(is_tied: bool) -> dict[str, torch.Tensor]:
        first = torch.zeros(10, 4)
        return {"embed": first, "head": first if is_tied else torch.zeros(10, 4)}

    source = describe_ranks(1, lambda _: model(is_source_tied))
    destination = describe_ranks(1, lambda _: empty(is_destination_tied))
    if is_destination_tied and not is_source_tied:
        with pytest.raises(PlanError, match=r"holds separate tensors \['embed', 'head'\]"):
            refit_in_process(source, destination)
        return
    report = refit_in_process(source, destination)
    assert torch.equal(destination[0].local["embed"], embed)
    if not is_destination_tied:
        assert torch.equal(destination[0].local["head"], embed if is_source_tied else head)
    assert report.nbytes == embed.nbytes * (1 if is_destination_tied else 2)


def test_fa36_one_storage_with_two_meanings_is_refused() -> None:
    weight = torch.zeros(4, 4)
    forms = {
        "a": (Part("a", Form("rows columns -> rows columns")),),
        "b": (Part("b", Form("rows columns -> columns rows")),),
    }
    with pytest.raises(LayoutError, match="a and b share memory, but their forms differ"):
        TensorReader(ALONE, forms=forms).read({"a": weight, "b": weight})


def test_one_storage_with_two_rules_is_refused() -> None:
    weight = torch.zeros(4, 4)
    rule = Elementwise(scale=2)
    parts = {name: (Part(name, elementwise=rule),) for name in "ab"}
    (spec,) = TensorReader(ALONE, forms=parts).read({"a": weight, "b": weight}).specs
    assert spec.parts == (Part("a", None, ("b",), rule),)
    parts["b"] = (Part("b"),)
    with pytest.raises(LayoutError, match="their values differ: elementwise=None of b is no rule"):
        TensorReader(ALONE, forms=parts).read({"a": weight, "b": weight})


def test_square_transposes_of_one_memory_are_two_tensors() -> None:
    weight = torch.zeros(4, 4)
    assert len(TensorReader(ALONE).read({"a": weight, "b": weight.t()}).specs) == 2


@pytest.mark.parametrize(
    ("layouts", "shape"),
    [
        ((Layout.replicated(Mesh(("x",), (2,))), BoxLayout({0: Box((2, 0), (4, 3))})), (6, 3)),
        ((Layout.replicated(Mesh(("x",), (2,))), BoxLayout({0: Box((0, 0), (4, 3))})), (4, 3)),
        ((BoxLayout({0: Box((0, 0), (4, 3))}), BoxLayout({0: Box((0, 0), (4, 3))})), (6, 3)),
    ],
    ids=["both_differ", "the_layout_alone", "the_global_shape_alone"],
)
def test_one_memory_in_two_layouts_is_two_tensors(
    layouts: tuple[object, object], shape: tuple[int, int]
) -> None:
    memory = torch.zeros(4, 3)
    current = TensorReader(Side(0, 2, {0: 0, 1: 1})).read(
        {
            "a": (memory, layouts[0], (4, 3)),
            "b": (memory, layouts[1], shape),
        }
    )
    assert _names(current.specs) == {"a": ("a",), "b": ("b",)}
    assert tuple(spec.layout for spec in current.specs) == layouts
    assert [spec.shape for spec in current.specs] == [(4, 3), shape]
    assert list(current.tensors) == ["a", "b"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch.compile's imports
def test_names_of_wrappers_are_left_out() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2, bias=False)))
    assert [name for name, _ in model.named_parameters()] == ["0._checkpoint_wrapped_module.weight"]
    assert list(_names(TensorReader(ALONE).read(model).specs)) == ["0.weight"]
    compiled = torch.compile(nn.Linear(2, 2, bias=False))
    assert list(_names(TensorReader(ALONE).read(compiled).specs)) == ["weight"]


def test_specs_are_made_anew_only_if_metadata_changes() -> None:
    reader = TensorReader(ALONE)
    tensors = {"w": torch.zeros(4, 3)}
    specs = reader.read(tensors).specs
    assert reader.read(tensors).specs is specs
    tensors["w"] = torch.zeros(3, 4).t()  # other memory, other strides
    assert reader.read(tensors).specs is specs
    tensors["w"] = torch.zeros(4, 3, dtype=torch.bfloat16)
    changed = reader.read(tensors).specs
    assert changed is not specs
    assert changed[0].dtype is DType.BFLOAT16


def test_plain_tensors_are_replicated_over_the_ranks_that_have_them() -> None:
    current = TensorReader(Side(2, 4, {i: i for i in range(4)})).read({"w": torch.zeros(3, 2)})
    assert current.specs[0].layout == BoxLayout({2: Box((0, 0), (3, 2))})
    assert list(current.buffers()) == [(2, "w")]


def test_declared_layouts() -> None:
    side = Side(1, 2, {0: 0, 1: 1})
    rows = Layout(Mesh(("tp",), (2,)), (_cut(0),))
    read = TensorReader(side).read
    assert read({"w": (torch.zeros(2, 3), rows)}).specs[0].shape == (4, 3)
    assert read({"w": (torch.zeros(1, 3), rows, (3, 3))}).specs[0].shape == (3, 3)
    with pytest.raises(LayoutError, match=r"w: the local tensor of rank 1 has shape \(2, 3\)"):
        read({"w": (torch.zeros(2, 3), rows, (3, 3))})
    with pytest.raises(LayoutError, match=r"w: layout .* does not tell the global shape"):
        read({"w": (torch.zeros(2, 3), BoxLayout({1: Box((0, 0), (2, 3))}))})
    with pytest.raises(LayoutError, match=r"w: rank 1 gives .* is not in the declared layout"):
        read({"w": (torch.zeros(2, 3), BoxLayout({0: Box((0, 0), (2, 3))}), (2, 3))})
    with pytest.raises(LayoutError, match=r"w: S\(0\) cuts dim 0 of a tensor of shape \(\)"):
        read({"w": (torch.zeros(()), rows)})
    with pytest.raises(LayoutError, match="w: list is not a tensor"):
        read({"w": [1.0]})


def _cut(dim: int) -> object:
    import reshard

    return reshard.Shard(dim)


def test_layout_of_a_dtensor_can_be_declared() -> None:
    def make(rank: int) -> dict[str, object]:
        mesh = init_device_mesh("cpu", (4,))
        local = torch.zeros(2, 2 + rank)
        tensor = DTensor.from_local(
            local, mesh, [Shard(1)], run_check=False, shape=torch.Size((2, 14)), stride=(14, 1)
        )
        start = sum(2 + other for other in range(rank))
        return {"w": (tensor, BoxLayout({rank: Box((0, start), (2, 2 + rank))}))}

    described = describe_ranks(4, make)
    assert [each.specs[0].shape for each in described] == [(2, 14)] * 4


def test_forms_of_unknown_names() -> None:
    with pytest.raises(LayoutError, match="forms name tensors that are not there: typo"):
        TensorReader(ALONE, forms={"typo": None}).read({"w": torch.zeros(2)})
    with pytest.raises(LayoutError, match="padding name tensors that are not there: typo"):
        TensorReader(ALONE, padding={"typo": "zero"}).read({"w": torch.zeros(2)})
    with pytest.raises(LayoutError, match="w: its form is 'w'"):
        TensorReader(ALONE, forms=lambda name, shape: name).read({"w": torch.zeros(2)})


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_dtype_is_refused_with_the_name() -> None:
    with pytest.raises(UnsupportedError, match="w: dtype 'complex32'"):
        TensorReader(ALONE).read({"w": torch.zeros(2, dtype=torch.complex32)})


def test_meta_tensors_can_be_described_but_not_moved() -> None:
    current = TensorReader(ALONE).read({"w": torch.zeros(2, device="meta")})
    assert current.specs[0].shape == (2,)
    with pytest.raises(LayoutError, match="w: is on the meta device"):
        current.buffers()


def test_c10_written_tensors_count_as_changed_and_stay_in_place() -> None:
    weight = nn.Parameter(torch.ones(3))
    product = (weight * weight).sum()
    current = TensorReader(ALONE).read({"w": weight})
    current.buffers()
    current.mark_written()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    current.check_unmoved()
    weight.data = torch.ones(3)
    with pytest.raises(LayoutError, match="w: its memory moved"):
        current.check_unmoved()


def test_written_dtensors_count_as_changed() -> None:
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        tensor = nn.Parameter(
            distribute_tensor(torch.ones(4), mesh, [Shard(0)], src_data_rank=None)
        )
        before = tensor._version
        TensorReader(Side.of_group()).read({"w": tensor}).mark_written()
        assert tensor._version > before


def test_a_graph_that_saved_a_local_tensor_sees_that_its_dtensor_was_written() -> None:
    with fake_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        weight = distribute_tensor(torch.ones(4), mesh, [Shard(0)], src_data_rank=None)
        inputs = torch.ones(2, requires_grad=True)
        product = (inputs * weight.to_local()).sum()
        TensorReader(Side.of_group()).read({"w": weight}).mark_written()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


class _Fsdp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def test_fsdp_modules_are_read_when_sharded_and_refused_when_gathered() -> None:
    with fake_rank(0, 2):
        model = _Fsdp()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        reader = TensorReader(Side.of_group())
        specs = reader.read(model).specs
        assert _names(specs) == {"embed.weight": ("embed.weight", "head.weight")}
        assert specs[0].shape == (6, 4)
        model.unshard()
        with pytest.raises(LayoutError, match=r"_Fsdp: FSDP holds.*module\.reshard\(\)"):
            reader.read(model)
        model.reshard()
        assert reader.read(model).specs is specs


def test_side_without_a_process_group() -> None:
    assert Side.of_group() == ALONE


def test_side_of_a_part_of_the_ranks() -> None:
    with fake_rank(3, 6):
        group = torch.distributed.new_group([1, 3, 5])
        side = Side.of_group(group)
        assert (side.rank, side.num_ranks) == (1, 3)
        assert [side.rank_of(rank) for rank in (1, 3, 5, 0)] == [0, 1, 2, None]
        other = torch.distributed.new_group([0, 2])
        with pytest.raises(LayoutError, match="not in the given process group"):
            Side.of_group(other)


# ---- what is no set of named tensors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nn.Linear(2, 2).named_parameters(), r"type generator: give a module, or a mapping"),
        (nn.Linear(2, 2).parameters(), r"type generator: .*dict\(module.named_parameters"),
        ([torch.ones(2)], "type list: give a module"),
        (torch.ones(2), "type Tensor: give a module"),
        (None, "type NoneType: give a module"),
        ({0: torch.ones(2)}, "0 is no name of a tensor: names are texts"),
        ({"w": (torch.ones(2), [Shard(0)])}, r"w: \(Tensor, list\) is not \(tensor, layout\)"),
        ({"w": (torch.ones(2), "mesh", [Shard(0)])}, r"w: \(Tensor, str, list\) is not"),
        ({"w": ("text", Layout(Mesh.of(x=1), (Replicate(),)))}, r"w: \(str, Layout\) is not"),
    ],
)
def test_what_is_no_mapping_of_tensors_is_refused(given, message):
    with pytest.raises(LayoutError, match=message):
        TensorReader(Side.of_group()).read(given)


def test_a_module_in_distributed_data_parallel_has_the_names_of_the_module():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 3))
        specs = TensorReader(Side.of_group()).read(wrapped).specs
    finally:
        dist.destroy_process_group()
    assert [spec.name for spec in specs] == ["weight", "bias"]


def test_flattened_parameters_of_the_old_fsdp_are_refused():
    module = nn.Module()
    module.register_parameter("_flat_param", nn.Parameter(torch.ones(6)))
    with pytest.raises(
        UnsupportedError, match=r"_flat_param: FullyShardedDataParallel.*fully_shard"
    ):
        TensorReader(Side.of_group()).read(module)
