"""Whole refits between torch layouts in one process, bit for bit; names begin with the case row.

What a source rank holds, and what a destination rank must hold afterwards, are slices that torch
makes of a tensor whose elements are hashes of their indices. Ranks are made in a fake process
group; planning and native code are the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from helpers.torch_moves import RankTensors, compare, describe_ranks, refit_in_process  # noqa: E402
from helpers.torch_ranks import fake_rank, filled  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

import reshard  # noqa: E402
from reshard import (  # noqa: E402
    Box,
    BoxLayout,
    Form,
    Layout,
    LayoutError,
    Mesh,
    Part,
    PlanError,
    SegmentedLayout,
    TensorSpec,
    VerificationError,
    check_buffers,
    make_plan,
)
from reshard_torch.side import Side  # noqa: E402
from reshard_torch.tensors import TensorReader  # noqa: E402

pytestmark = pytest.mark.torch

R = Replicate()


def S(dim: int) -> Shard:  # noqa: N802 (as DTensor prints it)
    return Shard(dim)


def SS(dim: int, factor: int) -> _StridedShard:  # noqa: N802
    return _StridedShard(dim, split_factor=factor)


def _distributed(
    whole: torch.Tensor, mesh_shape: Sequence[int], placements: Sequence[object]
) -> torch.Tensor:
    mesh = init_device_mesh("cpu", tuple(mesh_shape))
    return distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None)


def _ranks(
    wholes: Mapping[str, torch.Tensor], mesh_shape: Sequence[int], placements: Sequence[object]
) -> list[RankTensors]:
    """Returns ranks that all hold all tensors in one layout."""
    num_ranks = torch.Size(mesh_shape).numel()
    return describe_ranks(
        num_ranks,
        lambda _: {n: _distributed(t, mesh_shape, placements) for n, t in wholes.items()},
    )


def _check_all(
    found: Sequence[RankTensors],
    expected: Sequence[RankTensors],
    wholes: Mapping[str, torch.Tensor],
) -> None:
    for rank, (here, there) in enumerate(zip(found, expected, strict=True)):
        for name, local in here.local.items():
            compare(f"{name} on rank {rank}", local, there.local[name], wholes[name])


def _zeros(wholes: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(whole) for name, whole in wholes.items()}


CASES = {
    "a1": ((5, 10), ((4,), (S(0),)), ((1,), (R,))),
    "a2": ((6, 256), ((4,), (S(0),)), ((2,), (S(1),))),
    "a4": ((7, 5), ((2, 2), (S(0), S(0))), ((1,), (R,))),
    "a5_five": ((5,), ((2, 2), (SS(0, 2), S(0))), ((1,), (R,))),
    "a5_six": ((6,), ((2, 2), (SS(0, 2), S(0))), ((3,), (S(0),))),
    "a8": ((8,), ((2, 2), (SS(0, 2), S(0))), ((2,), (S(0),))),
    "a9_reversed": ((16, 3), ((2, 2, 2), (SS(0, 4), SS(0, 2), S(0))), ((3,), (S(0),))),
    "a9_mixed": ((16, 3), ((2, 2, 2), (S(0), SS(0, 2), S(0))), ((2, 2), (SS(0, 2), S(0)))),
    "a15_tp5": ((32000, 2), ((5,), (S(0),)), ((1,), (R,))),
    "a15_odd": ((151665, 1), ((2,), (S(0),)), ((3,), (S(0),))),
    "b1_experts": ((8, 32, 16), ((2, 4), (SS(0, 4), S(0))), ((4,), (S(0),))),
    "b1_two_dims": ((4, 32, 16), ((2, 4), (S(1), S(0))), ((4,), (S(0),))),
    "b1_few_experts": ((4, 32, 16), ((8,), (S(1),)), ((4,), (S(0),))),
    "b2": ((16, 16, 32), ((2, 2, 2), (S(0), S(0), S(1))), ((4,), (S(2),))),
    "b3": ((8, 12, 6), ((2, 2), (S(0), S(1))), ((3,), (S(1),))),
    "b12": ((64, 8), ((32,), (S(0),)), ((2,), (S(1),))),
    "packed": ((4, 12, 5), ((2,), (SS(1, 2),)), ((3,), (SS(1, 2),))),
    "packed_to_plain": ((4, 12, 5), ((4,), (SS(1, 2),)), ((2,), (S(1),))),
    "fa6": ((6, 4), ((2, 2), (S(0), S(1))), ((4,), (S(1),))),
    "fa7": ((8, 6, 4), ((2, 4), (S(0), S(1))), ((2,), (S(0),))),
    "fa8": ((8, 2), ((2, 2), (SS(0, 2), S(0))), ((4,), (S(0),))),
    "fa11": ((2, 3), ((4,), (S(0),)), ((3,), (S(1),))),
    "fa14_five": ((5, 3), ((2,), (S(0),)), ((2,), (S(1),))),
    "fa14_seven": ((7,), ((4,), (S(0),)), ((3,), (S(0),))),
    "fa16_conv": ((2, 3, 4, 4), ((2,), (S(1),)), ((4,), (S(3),))),
    "fa17": ((4, 6), ((2,), (S(0),)), ((2, 2), (R, R))),
    "fa20": ((6, 4, 2), ((3,), (S(0),)), ((2,), (S(0),))),
    "fa34": ((6, 4), ((2,), (S(0),)), ((4, 2), (R, S(1)))),
    "fb57_no_elements": ((0, 4), ((2,), (S(1),)), ((3,), (S(0),))),
    "zero_dims": ((), ((2,), (R,)), ((3,), (R,))),
}


@pytest.mark.parametrize("case", CASES)
def test_moves_exactly(case: str) -> None:
    shape, src, dst = CASES[case]
    wholes = {"w": filled("w", shape)}
    destinations = _ranks(_zeros(wholes), *dst)
    report = refit_in_process(_ranks(wholes, *src), destinations)
    _check_all(destinations, _ranks(wholes, *dst), wholes)
    assert report.share_resharded == 1.0


@pytest.mark.parametrize("case", ["a4", "a5_five", "a8", "b2", "fa7", "packed"])
def test_there_and_back_is_the_identity(case: str) -> None:
    shape, src, dst = CASES[case]
    wholes = {"w": filled("w", shape)}
    there = _ranks(_zeros(wholes), *dst)
    back = _ranks(_zeros(wholes), *src)
    refit_in_process(_ranks(wholes, *src), there)
    refit_in_process(there, back)
    _check_all(back, _ranks(wholes, *src), wholes)


@pytest.mark.parametrize("case", ["a2", "a8", "fa11", "packed"])
def test_same_devices_on_both_sides(case: str) -> None:
    shape, src, dst = CASES[case]
    wholes = {"w": filled("w", shape)}
    destinations = _ranks(_zeros(wholes), *dst)
    refit_in_process(_ranks(wholes, *src), destinations, is_colocated=True)
    _check_all(destinations, _ranks(wholes, *dst), wholes)


_DTYPES = [
    *("bool", "uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"),
    *("complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
]


@pytest.mark.parametrize("dtype", _DTYPES)
def test_e7_any_dtype_moves_as_bits(dtype: str) -> None:
    wholes = {"w": filled("w", (6, 10), dtype)}
    destinations = _ranks(_zeros(wholes), (3,), (S(1),))
    refit_in_process(_ranks(wholes, (4,), (S(0),)), destinations)
    _check_all(destinations, _ranks(wholes, (3,), (S(1),)), wholes)


def test_e7_payloads_of_nans_are_kept() -> None:
    bits = torch.arange(0x7F80, 0x8000, dtype=torch.int32).to(torch.int16)
    wholes = {"w": torch.cat([bits, bits - 0x8000]).view(torch.bfloat16)}
    assert wholes["w"].isnan().sum() == 254
    destinations = _ranks(_zeros(wholes), (3,), (S(0),))
    refit_in_process(_ranks(wholes, (2,), (S(0),)), destinations)
    _check_all(destinations, _ranks(wholes, (3,), (S(0),)), wholes)


def test_e1_cast_is_made_once_and_asked_for() -> None:
    whole = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    source = _ranks({"w": whole}, (2,), (S(0),))
    wanted = {"w": whole.to(torch.bfloat16)}
    destinations = _ranks(_zeros(wanted), (2,), (S(1),))
    with pytest.raises(PlanError, match="no cast rule"):
        refit_in_process(source, destinations)
    report = refit_in_process(source, destinations, casts=[("float32", "bfloat16")])
    _check_all(destinations, _ranks(wanted, (2,), (S(1),)), wanted)
    assert report.nbytes == whole.numel() * 2


# ---- tensors whose layout is declared


def _boxed(whole: torch.Tensor, boxes: Sequence[Box]) -> list[RankTensors]:
    """Returns ranks that know nothing but their own box."""

    def make(rank: int) -> dict[str, object]:
        box = boxes[rank]
        part = whole[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))]
        return {"w": (part.clone(), BoxLayout({rank: box}), tuple(whole.shape))}

    return describe_ranks(len(boxes), make)


def test_a3_widths_of_from_local() -> None:
    whole = filled("w", (2, 14))
    starts = [0, 2, 5, 9, 14]
    source = _boxed(whole, [Box((0, a), (2, b - a)) for a, b in pairwise(starts)])
    destinations = _ranks(_zeros({"w": whole}), (1,), (R,))
    refit_in_process(source, destinations)
    compare("w", destinations[0].local["w"], whole, whole)


def test_a12_both_rules_for_uneven_dims() -> None:
    whole = filled("w", (10, 3))
    layout = Layout(Mesh(("tp",), (4,)), (reshard.Shard(0),), division="balanced")
    sizes = [3, 3, 2, 2]
    destinations = describe_ranks(
        4, lambda rank: {"w": (torch.zeros(sizes[rank], 3), layout, (10, 3))}
    )
    refit_in_process(_ranks({"w": whole}, (4,), (S(0),)), destinations)
    for each, expected in zip(destinations, whole.split(sizes), strict=True):
        compare("w", each.local["w"], expected, whole)


def test_a13_shards_in_proportion() -> None:
    whole = filled("w", (16, 8))
    boxes = [Box((0, 0), (8, 8)), Box((8, 0), (4, 8)), Box((12, 0), (4, 8))]
    destinations = _ranks(_zeros({"w": whole}), (2,), (S(0),))
    refit_in_process(_boxed(whole, boxes), destinations)
    _check_all(destinations, _ranks({"w": whole}, (2,), (S(0),)), {"w": whole})


def test_a14_parts_that_leave_a_gap() -> None:
    whole = filled("w", (151,))
    destinations = _ranks(_zeros({"w": whole}), (1,), (R,))
    with pytest.raises(PlanError, match="w: "):
        refit_in_process(_boxed(whole, [Box((0,), (64,)), Box((64,), (64,))]), destinations)
    refit_in_process(_boxed(whole, [Box((0,), (64,)), Box((64,), (87,))]), destinations)
    compare("w", destinations[0].local["w"], whole, whole)


def test_b4_blocks_with_two_holders_each() -> None:
    whole = filled("w", (8, 6))
    blocks = [Box((4 * (i // 2), 3 * (i % 2)), (4, 3)) for i in range(4)]
    destinations = _ranks(_zeros({"w": whole}), (3,), (S(0),))
    report = refit_in_process(_boxed(whole, [*blocks, *blocks]), destinations)
    _check_all(destinations, _ranks({"w": whole}, (3,), (S(0),)), {"w": whole})
    assert report.nbytes == whole.nbytes


def test_a13_declared_even_layout_tells_the_global_shape() -> None:
    whole = filled("w", (8, 6))
    layout = Layout(Mesh(("tp",), (2,)), (reshard.Shard(1),))
    source = describe_ranks(2, lambda rank: {"w": (whole[:, 3 * rank : 3 * rank + 3], layout)})
    assert source[0].specs[0].shape == (8, 6)
    destinations = _ranks(_zeros({"w": whole}), (3,), (S(0),))
    refit_in_process(source, destinations)
    _check_all(destinations, _ranks({"w": whole}, (3,), (S(0),)), {"w": whole})


def test_c1_fused_on_each_rank() -> None:
    gate, up = filled("gate", (8, 4)), filled("up", (8, 4))
    half = Layout(Mesh(("tp",), (2,)), (reshard.Shard(0),))
    layout = SegmentedLayout(0, (8, 8), (half, half))
    forms = {
        "fused": (
            Part("gate", Form("r e -> r e", sizes={"r": 8})),
            Part("up", Form("r e -> r e", sizes={"r": 8}, start={0: 8})),
        )
    }
    destinations = describe_ranks(
        2, lambda _: {"fused": (torch.zeros(8, 4), layout, (16, 4))}, forms=forms
    )
    refit_in_process(_ranks({"gate": gate, "up": up}, (4,), (S(0),)), destinations)
    whole = torch.cat([gate, up])
    for rank, each in enumerate(destinations):
        rows = slice(4 * rank, 4 * rank + 4)
        compare("fused", each.local["fused"], torch.cat([gate[rows], up[rows]]), whole)


def test_d5_fewer_heads_than_ranks() -> None:
    whole = filled("k", (2 * 2, 6))  # 2 heads of dim 2
    layout = Layout(Mesh(("heads", "copies"), (2, 2)), (reshard.Shard(0), reshard.Replicate()))
    destinations = describe_ranks(4, lambda _: {"k": (torch.zeros(2, 6), layout)})
    refit_in_process(_ranks({"k": whole}, (2,), (S(1),)), destinations)
    for rank, each in enumerate(destinations):
        head = rank // 2
        compare("k", each.local["k"], whole[2 * head : 2 * head + 2], whole)


def test_d4_local_size_taken_for_the_global_one() -> None:
    whole = filled("experts", (128, 8))
    source = _ranks({"experts": whole}, (2,), (S(0),))
    believed_whole = describe_ranks(2, lambda _: {"experts": torch.zeros(64, 8)})
    with pytest.raises(PlanError, match=r"experts: .*\(128, 8\).*\(64, 8\)"):
        refit_in_process(source, believed_whole)
    replicated = Layout.replicated(Mesh(("tp",), (2,)))
    with pytest.raises(LayoutError, match=r"experts: the local tensor of rank 0 .*\(64, 8\)"):
        describe_ranks(2, lambda _: {"experts": (torch.zeros(64, 8), replicated, (128, 8))})


def test_fa22_vocabulary_padded_on_both_sides() -> None:
    whole = filled("embed", (10, 3))
    tail = torch.full((2, 3), 7.0)

    def forms(name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        return (Part(name, Form("vocab e -> vocab e", sizes={"vocab": 10})),)

    def padded(length: int, content: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = torch.cat([content, tail, tail, tail])[:length]
        return {"embed": _distributed(rows, (4,) if length == 12 else (8,), (S(0),))}

    source = describe_ranks(4, lambda _: padded(12, whole), forms=forms, padding="keep")
    for rule, value in (("keep", 7.0), ("zero", 0.0)):
        old = torch.zeros(10, 3)
        destinations = describe_ranks(8, lambda _: padded(16, old), forms=forms, padding=rule)  # noqa: B023
        refit_in_process(source, destinations)
        found = torch.cat([each.local["embed"] for each in destinations])
        compare("embed", found[:10], whole, whole)
        assert (found[10:] == value).all()
    with pytest.raises(LayoutError, match="embed: no part covers"):
        describe_ranks(4, lambda _: padded(12, whole), forms=forms)


# ---- memory order and forms


def test_c11_heads_of_a_transposed_kernel() -> None:
    kernel = filled("q", (4, 2, 3))
    forms = {"q": (Part("q", Form("embed heads dim -> (heads dim) embed")),)}
    source = describe_ranks(2, lambda _: {"q": _distributed(kernel, (2,), (S(1),))}, forms=forms)
    weight = kernel.permute(1, 2, 0).reshape(6, 4)
    destinations = _ranks({"q": torch.zeros(6, 4)}, (3,), (S(0),))
    refit_in_process(source, destinations)
    _check_all(destinations, _ranks({"q": weight}, (3,), (S(0),)), {"q": weight})


def test_fa1_rows_interleaved_per_head() -> None:
    """Equal names and shapes, another order of rows: forms say it, and the move undoes it."""
    q, k, v = (filled(name, (4, 5)) for name in "qkv")
    per_head = torch.stack([t.view(2, 2, 5) for t in (q, k, v)], dim=1).reshape(12, 5)
    src_forms = {
        "qkv": tuple(
            Part(
                name,
                Form(
                    "(heads three dim) e -> (heads dim) e",
                    sizes={"heads": 2, "three": 3},
                    index={"three": i},
                ),
            )
            for i, name in enumerate("qkv")
        )
    }
    dst_forms = {
        "qkv": tuple(
            Part(name, Form("rows e -> rows e", sizes={"rows": 4}, start={0: 4 * i}))
            for i, name in enumerate("qkv")
        )
    }
    source = describe_ranks(
        2, lambda _: {"qkv": _distributed(per_head, (2,), (S(0),))}, forms=src_forms
    )
    whole = torch.cat([q, k, v])
    destinations = describe_ranks(
        2, lambda _: {"qkv": _distributed(torch.zeros(12, 5), (2,), (S(0),))}, forms=dst_forms
    )
    refit_in_process(source, destinations)
    _check_all(destinations, _ranks({"qkv": whole}, (2,), (S(0),)), {"qkv": whole})


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda t: t.t(), id="fa25_transposed"),
        pytest.param(lambda t: t[::2], id="fa26_every_other_row"),
        pytest.param(lambda t: t[:, ::3], id="c13_every_third_column"),
        pytest.param(lambda t: t[1:, 2:], id="c13_slice"),
        pytest.param(lambda t: t[:1].expand(5, -1), id="c13_expanded"),
        pytest.param(lambda t: t.view(4, 3, 2).permute(2, 0, 1), id="c13_permuted"),
    ],
)
def test_c13_views_are_sent_by_index(view) -> None:
    seen = view(filled("base", (4, 6)))
    whole = seen.contiguous()
    source = describe_ranks(1, lambda _: {"w": seen})
    destinations = _ranks(_zeros({"w": whole}), (2,), (S(0),))
    refit_in_process(source, destinations)
    _check_all(destinations, _ranks({"w": whole}, (2,), (S(0),)), {"w": whole})


def test_c13_views_are_written_by_index() -> None:
    whole = filled("w", (4, 6))
    base = torch.full((6, 9), -1.0)
    destinations = describe_ranks(1, lambda _: {"w": base[:, 1::2].t()})
    refit_in_process(_ranks({"w": whole}, (2,), (S(0),)), destinations)
    assert torch.equal(base[:, 1::2], whole.t())
    assert (base[:, ::2] == -1).all()


def test_c13_expanded_destination_is_refused() -> None:
    destinations = describe_ranks(1, lambda _: {"w": torch.zeros(1, 6).expand(4, 6)})
    specs = list(destinations[0].specs)
    with pytest.raises(LayoutError, match=r"w: .* one byte stands for several elements"):
        check_buffers(specs, [0], destinations[0].buffers, writes=True)


def test_a10_row_parallel_weight_with_the_strides_of_the_full_shard() -> None:
    whole = filled("w", (3, 9))

    def make(rank: int) -> dict[str, torch.Tensor]:
        local = torch.full((3, 5), -1.0)[:, : 5 - rank]
        local.copy_(whole[:, 5 * rank : 5 + 4 * rank])
        mesh = init_device_mesh("cpu", (2,))
        tensor = DTensor.from_local(local, mesh, [S(1)], shape=whole.shape, stride=whole.stride())
        return {"w": tensor}

    source = describe_ranks(2, make)
    assert source[1].local["w"].stride() == (5, 1)
    destinations = _ranks(_zeros({"w": whole}), (3,), (S(0),))
    refit_in_process(source, destinations)
    _check_all(destinations, _ranks({"w": whole}, (3,), (S(0),)), {"w": whole})


# ---- meshes


def test_b6_permuted_mesh() -> None:
    whole = filled("w", (4, 4))

    def make(_: int, content: torch.Tensor) -> dict[str, torch.Tensor]:
        mesh = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]))
        return {"w": distribute_tensor(content.clone(), mesh, [S(0), S(1)], src_data_rank=None)}

    destinations = describe_ranks(4, lambda rank: make(rank, torch.zeros(4, 4)))
    refit_in_process(_ranks({"w": whole}, (2, 2), (S(0), S(1))), destinations)
    corners = [whole[:2, :2], whole[2:, :2], whole[:2, 2:], whole[2:, 2:]]
    for each, expected in zip(destinations, corners, strict=True):
        compare("w", each.local["w"], expected, whole)


def test_fa16_ranks_that_are_not_contiguous() -> None:
    whole = filled("w", (8, 3))

    def make(_: int) -> dict[str, torch.Tensor]:
        mesh = DeviceMesh("cpu", torch.tensor([0, 2, 5, 7]))
        return {"w": distribute_tensor(whole.clone(), mesh, [S(0)], src_data_rank=None)}

    destinations = _ranks(_zeros({"w": whole}), (3,), (S(1),))
    refit_in_process(describe_ranks(8, make), destinations)
    _check_all(destinations, _ranks({"w": whole}, (3,), (S(1),)), {"w": whole})


def test_fa5_one_mesh_for_attention_and_another_for_mlp() -> None:
    wholes = {"attn": filled("attn", (8, 3)), "mlp": filled("mlp", (8, 3))}

    def make(content: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        pairs = init_device_mesh("cpu", (2, 2))
        four = init_device_mesh("cpu", (4,))
        return {
            "attn": distribute_tensor(content["attn"], pairs, [R, S(0)], src_data_rank=None),
            "mlp": distribute_tensor(content["mlp"], four, [S(0)], src_data_rank=None),
        }

    destinations = describe_ranks(4, lambda _: make(_zeros(wholes)))
    refit_in_process(_ranks(wholes, (3,), (S(1),)), destinations)
    _check_all(destinations, describe_ranks(4, lambda _: make(wholes)), wholes)


def test_b11_pipeline_stages_on_both_sides() -> None:
    wholes = {f"layers.{i}.w": filled(f"layers.{i}.w", (8, 8)) for i in range(8)}
    norms = {f"layers.{i}.norm": filled(f"layers.{i}.norm", (8,)) for i in range(8)}

    def stage(
        rank: int, num_stages: int, tp: int, dim: int, content: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        mesh = init_device_mesh("cpu", (num_stages, tp), mesh_dim_names=("pp", "tp"))
        per_stage = 8 // num_stages
        mine = range(rank // tp * per_stage, (rank // tp + 1) * per_stage)
        tensors: dict[str, torch.Tensor] = {}
        for i in mine:
            name = f"layers.{i}.w"
            tensors[name] = distribute_tensor(
                content[name].clone(), mesh["tp"], [S(dim)], src_data_rank=None
            )
            tensors[f"layers.{i}.norm"] = content[f"layers.{i}.norm"].clone()
        return tensors

    everything = wholes | norms
    source = describe_ranks(8, lambda rank: stage(rank, 4, 2, 0, everything))
    destinations = describe_ranks(8, lambda rank: stage(rank, 2, 4, 1, _zeros(everything)))
    report = refit_in_process(source, destinations)
    assert report.num_parameters == 16
    expected = describe_ranks(8, lambda rank: stage(rank, 2, 4, 1, everything))
    _check_all(destinations, expected, everything)


def test_fa12_ranks_with_different_numbers_of_tensors() -> None:
    wholes = {name: filled(name, (3, 4)) for name in "abc"}
    source = describe_ranks(2, lambda rank: dict(wholes) if rank == 0 else {})
    destinations = describe_ranks(2, lambda rank: {} if rank == 0 else _zeros(wholes))
    refit_in_process(source, destinations)
    for name, whole in wholes.items():
        compare(name, destinations[1].local[name], whole, whole)


def test_norms_that_fsdp_cuts_beside_tensor_parallelism() -> None:
    """A norm under FSDP is on the mesh of its FSDP ranks only, another one for each TP rank."""
    whole = filled("norm", (6,))

    def make(_: int) -> dict[str, torch.Tensor]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        return {"norm": distribute_tensor(whole, mesh["fsdp"], [S(0)], src_data_rank=None)}

    destinations = describe_ranks(2, lambda _: {"norm": torch.zeros(6)})
    report = refit_in_process(describe_ranks(4, make), destinations)
    for each in destinations:
        compare("norm", each.local["norm"], whole, whole)
    assert report.share_resharded == 1.0


@pytest.mark.parametrize("rows", [10, 9])
def test_a5_fsdp2_over_tensor_parallel(rows: int) -> None:
    """Nine rows over tp=2 and fsdp=4 are cut by FSDP2 in a way that its placements do not say."""
    whole = filled("up.weight", (rows, 3))

    def make(_: int) -> torch.nn.Module:
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("fsdp", "tp"))
        module = torch.nn.Sequential()
        module.add_module("up", torch.nn.Linear(3, rows, bias=False))
        with torch.no_grad():
            module.up.weight.copy_(whole)
        parallelize_module(module, mesh["tp"], {"up": ColwiseParallel()}, src_data_rank=None)
        fully_shard(module, mesh=mesh["fsdp"])
        return module

    destinations = _ranks(_zeros({"up.weight": whole}), (3,), (S(1),))
    refit_in_process(describe_ranks(8, make), destinations)
    expected = _ranks({"up.weight": whole}, (3,), (S(1),))
    _check_all(destinations, expected, {"up.weight": whole})


def test_fa18_experts_in_slots_of_a_balancer() -> None:
    """Four experts in six slots, out of order, two of them held twice, over dp=2 and tp=2."""
    slots = [2, 0, 3, 1, 2, 0]
    wholes = {f"experts.{e}": filled(f"experts.{e}", (4, 6)) for e in range(4)}
    form = "slots out in -> out in"
    forms = {
        "stack": tuple(
            Part(f"experts.{expert}", Form(form, index={"slots": slot}))
            for slot, expert in enumerate(slots)
        )
    }
    stack = torch.stack([wholes[f"experts.{expert}"] for expert in slots])
    destinations = describe_ranks(
        4,
        lambda _: {"stack": _distributed(torch.zeros_like(stack), (2, 2), (R, S(1)))},
        forms=forms,
    )
    refit_in_process(_ranks(wholes, (3,), (S(1),)), destinations)
    expected = _ranks({"stack": stack}, (2, 2), (R, S(1)))
    _check_all(destinations, expected, {"stack": stack})


def test_fa28_more_elements_than_32_bits_count() -> None:
    """Plans only: the tensors are on the meta device."""
    whole = torch.empty(65536, 65537, device="meta")

    def specs(mesh_shape: Sequence[int], placements: Sequence[object]) -> list[TensorSpec]:
        num_ranks = torch.Size(mesh_shape).numel()
        per_rank = []
        for rank in range(num_ranks):
            with fake_rank(rank, num_ranks):
                reader = TensorReader(Side.of_group())
                per_rank.append(
                    reader.read({"w": _distributed(whole, mesh_shape, placements)}).specs
                )
        assert all(each == per_rank[0] for each in per_rank)
        return list(per_rank[0])

    plan = make_plan(specs((4,), (S(0),)), [s.shifted(4) for s in specs((4,), (S(1),))])
    plan.check()
    assert sum(transfer.num_elements for transfer in plan.transfers()) == 65536 * 65537 > 1 << 32


def test_fa33_blocks_of_a_kernel() -> None:
    whole = filled("w", (4, 6))
    forms = {
        "w": (Part("w", Form("r c rows columns -> (r rows) (c columns)")),),
    }
    blocked = whole.view(2, 2, 2, 3).permute(0, 2, 1, 3).contiguous()
    destinations = describe_ranks(
        2,
        lambda _: {"w": _distributed(torch.zeros_like(blocked), (2,), (S(1),))},
        forms=forms,
    )
    source = _ranks({"w": whole}, (3,), (S(0),))
    refit_in_process(source, destinations)
    _check_all(destinations, _ranks({"w": blocked}, (2,), (S(1),)), {"w": blocked})
    back = _ranks(_zeros({"w": whole}), (3,), (S(0),))
    refit_in_process(destinations, back)
    _check_all(back, source, {"w": whole})


# ---- refusals


def test_fa27_replicas_that_differ_are_found() -> None:
    source = describe_ranks(2, lambda rank: {"rng_state": torch.full((4,), rank)})
    destinations = describe_ranks(1, lambda _: {"rng_state": torch.zeros(4, dtype=torch.int64)})
    with pytest.raises(VerificationError, match="rng_state"):
        refit_in_process(source, destinations)


def test_fb37_missing_tensor() -> None:
    source = _ranks({"a": torch.zeros(4)}, (2,), (S(0),))
    destinations = _ranks({"a": torch.zeros(4), "b": torch.zeros(4)}, (2,), (S(0),))
    with pytest.raises(PlanError, match="b: no source holds this destination tensor"):
        refit_in_process(source, destinations)
    refit_in_process(source, destinations, allow_unmatched=["b"])


def test_b9_fa3_ranks_with_different_ideas_of_the_mesh() -> None:
    whole = filled("w", (8, 3))

    def make(rank: int) -> dict[str, torch.Tensor]:
        order = [[0, 1], [2, 3]] if rank < 3 else [[0, 2], [1, 3]]
        mesh = DeviceMesh("cpu", torch.tensor(order))
        return {"w": distribute_tensor(whole, mesh, [S(0), S(0)], src_data_rank=None)}

    destinations = _ranks(_zeros({"w": whole}), (2,), (S(0),))
    with pytest.raises(LayoutError, match=r"w: .*process 3 says .*order of ranks"):
        refit_in_process(describe_ranks(4, make), destinations)


def test_the_checker_sees_a_stale_shard() -> None:
    """Negative control: a rank that got nothing is found, and so are values at a wrong place."""
    whole = filled("w", (6, 4))
    stale = describe_ranks(2, lambda rank: {"w": filled("w", (6, 4), version=rank)})
    with pytest.raises(AssertionError, match=r"elements are wrong.*belongs nowhere"):
        compare("w", stale[1].local["w"], whole, whole)
    with pytest.raises(AssertionError, match=r"belongs at \[1, 0\]"):
        compare("w", whole.roll(-1, 0), whole, whole)
