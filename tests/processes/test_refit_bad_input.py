"""Wrong calls: a clear error on every process, before any byte moves, and nothing is changed.

Two source processes and two of an engine. Each case breaks one thing of one of them.
"""

from __future__ import annotations

import dataclasses

import pytest
from helpers import refit_programs as programs
from helpers.refit_models import Program, fsdp_side, open_all, tp_side
from helpers.team import Team, kinds_of

from reshard import Box, BoxLayout, DType, Layout, Mesh, Part, Shard, TensorSpec

pytestmark = pytest.mark.processes

SOURCES, ENGINES = (0, 1), (2, 3)
EVERYBODY = (*SOURCES, *ENGINES)
ROWS = Layout(Mesh.of(x=2), (Shard(0),))


@pytest.fixture(scope="module")
def running():
    with Team(4) as team:
        yield team


@pytest.fixture
def team(running):
    yield running
    running.values(EVERYBODY, programs.close)


def changed(specs, name, **changes):
    """Returns specs with one of them changed."""
    assert any(spec.name == name for spec in specs)
    return [dataclasses.replace(spec, **changes) if spec.name == name else spec for spec in specs]


def attempt(team, version, timeout_s=None):
    """Lets everybody take part in one refit; returns all answers."""
    options = {} if timeout_s is None else {"timeout_s": timeout_s}
    for process in ENGINES:
        team.start(process, programs.refit, options)
    for process in SOURCES:
        team.start(process, programs.publish, version, options)
    return [team.result(process) for process in EVERYBODY]


def assert_refused(team, answers, kind, *words):
    """Every process raised the kind of error, and each message has all the words."""
    assert kinds_of(answers) == [kind] * 4, [answer.message for answer in answers]
    for answer in answers:
        for word in words:
            assert word in answer.message, (word, answer.message)


def assert_untouched_by(team, refused):
    """Runs something that must fail, and checks that arrays and states are as before."""
    before = team.values(EVERYBODY, programs.memory_digest)
    states = team.values(ENGINES, programs.state_of)
    answers = refused()
    assert team.values(EVERYBODY, programs.memory_digest) == before
    assert team.values(ENGINES, programs.state_of) == states
    return answers


def two(spec):
    return [dataclasses.replace(spec, name=name, parts=(Part(name),)) for name in ("a", "b")]


W = TensorSpec("w", (8, 4), DType.FLOAT32, ROWS)
GAP = BoxLayout({0: Box((0, 0), (4, 4)), 1: Box((5, 0), (3, 4))})

# name: (source specs, engine specs, options, words that every message has)
DO_NOT_FIT = {
    "shape": (
        fsdp_side(2),
        changed(tp_side(2), "embed", shape=(51, 24)),
        {},
        ("embed", "(50, 24)", "(51, 24)", "check the forms"),
    ),
    "dtype without a rule": (
        fsdp_side(2),
        changed(tp_side(2), "layers.1.down", dtype=DType.FLOAT32),
        {},
        ("layers.1.down", "bfloat16", "float32", "casts=[('bfloat16', 'float32')]"),
    ),
    "cast that does not exist": (
        [dataclasses.replace(W, dtype=DType.INT32)],
        [W],
        {"casts": [("int32", "float32")]},
        ("w: int32 cannot be cast to float32", "casts exist between float16"),
    ),
    "destination name without a source": (
        fsdp_side(2, layers=1),
        tp_side(2, layers=2),
        {},
        (
            "layers.1.gate: no source holds this destination tensor",
            "layers.1.norm",
            "allow_unmatched",
        ),
    ),
    "source name without a destination": (
        fsdp_side(2, layers=2),
        tp_side(2, layers=1),
        {},
        ("layers.1.gate: no destination takes this source tensor", "layers.1.q", "allow_unmatched"),
    ),
    "name matched twice": (
        [dataclasses.replace(W, name="a"), dataclasses.replace(W, name="b")],
        [W],
        {},
        ("w: both source tensors 'a' and 'b' provide it", "alias"),
    ),
    "tied on one side only": (
        two(W),
        [dataclasses.replace(W, parts=(Part("a", None, ("b",)),))],
        {},
        ("a", "the destination stores ('a', 'b') once in 'w'", "['a', 'b']", "Tie them"),
    ),
    "layout with a gap": (
        [dataclasses.replace(W, layout=GAP)],
        [dataclasses.replace(W, layout=Layout(Mesh.of(x=2), (Shard(1),)))],
        {},
        ("w: the source layout holds only 14 of the 16 elements", "[0:8, 0:2]", "cover"),
    ),
    "nothing to move": ([], [], {}, ("there is no tensor to move",)),
    "budget below one page per slot": (
        [W],
        [dataclasses.replace(W, layout=Layout(Mesh.of(x=2), (Shard(1),)))],
        {"staging_bytes": 30_000},
        (
            "staging_bytes=30000, the smallest that any process gave, is too small",
            "give at least 36864",
        ),
    ),
}


@pytest.mark.parametrize("name", DO_NOT_FIT)
def test_sides_that_do_not_fit(team, name):
    src, dst, options, words = DO_NOT_FIT[name]
    open_all(team, Program(SOURCES, src, options=options), [Program(ENGINES, dst, options=options)])
    team.values(SOURCES, programs.fill, 1)
    answers = assert_untouched_by(team, lambda: attempt(team, 1))
    assert_refused(team, answers, "PlanError", *words)


def test_the_same_ends_go_on_when_the_call_is_put_right(team):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2, layers=1))])
    assert_refused(team, attempt(team, 1), "PlanError", "layers.1.norm")
    team.values(ENGINES, programs.replace_specs, tp_side(2))
    team.values(SOURCES, programs.fill, 1)
    assert [answer.get().version for answer in attempt(team, 1)] == [1] * 4
    assert team.values(ENGINES, programs.check, 1) == [None] * 2


# name: (process, what happens to its buffers, words that every message has)
BAD_BUFFERS = {
    "source array of the wrong shape": (
        1,
        ("reshape", "embed", (24, 25)),
        ("embed", "rank 1", "(24, 25)", "(25, 24)", "Declare the layout"),
    ),
    "destination array of the wrong shape": (
        3,
        ("reshape", "layers.0.down", (20, 24)),
        ("layers.0.down", "rank 1", "(20, 24)", "(24, 20)"),
    ),
    "array of the wrong dtype": (
        2,
        ("retype", "embed", DType.FLOAT16),
        ("embed", "rank 0", "float16", "bfloat16"),
    ),
    "missing source array": (0, ("drop", "layers.1/q"), ("layers.1/q", "rank 0 gave no array")),
    "missing destination array": (3, ("drop", "embed"), ("embed", "rank 1 gave no array")),
    "no array at all": (1, ("drop all", "embed"), ("embed", "rank 1 gave no array")),
    "read-only destination array": (
        2,
        ("freeze", "layers.0.norm"),
        ("layers.0.norm", "rank 0 is read-only"),
    ),
    "destination arrays that share memory": (
        3,
        ("share", "layers.0.norm", "layers.1.norm"),
        ("layers.0.norm (rank 1)", "layers.1.norm (rank 1)", "overlap in memory", "alias"),
    ),
    "destination array that repeats elements": (
        3,
        ("repeat", "layers.0.norm"),
        ("layers.0.norm", "rank 1", "one byte stands for several elements"),
    ),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["first refit", "later refit"])
@pytest.mark.parametrize("name", BAD_BUFFERS)
def test_arrays_that_do_not_fit_the_layout(team, name, is_first):
    process, damage, words = BAD_BUFFERS[name]
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    if not is_first:
        team.values(SOURCES, programs.fill, 1)
        assert [answer.get().version for answer in attempt(team, 1)] == [1] * 4
    team.values(SOURCES, programs.fill, 2)
    team.values([process], programs.damage_buffers, *damage)
    answers = assert_untouched_by(team, lambda: attempt(team, 2))
    assert_refused(team, answers, "LayoutError", *words)
    team.values([process], programs.repair_buffers)
    assert [answer.get().version for answer in attempt(team, 2)] == [2] * 4
    assert team.values(ENGINES, programs.check, 2) == [None] * 2


def test_a_buffer_exchanged_in_the_same_mapping_is_seen(team):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    team.values(SOURCES, programs.fill, 1)
    assert [answer.get().version for answer in attempt(team, 1)] == [1] * 4
    team.values(SOURCES, programs.fill, 2)
    team.values([3], programs.damage_buffers_in_place, "reshape", "embed", (24, 25))
    answers = assert_untouched_by(team, lambda: attempt(team, 2))
    assert_refused(team, answers, "LayoutError", "embed", "rank 1", "(24, 25)", "(25, 24)")


def test_processes_that_describe_a_tensor_differently(team):
    """Layout case B9: one process has two entries of the mesh swapped."""
    swapped = dataclasses.replace(W, layout=Layout(Mesh(("x",), (2,), (1, 0)), (Shard(0),)))
    open_all(team, Program(SOURCES, [[W], [swapped]]), [Program(ENGINES, [W])])
    answers = assert_untouched_by(team, lambda: attempt(team, 1))
    assert_refused(
        team, answers, "LayoutError", "w: source process 0 says layout", "process 1 says", "mesh"
    )


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_tensor_that_one_rank_leaves_out(team, side):
    also = TensorSpec("also", W.shape, W.dtype, W.layout)
    whole, partial = [[W, also], [W, also]], [[W, also], [W]]
    source, engine = (partial, whole) if side == "source" else (whole, partial)
    open_all(team, Program(SOURCES, source), [Program(ENGINES, engine)])
    answers = assert_untouched_by(team, lambda: attempt(team, 1))
    assert_refused(team, answers, "LayoutError", "also: rank 1 gave no such tensor")


@pytest.mark.parametrize("process", [1, 3])
def test_tensors_that_changed_on_one_process_only(team, process):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    team.values(SOURCES, programs.fill, 1)
    assert [answer.get().version for answer in attempt(team, 1)] == [1] * 4
    side = fsdp_side(2) if process in SOURCES else tp_side(2)
    team.values([process], programs.replace_specs, changed(side, "embed", dtype=DType.FLOAT16))
    answers = assert_untouched_by(team, lambda: attempt(team, 2))
    words = "embed:", "process 0 says dtype bfloat16, process 1 says float16"
    assert_refused(team, answers, "LayoutError", *words)


def test_plans_that_differ(team):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    team.values(SOURCES, programs.fill, 1)
    team.values([3], programs.pretend_planner_version, 999)
    try:
        answers = assert_untouched_by(team, lambda: attempt(team, 1))
    finally:
        team.values([3], programs.pretend_planner_version, None)
    assert_refused(
        team, answers, "PlanError", "different plans", "'destination' process 1", "version"
    )


def test_source_processes_that_publish_different_versions(team):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    before = team.values(EVERYBODY, programs.memory_digest)
    for process in ENGINES:
        team.start(process, programs.refit, {"timeout_s": 3.0})
    for process, version in zip(SOURCES, (4, 5), strict=True):
        team.start(process, programs.publish, version)
    answers = [team.result(process) for process in EVERYBODY]
    assert kinds_of(answers[:2]) == ["RendezvousError"] * 2
    for answer in answers[:2]:
        assert "version 4" in answer.message
        assert "version 5" in answer.message
    assert kinds_of(answers[2:]) == ["TransferTimeout"] * 2
    assert team.values(EVERYBODY, programs.memory_digest) == before


def test_versions_do_not_fall(team):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    team.values(SOURCES, programs.fill, 5)
    assert [answer.get().version for answer in attempt(team, 5)] == [5] * 4
    for version in (5, 4):
        for answer in team.call(SOURCES, programs.publish, version):
            assert answer.kinds[0] == "LayoutError"
            assert f"version {version} was published before (last was 5)" in answer.message
    assert team.values(ENGINES, programs.state_of) == [("ready", 5)] * 2


@pytest.mark.parametrize("silent", EVERYBODY)
def test_a_process_that_never_comes_is_named_on_all_others(team, silent):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    team.values(SOURCES, programs.fill, 1)
    assert [answer.get().version for answer in attempt(team, 1)] == [1] * 4
    before = team.values(EVERYBODY, programs.memory_digest)
    others = [process for process in EVERYBODY if process != silent]
    for process in others:
        if process in ENGINES:
            team.start(process, programs.refit, {"timeout_s": 10.0})
        else:
            team.start(process, programs.publish, 2, {"timeout_s": 1.0})
    answers = [team.result(process) for process in others]
    role = "source" if silent in SOURCES else "destination"
    for answer in answers:
        assert answer.kinds[0] == "TransferTimeout"
        assert answer.seconds < 5.0
    for answer in answers:
        assert f"{role} {role!r} process {silent % 2} (rank" in answer.message, answer.message
    assert team.values(EVERYBODY, programs.memory_digest) == before
    assert team.values(ENGINES, programs.state_of) == [("ready", 1)] * 2


@pytest.mark.parametrize("failing", [0, 1, 3])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_fails_before_the_call_fails_it_on_all_others(team, failing, is_first):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    if not is_first:
        assert [answer.get().version for answer in attempt(team, 1)] == [1] * 4
    team.values(SOURCES, programs.fill, 2)
    team.start(failing, programs.fail_to_prepare, "w is nowhere")
    for process in EVERYBODY:
        if process in ENGINES and process != failing:
            team.start(process, programs.refit)
        elif process != failing:
            team.start(process, programs.publish, 2)
    for process in EVERYBODY:
        answer = team.result(process)
        assert answer.kinds[0] == "LayoutError", answer.trace
        assert "w is nowhere" in answer.message
        if process != failing:
            assert f"process {failing % 2} " in answer.message
        assert answer.seconds < 10.0
    before = ("empty", None) if is_first else ("ready", 1)
    assert team.values(ENGINES, programs.state_of) == [before] * 2
    assert [answer.get().version for answer in attempt(team, 2)] == [2] * 4


@pytest.mark.parametrize("absent", [1, 3])
def test_a_process_that_was_never_started_is_named(team, absent):
    source, engine = Program(SOURCES, fsdp_side(2)), Program(ENGINES, tp_side(2))
    (address,) = team.values([0], programs.open_source, "tcp://127.0.0.1:0", *source.arguments(0))
    if absent == 3:
        team.values([1], programs.open_source, address, *source.arguments(1))
    team.values([2], programs.open_destination, address, *engine.arguments(0))
    if absent == 1:
        team.values([3], programs.open_destination, address, *engine.arguments(1))
    others = [process for process in EVERYBODY if process != absent]
    for process in others:
        if process in ENGINES:
            team.start(process, programs.refit, {"timeout_s": 10.0})
        else:
            team.start(process, programs.publish, 1, {"timeout_s": 1.0})
    role = "source" if absent in SOURCES else "destination"
    for process in others:
        answer = team.result(process)
        assert answer.kinds[0] == "TransferTimeout"
        assert f"{role} {role!r} process 1 of 2 (not registered)" in answer.message, answer.message
    assert [s for s, _ in team.values([p for p in ENGINES if p != absent], programs.state_of)] == [
        "empty"
    ] * (2 - (absent in ENGINES))


@pytest.mark.parametrize("wrong", [2, 3])
def test_a_wrong_token_is_told_to_both_sides(team, wrong):
    options = {"token": "correct horse battery"}
    engine = Program(ENGINES, tp_side(2), options=options)
    engine.per_process[wrong - 2] = {"token": "staple battery horse"}
    open_all(team, Program(SOURCES, fsdp_side(2), options=options), [engine])
    answers = assert_untouched_by(team, lambda: attempt(team, 1, timeout_s=3.0))
    refused = answers[wrong]
    assert refused.kinds[0] == "RendezvousError"
    assert "wrong or missing token" in refused.message
    assert "Give the same token" in refused.message
    for process in SOURCES:
        assert answers[process].kinds[0] == "TransferTimeout"
        assert "refused" in answers[process].message
        assert f"process {wrong - 2} of 2" in answers[process].message


def test_a_token_is_required_off_loopback(team):
    specs, ranks, options = Program(SOURCES, fsdp_side(2)).arguments(0)
    (answer,) = team.call([0], programs.open_source, "tcp://0.0.0.0:0", specs, ranks, options)
    assert answer.kinds[0] == "RendezvousError"
    assert "token" in answer.message


def test_an_address_in_use_is_named(team):
    address = open_all(team, Program(SOURCES, fsdp_side(2)), [])
    specs, ranks, options = Program(SOURCES, fsdp_side(2)).arguments(0)
    (answer,) = team.call([2], programs.open_source, address, specs, ranks, options)
    assert answer.kinds[0] == "RendezvousError"
    assert address.rsplit(":", 1)[1] in answer.message
    assert "in use" in answer.message


def test_a_closed_end_says_so(team):
    open_all(team, Program(SOURCES, fsdp_side(2)), [Program(ENGINES, tp_side(2))])
    team.values(EVERYBODY, programs.close_end_only)
    for answer in attempt(team, 1):
        assert answer.kinds[0] == "LayoutError"
        assert "is closed; make a new one" in answer.message


def test_a_partial_sum_is_refused_where_it_is_declared():
    from reshard import UnsupportedError

    class Partial:
        def __repr__(self) -> str:
            return "Partial(sum)"

    with pytest.raises(UnsupportedError, match=r"Partial\(sum\).*reduce first"):
        Layout(Mesh.of(x=2), (Partial(),))


def test_a_type_below_one_byte_is_refused_where_it_is_declared():
    from reshard import UnsupportedError

    with pytest.raises(UnsupportedError, match=r"int4.*Move the packed storage as uint8"):
        TensorSpec("w", (8,), "int4", ROWS)
