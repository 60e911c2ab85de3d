"""Refits between programs of real processes, without any framework.

Over shared memory, and over NCCL between GPUs that doubles play.
"""

from __future__ import annotations

import pytest
from helpers import refit_programs as programs
from helpers.gpu_team import GPU_ENVIRONMENT, assert_clean, put_on_gpus
from helpers.refit_models import (
    Program,
    assert_holds,
    fsdp_side,
    open_all,
    refit_once,
    tp_side,
)
from helpers.team import Team

from reshard import (
    Box,
    BoxLayout,
    DType,
    Elementwise,
    Form,
    Layout,
    Mesh,
    Part,
    Shard,
    TensorSpec,
    Topology,
)
from reshard.elementwise import change_of

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=["host", "gpus"])
def memory(request):
    return request.param


@pytest.fixture(scope="module")
def team(memory):
    environment = GPU_ENVIRONMENT if memory == "gpus" else None
    with Team(8, environment=environment) as running:
        if memory == "gpus":
            put_on_gpus(running)
        yield running


@pytest.fixture
def everybody(team, memory):
    """Closes the ends of all processes after a test."""
    yield team
    team.values(range(team.num_processes), programs.close)
    if memory == "gpus":
        assert_clean(team, range(team.num_processes))


@pytest.mark.parametrize(("num_sources", "num_destinations"), [(1, 1), (2, 2), (4, 4), (3, 5)])
def test_versions_arrive_one_after_the_other(everybody, num_sources, num_destinations):
    team = everybody
    sources = range(num_sources)
    engines = range(num_sources, num_sources + num_destinations)
    open_all(
        team,
        Program(sources, fsdp_side(num_sources)),
        [Program(engines, tp_side(num_destinations))],
    )
    assert team.values(engines, programs.state_of) == [("empty", None)] * num_destinations
    for version in (1, 2, 7):
        reports = refit_once(team, sources, engines, version)
        assert_holds(team, engines, version)
        assert team.values(sources, programs.check, version) == [None] * num_sources
        for report in reports:
            assert (report.version, report.epoch, report.num_parameters) == (version, 1, 11)
            assert report.fingerprints == reports[0].fingerprints
            assert len(report.fingerprints) == 11
            assert report.nbytes == report.nbytes_held == reports[0].nbytes
            assert report.share_resharded == 1.0
            assert report.nbytes_local == 0
            assert 0 < report.peak_staging_bytes <= 64 << 20


RULES = {
    "source": (Elementwise(scale=11.313708305358887), None),
    "destination": (None, Elementwise(divisor=50.5, offset=-1)),
    "both": (Elementwise(offset=-1), Elementwise(scale=3, offset=0.25)),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("float32", "float32"),
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_values_change_on_the_way_and_are_verified(everybody, before, after, rules):
    """Packed, unpacked and copied in one process; one tensor is transposed, one has no rule."""
    team = everybody
    rows, columns = (Layout(Mesh.of(x=2), (Shard(dim),)) for dim in (0, 1))
    src_rule, dst_rule = rules
    form = Form("a b -> b a")
    source = [
        TensorSpec("w", (40, 30), before, rows, Part("w", None, (), src_rule)),
        TensorSpec("t", (90, 70), before, rows, Part("t", form, (), src_rule)),
        TensorSpec("v", (40, 30), before, rows),
    ]
    target = [
        TensorSpec("w", (40, 30), after, columns, Part("w", None, (), dst_rule)),
        TensorSpec("t", (70, 90), after, columns, Part("t", None, (), dst_rule)),
        TensorSpec("v", (40, 30), after, columns),
    ]
    casts = {"casts": [(before, after)]}
    open_all(team, Program([0, 1], source, options=casts), [Program([2, 3], target)])
    team.values([0, 1], programs.fill_with_numbers)
    changes = dict.fromkeys("wt", change_of(*rules))
    for version in (1, 2):
        for process in (2, 3):
            team.start(process, programs.refit)
        for process in (0, 1):
            team.start(process, programs.publish, version, {"verify": True})
        for process in range(4):
            assert team.result(process).get().is_verified
        assert team.values([2, 3], programs.check_numbers, changes) == [True, True]
        assert team.values([2, 3], programs.check_numbers) == [False, False]


def test_one_process_may_drive_several_ranks(everybody):
    team = everybody
    open_all(
        team,
        Program([0, 1], fsdp_side(3), ranks=[[2, 0], [1]]),
        [Program([2, 3], tp_side(4), ranks=[[3], [0, 1, 2]])],
    )
    assert team.values(range(4), programs.topology_of) == [None] * 4
    refit_once(team, [0, 1], [2, 3], 1)
    assert_holds(team, [2, 3], 1)
    (topology,) = set(team.values(range(4), programs.topology_of))
    assert topology.hosts == topology.domains == (0,) * 7
    assert Topology.from_json(topology.to_json()) == topology


def test_two_engines_are_refitted_at_once(everybody):
    team = everybody
    first = Program([2, 3], tp_side(2), group="first")
    second = Program([4, 5, 6], tp_side(3), group="second")
    open_all(team, Program([0, 1], fsdp_side(2), options={"min_destinations": 2}), [first, second])
    reports = refit_once(team, [0, 1], [2, 3, 4, 5, 6], 3)
    assert_holds(team, [2, 3, 4, 5, 6], 3)
    # One model of 11 tensors, which every engine gets.
    assert {report.num_parameters for report in reports} == {11}
    assert {report.nbytes for report in reports} == {reports[0].nbytes_held}


def test_an_engine_joins_later_and_gets_everything(everybody):
    team = everybody
    late = Program([4, 5], tp_side(2), group="late")
    address = open_all(team, Program([0, 1], fsdp_side(2)), [Program([2, 3], tp_side(2))])
    refit_once(team, [0, 1], [2, 3], 1)
    for index, process in enumerate(late.processes):
        team.start(process, programs.open_destination, address, *late.arguments(index))
    for process in late.processes:
        team.result(process).get()
        team.start(process, programs.refit)
    team.values([2, 3], programs.state_of)
    reports = wait_for_members(team, [0, 1], [2, 3], [4, 5])
    assert_holds(team, [2, 3, 4, 5], reports[-1].version)


def wait_for_members(team, sources, destinations, late):
    """Publishes until the late engine, which has begun to wait, is among the members."""
    for version in range(2, 50):
        reports = refit_once(team, sources, destinations, version)
        if reports[0].epoch == 2:
            return [*reports, *(team.result(process).get() for process in late)]
    raise AssertionError("the late engine never took part")


def test_a_process_without_any_tensor_takes_part(everybody):
    team = everybody
    rows = Layout(Mesh.of(fsdp=1), (Shard(0),))
    src = [TensorSpec("w", (6, 4), "float32", rows)]
    dst = [TensorSpec("w", (6, 4), "float32", Layout(Mesh.of(tp=2), (Shard(1),)))]
    open_all(team, Program([0, 1], src), [Program([2, 3, 4], dst)])
    refit_once(team, [0, 1], [2, 3, 4], 1)
    assert_holds(team, [2, 3, 4], 1)


def test_processes_of_a_side_may_know_different_tensors(everybody):
    """Pipeline stages: each process describes what it holds, explicit boxes are joined."""
    team = everybody
    first = TensorSpec("layers.0", (8, 4), "int16", Layout(Mesh.of(tp=1), (Shard(0),)))
    second = TensorSpec("layers.1", (8, 4), "int16", Layout(Mesh.of(tp=1), (Shard(0),)).shifted(1))
    halves = [
        TensorSpec("shared", (4, 2), "int16", BoxLayout({rank: box}))
        for rank, box in enumerate((Box((0, 0), (1, 2)), Box((1, 0), (3, 2))))
    ]
    tp = Layout(Mesh.of(tp=2), (Shard(0),))
    wanted = [
        TensorSpec(name, shape, "int16", tp)
        for name, shape in (("layers.0", (8, 4)), ("layers.1", (8, 4)), ("shared", (4, 2)))
    ]
    source = Program([0, 1], [[first, halves[0]], [second, halves[1]]])
    open_all(team, source, [Program([2, 3], wanted)])
    refit_once(team, [0, 1], [2, 3], 1)
    assert_holds(team, [2, 3], 1)


def test_tensors_may_change_between_refits(everybody):
    team = everybody
    open_all(team, Program([0, 1], fsdp_side(2)), [Program([2, 3], tp_side(2))])
    refit_once(team, [0, 1], [2, 3], 1)
    team.values([0, 1], programs.replace_specs, fsdp_side(2, layers=3))
    team.values([2, 3], programs.replace_specs, tp_side(2, layers=3))
    reports = refit_once(team, [0, 1], [2, 3], 2)
    assert reports[0].num_parameters == 16
    assert_holds(team, [2, 3], 2)


def test_arrays_may_move_and_change_strides_between_refits(everybody):
    team = everybody
    open_all(team, Program([0, 1], fsdp_side(2)), [Program([2, 3], tp_side(2))])
    refit_once(team, [0, 1], [2, 3], 1)
    team.values([0, 3], programs.transpose_memory)
    refit_once(team, [0, 1], [2, 3], 2)
    assert_holds(team, [2, 3], 2)


def test_a_refit_without_verification_is_told_apart(everybody):
    team = everybody
    open_all(team, Program([0, 1], fsdp_side(2)), [Program([2, 3], tp_side(2))])
    reports = refit_once(team, [0, 1], [2, 3], 1, {"verify": False})
    assert [report.is_verified for report in reports] == [False] * 4
    assert_holds(team, [2, 3], 1)
    reports = refit_once(team, [0, 1], [2, 3], 2)
    assert [report.is_verified for report in reports] == [True] * 4


@pytest.mark.parametrize("is_said_by", ["source", "engine"])
def test_types_are_cast_where_a_rule_says_so(everybody, is_said_by):
    team = everybody
    casts = {"casts": [("float32", "bfloat16"), ("float32", "float8_e4m3fn")]}
    rows, columns = Layout(Mesh.of(fsdp=2), (Shard(0),)), Layout(Mesh.of(tp=2), (Shard(1),))
    names = {"a": DType.BFLOAT16, "b": DType.FLOAT32, "c": DType.FLOAT8_E4M3FN}
    src = [TensorSpec(name, (50, 30), DType.FLOAT32, rows) for name in names]
    dst = [TensorSpec(name, (50, 30), dtype, columns) for name, dtype in names.items()]
    open_all(
        team,
        Program([0, 1], src, options=casts if is_said_by == "source" else {}),
        [Program([2, 3], dst, options=casts if is_said_by == "engine" else {})],
    )
    team.values([0, 1], programs.fill_with_numbers)
    for process in (2, 3):
        team.start(process, programs.refit)
    reports = team.values([0, 1], programs.publish, 1)
    for process in (2, 3):
        team.result(process).get()
    assert team.values([2, 3], programs.check_numbers) == [True] * 2
    assert reports[0].nbytes == 50 * 30 * (2 + 4 + 1)
    assert reports[0].is_verified


@pytest.mark.parametrize("num_layers", [1, 40])
def test_control_messages_do_not_depend_on_the_number_of_parameters(everybody, num_layers):
    """One `begin` and one `done` of each process, and nothing else."""
    team = everybody
    source = Program([0, 1], fsdp_side(2, num_layers))
    open_all(team, source, [Program([2, 3], tp_side(2, num_layers))])
    refit_once(team, [0, 1], [2, 3], 1)
    (before,) = team.values([0], programs.messages_received)
    for process in (2, 3):
        team.start(process, programs.refit_many, 5)
    team.values([0, 1], programs.publish_many, range(2, 7))
    assert [team.result(process).get() for process in (2, 3)] == [[2, 3, 4, 5, 6]] * 2
    (after,) = team.values([0], programs.messages_received)
    assert after - before == 5 * 4 * 2


def test_a_hundred_refits_leave_nothing_behind(everybody):
    team = everybody
    open_all(team, Program([0, 1], fsdp_side(2)), [Program([2, 3], tp_side(2))])

    def many(versions):
        for process in (2, 3):
            team.start(process, programs.refit_many, len(versions))
        team.values([0, 1], programs.publish_many, versions)
        for process in (2, 3):
            team.result(process).get()

    many(range(20))
    before = team.values(range(4), programs.resources)
    many(range(20, 120))
    for process, early in enumerate(before):
        team.values([process], programs.check_no_leak, early)


@pytest.mark.parametrize("staging_bytes", [64 << 10, 1 << 20])
def test_staging_memory_stays_within_the_budget(everybody, memory, staging_bytes):
    """Measured from outside, not taken from the report; the tensor is larger than every budget."""
    team = everybody
    shape = (1 << 11, 3 << 10)
    src = [TensorSpec("w", shape, "uint8", Layout(Mesh.of(fsdp=2), (Shard(0),)))]
    dst = [TensorSpec("w", shape, "uint8", Layout(Mesh.of(tp=2), (Shard(1),)))]
    options = {"staging_bytes": staging_bytes}
    if memory == "gpus":
        team.values(range(4), programs.peak_device_bytes)  # of the tests before
    open_all(team, Program([0, 1], src, options=options), [Program([2, 3], dst)])
    reports = refit_once(team, [0, 1], [2, 3], 1)
    assert_holds(team, [2, 3], 1)
    assert max(report.peak_staging_bytes for report in reports) <= staging_bytes
    if memory == "gpus":
        peaks = team.values(range(4), programs.peak_device_bytes)
        assert 0 < max(peaks) <= staging_bytes + (1 << 20)
    else:
        mapped = team.values(range(4), programs.staging_mapped)
        pages_for_control = 8 * 4096
        assert max(mapped) <= staging_bytes + pages_for_control
