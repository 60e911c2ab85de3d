"""Refits over NCCL: what they have beyond those over shared memory (test_refit.py runs on both)."""

from __future__ import annotations

import pytest
from helpers import refit_programs as programs
from helpers.gpu_team import GPU_ENVIRONMENT, assert_clean, put_on_gpus
from helpers.refit_models import Program, assert_holds, open_all, refit_once
from helpers.team import Team

from reshard import Box, BoxLayout, DType, Elementwise, Layout, Mesh, Part, Shard, TensorSpec
from reshard.elementwise import change_of

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def team():
    with Team(8, environment=GPU_ENVIRONMENT) as running:
        put_on_gpus(running)
        yield running


@pytest.fixture
def everybody(team):
    """Closes the ends of all processes after a test, which then leave nothing behind."""
    yield team
    processes = range(team.num_processes)
    team.values(processes, programs.close)
    assert_clean(team, processes)


@pytest.fixture
def hosts(everybody):
    """Processes 0 and 1 on one machine, 2 to 4 on a second, 5 to 7 on a third."""
    team = everybody
    for process, host in enumerate("aabbbccc"):
        team.call([process], programs.pretend_host, host)
    yield team
    for process in range(team.num_processes):
        team.call([process], programs.pretend_host, "a")


def replicas(num_ranks):
    everywhere = Layout.replicated(Mesh.of(dp=num_ranks))
    return [TensorSpec("w", (600, 1000), "float32", everywhere), *_small(everywhere)]


def _small(layout):
    return [TensorSpec(f"v{n}", (n, 3), "int32", layout) for n in (1, 2, 7)]


def shards(num_ranks):
    rows = Layout(Mesh.of(fsdp=num_ranks), (Shard(0),))
    return [TensorSpec("w", (600, 1000), "float32", rows), *_small(rows)]


def test_each_byte_enters_a_machine_once_and_is_passed_on_inside(hosts):
    team = hosts
    open_all(team, Program([0, 1], shards(2)), [Program(range(2, 8), replicas(6))])
    for version in (1, 2, 3):
        refit_once(team, [0, 1], range(2, 8), version)
        assert_holds(team, range(2, 8), version)
    numbers = team.values(range(8), programs.plan_numbers)
    # From a holder into a machine, or from machine to machine, and then inside.
    assert {hops for hops, _ in numbers} == {3}
    whole = 600 * 1000 * 4 + 10 * 3 * 4
    assert [received for _, received in numbers[2:]] == [whole] * 6
    for process in range(8):
        assert team.call([process], programs.group_numbers)[0].get()["largest_group"] <= 1024


def test_small_staging_memory_takes_more_rounds(hosts):
    team = hosts
    options = {"staging_bytes": 1 << 20}
    open_all(
        team,
        Program([0, 1], shards(2), options=options),
        [Program(range(2, 8), replicas(6), options=options)],
    )
    reports = refit_once(team, [0, 1], range(2, 8), 5)
    assert_holds(team, range(2, 8), 5)
    assert all(0 < report.peak_staging_bytes <= 1 << 20 for report in reports)


def test_a_chain_of_machines_relays(everybody):
    # One source and seven machines of one GPU each: the source alone would send seven times.
    team = everybody
    for process in range(8):
        team.call([process], programs.pretend_host, f"machine {process}")
    open_all(team, Program([0], shards(1)), [Program(range(1, 8), replicas(7))])
    refit_once(team, [0], range(1, 8), 4)
    assert_holds(team, range(1, 8), 4)
    assert team.call([1], programs.plan_numbers)[0].get()[0] > 2
    for process in range(8):
        team.call([process], programs.pretend_host, "a")


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN])
def test_dtypes_are_cast_on_the_gpu_before_they_travel(everybody, dtype):
    team = everybody
    casts = {"casts": [(DType.FLOAT32, dtype)]}
    rows = Layout(Mesh.of(tp=2), (Shard(0),))
    columns = Layout(Mesh.of(tp=2), (Shard(1),))
    shapes = {"a": (40, 30), "b": (7, 500)}
    source = [TensorSpec(name, shape, "float32", rows) for name, shape in shapes.items()]
    target = [TensorSpec(name, shape, dtype, columns) for name, shape in shapes.items()]
    open_all(team, Program([0, 1], source, options=casts), [Program([2, 3], target)])
    team.values([0, 1], programs.fill_with_numbers)
    for process in (2, 3):
        team.start(process, programs.refit)
    for process in (0, 1):
        team.start(process, programs.publish, 1)
    reports = [team.result(process).get() for process in range(4)]
    assert team.values([2, 3], programs.check_numbers) == [True, True]
    assert reports[0].nbytes == (40 * 30 + 7 * 500) * dtype.itemsize


def ruled(name, shape, dtype, layout, rule):
    return TensorSpec(name, shape, dtype, layout, Part(name, elementwise=rule))


@pytest.mark.parametrize(("before", "after"), [("float32", "float32"), ("bfloat16", "float32")])
def test_values_change_once_also_where_they_are_passed_on(hosts, before, after):
    """Large enough for messages from the memory of a destination, and to be passed on."""
    team, rule = hosts, Elementwise(scale=11.313708305358887, offset=-1)
    rows = Layout(Mesh.of(fsdp=2), (Shard(0),))
    everywhere = Layout.replicated(Mesh.of(dp=6))
    source = [ruled("w", (600, 1000), before, rows, rule), TensorSpec("v", (7, 3), before, rows)]
    target = [
        TensorSpec("w", (600, 1000), after, everywhere),
        TensorSpec("v", (7, 3), after, everywhere),
    ]
    casts = {"casts": [(before, after)]}
    open_all(team, Program([0, 1], source, options=casts), [Program(range(2, 8), target)])
    team.values([0, 1], programs.fill_with_numbers)
    for process in range(2, 8):
        team.start(process, programs.refit)
    for process in (0, 1):
        team.start(process, programs.publish, 1, {"verify": True})
    assert all(team.result(process).get().is_verified for process in range(8))
    changes = {"w": change_of(rule, None)}
    assert team.values(range(2, 8), programs.check_numbers, changes) == [True] * 6
    assert min(hops for hops, _ in team.values(range(8), programs.plan_numbers)) > 1


def test_ranks_without_elements_are_no_members(everybody):
    # Rank 2 holds nothing of either tensor, so nobody knows its GPU.
    team = everybody
    layout = BoxLayout({0: (Box((0,), (3,)),), 1: (Box((3,), (7,)),), 2: ()})
    source = [TensorSpec("w", (10,), "int64", layout)]
    open_all(team, Program([0, 1, 2], source), [Program([3], shards_of("w", (10,), "int64"))])
    refit_once(team, [0, 1, 2], [3], 9)
    assert_holds(team, [3], 9)


def shards_of(name, shape, dtype):
    return [TensorSpec(name, shape, dtype, Layout.replicated(Mesh.of(tp=1)))]


def test_host_and_gpu_memory_do_not_meet(everybody):
    team = everybody
    open_all(team, Program([0], shards(1)), [Program([1], replicas(1))])
    team.call([1], programs.put_on_host)
    team.start(1, programs.refit)
    team.start(0, programs.publish_filled, 1)
    for process in (0, 1):
        answer = team.result(process)
        assert "UnsupportedError" in answer.kinds
        assert "host memory" in answer.message


def test_two_ranks_of_a_process_on_one_gpu_are_refused_by_all(everybody):
    """Before NCCL is asked, which speaks of a duplicate GPU and of no rank that anybody knows."""
    team = everybody
    source = Program([0], shards(2), ranks=[[0, 1]])
    open_all(team, source, [Program([1, 2], replicas(2))])
    team.values([0], programs.put_on_one_gpu)
    for process in (1, 2):
        team.start(process, programs.refit)
    team.start(0, programs.publish_filled, 1)
    answers = [team.result(process) for process in (0, 1, 2)]
    for answer in answers:
        assert "LayoutError" in answer.kinds, answer.trace
        assert "ranks 0 and 1 of the plan are both on cuda:0 of source 'source' " in answer.message
        assert "but NCCL takes one rank per GPU. Give each rank a GPU" in answer.message
    assert team.values([1, 2], programs.state_of) == [("empty", None)] * 2


@pytest.fixture
def no_nvrtc(everybody):
    """A process that has no compiled kernels, though all others have."""
    process = 2
    everybody.values([process], programs.forget_nvrtc)
    yield process
    everybody.values([process], programs.remember_nvrtc)


def refuse_to_verify(team, processes):
    """Refits once without verification, then has one with it refused, on all alike."""
    source, *engines = processes
    open_all(team, Program([source], shards(1)), [Program(engines, replicas(2))])
    refit_once(team, [source], engines, 1, {"verify": False})
    groups = [team.values([process], programs.group_numbers) for process in processes]
    for process in engines:
        team.start(process, programs.refit)
    team.start(source, programs.publish_filled, 2, {"verify": True})
    for answer in [team.result(process) for process in processes]:
        assert "UnsupportedError" in answer.kinds, answer.trace
        assert "'destination' process 1 (rank 1, pid " in answer.message
        assert "to add up fingerprints on GPUs takes compiled kernels" in answer.message
    assert [team.values([process], programs.group_numbers) for process in processes] == groups


def test_fingerprints_that_one_process_cannot_add_up_are_refused_by_all(everybody, no_nvrtc):
    """Before any byte moves."""
    team, engines = everybody, (1, no_nvrtc)
    refuse_to_verify(team, (0, *engines))
    assert team.values(engines, programs.check, 1) == [None] * 2
    # As the message says.
    refit_once(team, [0], engines, 3, {"verify": False})
    assert_holds(team, engines, 3)


def test_fingerprints_that_are_refused_leave_the_version_that_was_there(everybody, no_nvrtc):
    refuse_to_verify(everybody, (0, 1, no_nvrtc))
    assert_holds(everybody, (1, no_nvrtc), 1)


def test_casts_that_one_process_cannot_do_are_refused_by_all_before_anything_moves(
    everybody, no_nvrtc
):
    team, others = everybody, (0, 1)
    casts = {"casts": [("float32", "bfloat16")]}
    rows = Layout(Mesh.of(tp=2), (Shard(0),))
    source = [TensorSpec("w", (40, 30), "float32", rows)]
    target = shards_of("w", (40, 30), "bfloat16")
    # The source's second rank narrows; who receives needs no kernels.
    open_all(team, Program([0, no_nvrtc], source, options=casts), [Program([1], target)])
    groups = [team.values([process], programs.group_numbers) for process in others]
    team.start(1, programs.refit)
    for process in (0, no_nvrtc):
        team.start(process, programs.publish_filled, 1, {"verify": False})
    for answer in [team.result(process) for process in (*others, no_nvrtc)]:
        assert "UnsupportedError" in answer.kinds, answer.trace
        assert "w: float32 to bfloat16 on a GPU takes compiled kernels" in answer.message
    assert [team.values([process], programs.group_numbers) for process in others] == groups
    assert team.values([1], programs.state_of) == [("empty", None)]


def test_rules_that_one_process_cannot_follow_are_refused_by_all_before_anything_moves(
    everybody, no_nvrtc
):
    team, others = everybody, (0, 1)
    rows = Layout(Mesh.of(tp=2), (Shard(0),))
    source = [ruled("w", (40, 30), "float32", rows, Elementwise(offset=-1))]
    target = shards_of("w", (40, 30), "float32")
    open_all(team, Program([0, no_nvrtc], source), [Program([1], target)])
    groups = [team.values([process], programs.group_numbers) for process in others]
    team.start(1, programs.refit)
    for process in (0, no_nvrtc):
        team.start(process, programs.publish_filled, 1, {"verify": False})
    for answer in [team.result(process) for process in (*others, no_nvrtc)]:
        assert "UnsupportedError" in answer.kinds, answer.trace
        assert "w: x - 1 on a GPU takes compiled kernels" in answer.message
        assert "or have both sides store it alike" in answer.message
    assert [team.values([process], programs.group_numbers) for process in others] == groups
    assert team.values([1], programs.state_of) == [("empty", None)]


def test_a_process_without_kernels_takes_what_others_have_cast(everybody, no_nvrtc):
    team = everybody
    casts = {"casts": [("float32", "bfloat16")]}
    source = shards_of("w", (40, 30), "float32")
    target = shards_of("w", (40, 30), "bfloat16")
    open_all(team, Program([0], source, options=casts), [Program([no_nvrtc], target)])
    team.values([0], programs.fill_with_numbers)
    team.start(no_nvrtc, programs.refit)
    team.start(0, programs.publish, 1, {"verify": False})
    for process in (0, no_nvrtc):
        team.result(process).get()
    assert team.values([no_nvrtc], programs.check_numbers) == [True]
