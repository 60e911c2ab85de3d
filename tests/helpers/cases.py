"""Layouts that users of sharded-weight libraries reported, made small: named pairs of sides.

Each name begins with its row in tests/README.md and says where it was reported. Destination ranks
are numbered from 100 where nothing else is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reshard import (
    AnyLayout,
    Box,
    BoxLayout,
    DType,
    Form,
    Layout,
    LocalBox,
    Mesh,
    Padding,
    Part,
    Replicate,
    SegmentedLayout,
    Shard,
    TensorSpec,
)

__all__ = ["CASES", "Case"]

R = Replicate()


@dataclass(frozen=True)
class Case:
    """Specs of both sides, with ranks in one numbering."""

    src: tuple[TensorSpec, ...]
    dst: tuple[TensorSpec, ...]


CASES: dict[str, Case] = {}


def _case(name: str) -> Callable[[Callable[[], Case]], None]:
    def add(make: Callable[[], Case]) -> None:
        assert name not in CASES, name
        CASES[name] = make()

    return add


def spec(
    shape: tuple[int, ...],
    layout: AnyLayout,
    *,
    name: str = "w",
    parts: Sequence[Part] = (),
    dtype: DType = DType.FLOAT32,
    padding: Padding = "refuse",
) -> TensorSpec:
    return TensorSpec(name, shape, dtype, layout, tuple(parts), padding)


def pair(shape: tuple[int, ...], src: AnyLayout, dst: AnyLayout, *, first: int = 100) -> Case:
    """One tensor, stored as it is on both sides."""
    return Case((spec(shape, src),), (spec(shape, dst.shifted(first)),))


def _boxes(boxes: dict[int, Box]) -> BoxLayout:
    """One box per rank, which is its local array."""
    places = {rank: (LocalBox(box, (0,) * box.ndim),) for rank, box in boxes.items()}
    return BoxLayout(tuple(places.items()))


def cut(*dims: int, **sizes: int) -> Layout:
    """A mesh with one dim (or -1 for a replica) per axis."""
    placements = tuple(R if dim < 0 else Shard(dim) for dim in dims)
    return Layout(Mesh.of(**sizes), placements)


ONE = cut(-1, x=1)

# ---- A: uneven, empty and strided shards -------------------------------------------------------


@_case("A1 pytorch#103306 shards of 2, 2, 1 and 0 rows")
def _() -> Case:
    return pair((5, 10), cut(0, x=4), ONE)


@_case("A2 pytorch#143372 the last shard is empty")
def _() -> Case:
    return pair((6, 256), cut(0, x=4), cut(1, y=2))


@_case("A3 pytorch#144109 widths of 2, 3, 4 and 5")
def _() -> Case:
    starts, widths = (0, 2, 5, 9), (2, 3, 4, 5)
    columns = enumerate(zip(starts, widths, strict=True))
    return pair((2, 14), _boxes({r: Box((0, a), (2, n)) for r, (a, n) in columns}), ONE)


@_case("A4 pytorch#115525 two axes cut seven rows")
def _() -> Case:
    return pair((7, 5), cut(0, 0, a=2, b=2), ONE)


def _strided(length: int) -> Case:
    layout = Layout(Mesh.of(dp=2, tp=2), (Shard(0, blocks=2), Shard(0)))
    return pair((length,), layout, ONE)


@_case("A5 pytorch#150490 five elements over FSDP after TP")
def _() -> Case:
    return _strided(5)


@_case("A5 pytorch#150490 six elements over FSDP after TP")
def _() -> Case:
    return _strided(6)


@_case("A8 pytorch#129206 TP cuts before FSDP")
def _() -> Case:
    src = Layout(Mesh.of(fsdp=2, tp=2), (Shard(0), Shard(0)), ("tp", "fsdp"))
    return pair((8, 2), src, cut(0, y=4))


@_case("A9 pytorch#178735 three axes on one dim in another order")
def _() -> Case:
    mesh = Mesh.of(a=2, b=2, c=2)
    src = Layout(mesh, (Shard(0),) * 3, ("b", "c", "a"))
    return pair((9, 2), src, Layout(mesh, (Shard(0),) * 3, ("c", "a", "b")))


@_case("A12 TensorRT-LLM#14875 chunked source, balanced destination")
def _() -> Case:
    balanced = Layout(Mesh.of(y=4), (Shard(0),), division="balanced")
    return pair((10, 3), cut(0, x=4), balanced)


@_case("A13 vllm#50735 shards in proportion 2:1:1")
def _() -> Case:
    rows = {0: Box((0, 0), (8, 8)), 1: Box((8, 0), (4, 8)), 2: Box((12, 0), (4, 8))}
    return pair((16, 8), _boxes(rows), cut(0, y=2))


@_case("A14 DeepSpeed#8185 a grain of 64 over 151 rows")
def _() -> Case:
    return pair(
        (151, 3), _boxes({0: Box((0, 0), (128, 3)), 1: Box((128, 0), (23, 3))}), cut(1, y=2)
    )


@_case("A15 transformers#37051 five ranks for a vocabulary of 321")
def _() -> Case:
    return pair((321, 8), cut(0, x=5), ONE)


# ---- B: several sharded axes, mesh shapes, rank order ------------------------------------------


@_case("B1 torchtitan#1561 experts and FSDP cut the same dim")
def _() -> Case:
    src = Layout(Mesh.of(fsdp=2, ep=4), (Shard(0, blocks=4), Shard(0)))
    return pair((8, 16, 8), src, cut(0, y=4))


@_case("B1 torchtitan#1561 four experts over 2 x 4 ranks")
def _() -> Case:
    return pair((4, 16, 8), cut(1, 0, fsdp=2, ep=4), cut(0, y=4))


@_case("B1 torchtitan#1561 four experts over eight FSDP ranks")
def _() -> Case:
    return pair((4, 16, 8), cut(1, fsdp=8), cut(0, y=4))


@_case("B2 torchtitan#1570 three axes")
def _() -> Case:
    src = Layout(Mesh.of(fsdp=2, ep=2, tp=2), (Shard(0), Shard(0), Shard(1)))
    return pair((16, 64, 32), src, cut(2, y=4))


@_case("B3 vllm#46439 experts and their tensor parallelism")
def _() -> Case:
    return pair((8, 12, 6), cut(0, 1, ep=2, etp=2), cut(1, y=3))


@_case("B4 verl#6974 blocks with two holders each")
def _() -> Case:
    top, bottom = Box((0, 0), (4, 6)), Box((4, 0), (4, 6))
    return pair((8, 6), _boxes({0: top, 1: bottom, 2: top, 3: bottom}), cut(0, y=3))


@_case("B6 torchtitan#1106 a permuted grid of devices")
def _() -> Case:
    mesh = Mesh(("a", "b"), (2, 2), (0, 2, 1, 3))
    return pair((4, 4), Layout(mesh, (Shard(0), Shard(1))), cut(0, y=2))


@_case("B8 xla#5305 names of a tuple, one order")
def _() -> Case:
    mesh = Mesh.of(fsdp=2, tp=2)
    return pair((8, 4), Layout.from_spec(mesh, (("fsdp", "tp"), None)), cut(1, y=2))


@_case("B8 xla#5305 names of a tuple, the other order")
def _() -> Case:
    mesh = Mesh.of(fsdp=2, tp=2)
    return pair((8, 4), Layout.from_spec(mesh, (("tp", "fsdp"), None)), cut(1, y=2))


@_case("B11 NeMo-RL#4104 pipeline stages on both sides")
def _() -> Case:
    src, dst = [], []
    for layer in range(8):
        train = cut(0, tp=2).shifted(2 * (layer // 2))
        engine = cut(1, tp=4).shifted(100 + 4 * (layer // 4))
        src.append(spec((8, 8), train, name=f"l{layer}"))
        dst.append(spec((8, 8), engine, name=f"l{layer}"))
    return Case(tuple(src), tuple(dst))


@_case("B12 nccl-extensions 32 sources for one destination")
def _() -> Case:
    return pair((64, 8), cut(0, fsdp=32), cut(1, y=2))


@_case("B14 Megatron-LM#7189 EP16 to EP4 with replicas")
def _() -> Case:
    src, dst = [], []
    for expert in range(32):
        holder = _boxes({expert // 2: Box((0, 0), (3, 4))})
        takers = _boxes({100 + expert // 8 + 4 * copy: Box((0, 0), (3, 4)) for copy in (0, 1)})
        src.append(spec((3, 4), holder, name=f"e{expert}"))
        dst.append(spec((3, 4), takers, name=f"e{expert}"))
    return Case(tuple(src), tuple(dst))


# ---- C: fused, interleaved and transposed ------------------------------------------------------

TP2 = cut(0, tp=2)


def _segment(name: str, rows: int, start: int) -> Part:
    return Part(name, Form("r e -> r e", (("r", rows),), start=((0, start),)))


def _gate_up(rows: int, dst: AnyLayout) -> Case:
    src = tuple(spec((rows, 4), cut(0, fsdp=2), name=name) for name in ("gate", "up"))
    parts = (_segment("gate", rows, 0), _segment("up", rows, rows))
    return Case(src, (spec((2 * rows, 4), dst.shifted(100), name="gate_up", parts=parts),))


@_case("C1 Megatron-LM#360 each rank holds its gate and its up")
def _() -> Case:
    return _gate_up(8, SegmentedLayout(0, (8, 8), (TP2, TP2)))


@_case("C1 the fused tensor is cut as a whole")
def _() -> Case:
    return _gate_up(8, TP2)


@_case("C1 the fused tensor is cut into blocks, as torch's strided shard")
def _() -> Case:
    return _gate_up(8, Layout(Mesh.of(tp=2), (Shard(0, blocks=2),)))


@_case("C3 tinker-cookbook#459 rows of gate and up alternate")
def _() -> Case:
    src = tuple(spec((8, 4), cut(0, fsdp=2), name=name) for name in ("gate", "up"))
    parts = [
        Part(name, Form("(f two) e -> f e", (("two", 2),), (("two", i),)))
        for i, name in enumerate(("gate", "up"))
    ]
    return Case(src, (spec((16, 4), TP2.shifted(100), name="gate_up", parts=parts),))


@_case("C4 torchtitan#3867 only the gate is updated")
def _() -> Case:
    src = (spec((8, 4), cut(0, fsdp=2), name="gate"),)
    fused = SegmentedLayout(0, (8, 8), (TP2, TP2)).shifted(100)
    parts = (_segment("gate", 8, 0),)
    return Case(src, (spec((16, 4), fused, name="gate_up", parts=parts, padding="keep"),))


@_case("C6 torchtitan#4535 a gate of three rows over two ranks")
def _() -> Case:
    return _gate_up(3, SegmentedLayout(0, (3, 3), (TP2, TP2)))


@_case("C11 tunix#2014 a kernel of heads to a matrix")
def _() -> Case:
    part = Part("w", Form("inner heads dim -> (heads dim) inner"))
    src = spec((4, 2, 3), cut(1, tp=2), name="kernel", parts=[part])
    return Case((src,), (spec((6, 4), cut(0, y=4).shifted(100)),))


@_case("R1 vllm#51520 rows per head against blocks of q, k, v")
def _() -> Case:
    names = ("q", "k", "v")
    per_head = [
        Part(
            n,
            Form(
                "(heads three dim) e -> (heads dim) e",
                (("heads", 2), ("three", 3)),
                (("three", i),),
            ),
        )
        for i, n in enumerate(names)
    ]
    blocks = [_segment(n, 4, 4 * i) for i, n in enumerate(names)]
    src = spec((12, 4), cut(0, x=2), name="qkv", parts=per_head)
    dst = SegmentedLayout(0, (4, 4, 4), (TP2,) * 3).shifted(100)
    return Case((src,), (spec((12, 4), dst, name="qkv", parts=blocks),))


@_case("R33 verl#7987 a matrix stored in swizzled blocks")
def _() -> Case:
    part = Part("w", Form("ra ca rb cb -> (ra rb) (ca cb)"))
    return Case(
        (spec((4, 4), cut(0, x=2)),),
        (spec((2, 2, 2, 2), cut(0, 1, a=2, b=2).shifted(100), parts=[part]),),
    )


# ---- D: experts, heads, vocabulary, tied weights -----------------------------------------------


@_case("D1 AReaL#1595 experts are numbered globally")
def _() -> Case:
    src = [spec((3, 4), _boxes({e // 2: Box((0, 0), (3, 4))}), name=f"e{e}") for e in range(8)]
    stack = [Part(f"e{e}", Form("experts o i -> o i", index=(("experts", e),))) for e in range(8)]
    return Case(tuple(src), (spec((8, 3, 4), cut(0, ep=2).shifted(100), name="w13", parts=stack),))


@_case("D2 NeMo-RL#3403 a stack of experts, gate and up, to single tensors")
def _() -> Case:
    parts, dst = [], []
    for e in range(4):
        for h, half in enumerate(("gate", "up")):
            form = Form(
                "experts (halves i) h -> i h",
                (("halves", 2),),
                (("experts", e), ("halves", h)),
            )
            parts.append(Part(f"{e}.{half}", form))
            dst.append(spec((3, 2), cut(0, tp=3).shifted(100), name=f"{e}.{half}"))
    return Case((spec((4, 6, 2), cut(0, ep=2), name="experts", parts=parts),), tuple(dst))


@_case("D5 transformers#48307 two heads on four ranks")
def _() -> Case:
    sizes = (("heads", 2), ("r", 2))
    part = Part("k", Form("(heads r dim) e -> (heads dim) e", sizes, repeat=("r",)))
    src = spec((4, 6), cut(0, fsdp=2), name="k")
    return Case((src,), (spec((8, 6), cut(0, tp=4).shifted(100), name="k", parts=[part]),))


@_case("D5 vllm#38191 four heads of 16 on eight ranks")
def _() -> Case:
    sizes = (("heads", 4), ("r", 2))
    part = Part("k", Form("(heads r dim) e -> (heads dim) e", sizes, repeat=("r",)))
    src = spec((64, 12), cut(1, 0, fsdp=3, tp=2), name="k")
    return Case((src,), (spec((128, 12), cut(0, tp=8).shifted(100), name="k", parts=[part]),))


def _vocabulary(src_rows: int, dst_rows: int, padding: Padding) -> Case:
    def padded(rows: int, layout: Layout, how: Padding) -> TensorSpec:
        return spec((rows, 4), layout, name="embed", parts=[_segment("embed", 10, 0)], padding=how)

    return Case(
        (padded(src_rows, cut(0, tp=4), "keep"),),
        (padded(dst_rows, cut(0, tp=2).shifted(100), padding),),
    )


@_case("D8 vllm#12230 both sides pad the vocabulary, padding is left alone")
def _() -> Case:
    return _vocabulary(12, 16, "keep")


@_case("D8 vllm#12230 both sides pad the vocabulary, padding is zeroed")
def _() -> Case:
    return _vocabulary(12, 16, "zero")


@_case("D9 labs-molt#26 tied at the source only")
def _() -> Case:
    src = spec((10, 4), cut(0, x=2), name="embed", parts=[Part("embed", None, ("head",))])
    dst = [spec((10, 4), cut(0, y=2).shifted(100), name=name) for name in ("embed", "head")]
    return Case((src,), tuple(dst))


@_case("D9 labs-molt#26 tied at the destination, by the other name")
def _() -> Case:
    dst = spec((10, 4), cut(1, y=2).shifted(100), name="e", parts=[Part("head", None, ("embed",))])
    return Case((spec((10, 4), cut(0, x=2), name="embed"),), (dst,))


@_case("R18 SGLang#39990 experts in an order of the engine's, one of them twice")
def _() -> Case:
    src = [spec((3, 4), _boxes({e: Box((0, 0), (3, 4))}), name=f"e{e}") for e in range(4)]
    slots = {100: (2, 0), 101: (3, 2), 102: (1, 2)}
    dst = []
    for rank, experts in slots.items():
        parts = [
            Part(f"e{e}", Form("slots o i -> o i", (("slots", 2),), (("slots", slot),)))
            for slot, e in enumerate(experts)
        ]
        layout = _boxes({rank: Box((0, 0, 0), (2, 3, 4))})
        dst.append(spec((2, 3, 4), layout, name=f"slots of {rank}", parts=parts))
    return Case(tuple(src), tuple(dst))


@_case("R20 NeMo-RL#3739 EP3 of six experts to EP2")
def _() -> Case:
    return pair((6, 4, 4), cut(0, ep=3), cut(0, ep=2))


# ---- further reports of refit systems ----------------------------------------------------------


@_case("R5 RLinf#1520 tensor parallelism differs per kind of layer")
def _() -> Case:
    src = [spec((8, 4), cut(0, fsdp=4), name=name) for name in ("attention", "mlp")]
    dst = [
        spec((8, 4), cut(0, tp=2).shifted(100), name="attention"),
        spec((8, 4), cut(0, tp=4).shifted(100), name="mlp"),
    ]
    return Case(tuple(src), tuple(dst))


@_case("R6 prime-rl two axes on one dim of six rows")
def _() -> Case:
    return pair((6, 4), cut(0, 0, fsdp=2, tp=2), cut(1, y=2))


@_case("R7 verl#6974 experts cut dim 0, FSDP dim 1 as 2, 2, 2, 0")
def _() -> Case:
    return pair((8, 6, 4), cut(0, 1, ep=2, fsdp=4), cut(0, y=4))


@_case("R11 torchstore#177 two rows on four ranks")
def _() -> Case:
    return pair((2, 3), cut(0, x=4), cut(0, y=4))


@_case("R14 cosmos-rl#11 five rows over two, seven elements over four")
def _() -> Case:
    src = (spec((5, 3), cut(0, x=2), name="a"), spec((7,), cut(0, x=4), name="b"))
    dst = (
        spec((5, 3), cut(1, y=2).shifted(100), name="a"),
        spec((7,), cut(0, y=3).shifted(100), name="b"),
    )
    return Case(src, dst)


@_case("R16 a convolution, ranks 0, 2, 5 and 7")
def _() -> Case:
    mesh = Mesh(("a", "b"), (2, 2), (0, 2, 5, 7))
    return pair((2, 3, 4, 4), Layout(mesh, (Shard(2), Shard(3))), cut(1, y=3))


@_case("R17 nccl-extensions#9 replicated on all axes")
def _() -> Case:
    return pair((4, 4), cut(0, x=2), cut(-1, -1, a=2, b=2))


@_case("R34 verl#4728 four servers of two ranks")
def _() -> Case:
    return pair((8, 4), cut(0, fsdp=8), cut(-1, 0, dp=4, tp=2))


@_case("R57 vllm-ascend#16322 a tensor without elements among others")
def _() -> Case:
    src = (spec((0, 4), cut(0, x=2), name="empty"), spec((4, 4), cut(0, x=2), name="w"))
    dst = (
        spec((0, 4), cut(1, y=2).shifted(100), name="empty"),
        spec((4, 4), cut(1, y=2).shifted(100), name="w"),
    )
    return Case(src, dst)


@_case("colocated: the same ranks, other placements")
def _() -> Case:
    return pair((9, 7), cut(0, x=4), cut(1, y=4), first=0)


@_case("colocated: half of the ranks are on both sides")
def _() -> Case:
    return pair((9, 7), cut(0, x=4), cut(-1, 0, dp=2, tp=2), first=2)


@_case("more ranks than elements")
def _() -> Case:
    return pair((3,), cut(0, x=8), cut(0, y=5))


@_case("a tensor of no dims")
def _() -> Case:
    return pair((), cut(-1, x=3), cut(-1, y=2))
