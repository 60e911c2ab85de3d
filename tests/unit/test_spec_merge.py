"""One side's tensors out of what each of its processes describes."""

from __future__ import annotations

import dataclasses

import pytest

from reshard import (
    Box,
    BoxLayout,
    Layout,
    LayoutError,
    LocalBox,
    Mesh,
    Part,
    Replicate,
    Shard,
    TensorSpec,
)
from reshard.spec_codec import encode_specs
from reshard.spec_merge import merge_specs, shift_specs

TP = Layout(Mesh.of(tp=2), (Shard(0),))
A, B, C = (TensorSpec(name, (8, 4), "int8", TP) for name in "abc")


def merged(*processes):
    return merge_specs("source", [encode_specs(specs) for specs in processes])


def test_what_all_say_alike_is_there_once():
    assert merged([A, B], [A, B]) == [A, B]


def test_pipeline_stages_add_up_in_order_of_first_appearance():
    assert merged([B, A], [A, C]) == [B, A, C]
    assert merged([], [A]) == [A]


def test_explicit_boxes_of_each_process_are_joined():
    halves = [
        dataclasses.replace(A, layout=BoxLayout({rank: Box((4 * rank, 0), (4, 4))}))
        for rank in (0, 1)
    ]
    (joined,) = merged([halves[0]], [halves[1]])
    assert joined.layout == BoxLayout({0: Box((0, 0), (4, 4)), 1: Box((4, 0), (4, 4))})


def test_boxes_that_contradict_each_other_are_refused():
    one = dataclasses.replace(A, layout=BoxLayout({0: Box((0, 0), (4, 4))}))
    other = dataclasses.replace(A, layout=BoxLayout({0: Box((4, 0), (4, 4))}))
    with pytest.raises(LayoutError, match="a: source process 0 says layout"):
        merged([one], [other])


def test_copies_on_all_ranks_become_a_mesh():
    """So that plain arrays that every process has whole are planned like any replicated tensor."""
    whole = [dataclasses.replace(A, layout=BoxLayout({r: Box((0, 0), (8, 4))})) for r in (3, 1)]
    (found,) = merged([whole[0]], [whole[1]])
    assert found.layout == Layout(Mesh(("replica",), (2,), (1, 3)), (Replicate(),))


def test_boxes_that_are_not_the_whole_stay_boxes():
    boxes = BoxLayout({0: [LocalBox(Box((0, 0), (8, 4)), (1, 0))]})
    (found,) = merged([dataclasses.replace(A, layout=boxes)])
    assert found.layout == boxes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (8, 5)}, r"says shape \(8, 4\), process 1 says \(8, 5\)"),
        ({"dtype": "int16"}, "says dtype int8, process 1 says int16"),
        (
            {"layout": Layout(Mesh(("tp",), (2,), (1, 0)), (Shard(0),))},
            r"says layout .*, process 1 says .*check the mesh \(order of ranks\)",
        ),
        ({"padding": "keep"}, "says padding refuse, process 1 says keep"),
    ],
)
def test_layout_case_b9_contradictions_name_tensor_processes_and_both_values(changes, message):
    with pytest.raises(LayoutError, match=f"b: source process 0 {message}"):
        merged([A, B], [A, dataclasses.replace(B, **changes)])


def test_a_contradiction_of_layouts_shows_how_they_differ():
    swapped = dataclasses.replace(A, layout=Layout(Mesh(("tp",), (2,), (1, 0)), (Shard(0),)))
    with pytest.raises(LayoutError) as caught:
        merged([A], [swapped])
    first, second = str(caught.value).split(", process 1 says ")
    assert first.split("says layout ")[1] != second.split(". All processes")[0]


def test_shifting_keeps_equal_layouts_one_object():
    shifted = shift_specs([A, B], 5)
    assert shifted == [A.shifted(5), B.shifted(5)]
    assert shifted[0].layout is shifted[1].layout
    assert shift_specs([A], 0) == [A]


def test_tensors_that_are_cut_alike_share_their_joined_layout():
    """One layout object per tensor made planning pay for each tensor what it pays for one."""
    names = [f"w{i}" for i in range(5)]
    told = [
        [TensorSpec(n, (4, 2), "float32", BoxLayout({r: Box((r, 0), (1, 2))})) for n in names]
        for r in range(4)
    ]
    joined = merged(*told)
    assert len({id(spec.layout) for spec in joined}) == 1
    assert joined[0].layout.ranks == (0, 1, 2, 3)
    copies = [
        [TensorSpec(n, (2,), "float32", BoxLayout({r: Box((0,), (2,))})) for n in names]
        for r in range(2)
    ]
    joined = merged(*copies)
    assert len({id(spec.layout) for spec in joined}) == 1
    assert isinstance(joined[0].layout, Layout)


def test_tensors_that_processes_cut_differently_keep_their_own_layouts():
    """The first process has the same part of both."""
    own = {"v": ((0, 2), (2, 2)), "w": ((0, 2), (2, 1))}
    told = []
    for rank in range(2):
        boxes = {name: Box((own[name][rank][0], 0), (own[name][rank][1], 2)) for name in own}
        told.append(
            [
                TensorSpec("v", (4, 2), "float32", BoxLayout({rank: boxes["v"]})),
                TensorSpec("w", (3, 2), "float32", BoxLayout({rank: boxes["w"]})),
            ]
        )
    v, w = merged(*told)
    assert v.layout.local_shape(1, (4, 2)) == (2, 2)
    assert w.layout.local_shape(1, (3, 2)) == (1, 2)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dtype": "int32"}, "dtype float32, process 1 says int32"),
        ({"shape": (4, 4)}, "shape"),
        ({"padding": "zero"}, "padding refuse, process 1 says zero"),
        ({"parts": (Part("other"),)}, "parts"),
    ],
)
def test_boxes_are_not_joined_if_anything_else_differs(change, what):
    layouts = [BoxLayout({rank: Box((2 * rank, 0), (2, 2))}) for rank in range(2)]
    first = TensorSpec("w", (4, 2), "float32", layouts[0])
    second = dataclasses.replace(TensorSpec("w", (4, 2), "float32", layouts[1]), **change)
    with pytest.raises(LayoutError, match=rf"w: source process 0 says {what}"):
        merged([first], [second])
