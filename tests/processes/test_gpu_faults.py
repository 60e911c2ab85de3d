"""Processes that die, stop or fail during a refit over NCCL, on doubles of GPUs that move bytes.

NCCL tells nobody who died, so what names the culprit is the control plane; and only an abort ends
what waits on a GPU. Whatever happens, all survivors raise in time, nothing is left in use, no rule
of CUDA or NCCL is broken, and the next refit brings every byte to its place.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from helpers import refit_programs as programs
from helpers.full_doubles import full_doubles
from helpers.refit_models import Program, fsdp_side, open_all, tp_side
from helpers.team import Team, kinds_of

from reshard import DType, Layout, Mesh, Shard, TensorSpec
from reshard.device_kernels import kernel_image

pytestmark = pytest.mark.processes

SOURCES, ENGINES = (0, 1), (2, 3)
EVERYBODY = (*SOURCES, *ENGINES)

PROMPT_S = 5.0  # "at once" on a loaded machine
LIMIT_S = 3.0  # deadline of a refit where it is what ends the wait
GRACE_S = 1.0  # after a deadline, for the last to raise

_ENVIRONMENT = {
    "CUDA_DOUBLE_DEVICES": "6",
    "CUDA_DOUBLE_MAX_DELAY_US": "100",
}
_SHAPE = (1 << 9, 1 << 10)
_OPTIONS = {"staging_bytes": 64 << 10}  # so that there are many groups


def big(axis, dim):
    """One tensor that is cut along a dim; so sources and engines exchange blocks with gaps."""
    layout = Layout(Mesh.of(**{axis: 2}), (Shard(dim),))
    return [TensorSpec("big", _SHAPE, DType.UINT8, layout)]


@pytest.fixture(scope="module", params=["kernels", "plain copies"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def running(kind):
    assert kernel_image("sm_90") is not None  # compiled once, and not by six processes at once
    with Team(6, environment=_ENVIRONMENT) as team:
        yield SimpleNamespace(team=team, prepared=set(), has_kernels=kind == "kernels")


@pytest.fixture
def team(running):
    """Six processes with a GPU each: two of a source, two of an engine, two for whoever comes."""
    prepare(running)
    yield running.team
    team = running.team
    team.values(team.idle(), programs.inject_nothing)
    team.values(team.idle(), programs.close)
    for process in team.idle():
        assert team.values([process], programs.settled_gpu_numbers) == [{}]
        assert team.values([process], programs.violations) == [""]


def prepare(running):
    """Replaces processes that a test killed, and gives a GPU to each new one."""
    team = running.team
    lost = set(range(team.num_processes)) - set(team.idle())
    team.replace_lost()
    running.prepared -= lost
    for process in sorted(set(range(team.num_processes)) - running.prepared):
        place = str(full_doubles().cuda), str(full_doubles().nccl)
        team.values([process], programs.use_gpus, *place, process)
        if not running.has_kernels:
            team.values([process], programs.forget_nvrtc)
        running.prepared.add(process)


def start_refit(team, version, sources=SOURCES, engines=ENGINES, timeout_s=20.0):
    for process in engines:
        team.start(process, programs.refit, {"timeout_s": timeout_s})
    for process in sources:
        options = {"timeout_s": timeout_s, "verify": False}
        team.start(process, programs.publish_filled, version, options)


def refit_once(team, version, sources=SOURCES, engines=ENGINES):
    start_refit(team, version, sources, engines)
    for process in (*sources, *engines):
        team.result(process).get()
    assert team.values(engines, programs.check, version) == [None] * len(engines)
    assert team.values(engines, programs.state_of) == [("ready", version)] * len(engines)


def open_both(team):
    """Opens a source and an engine of two processes each and returns their address."""
    source = Program(SOURCES, big("fsdp", 0), options=_OPTIONS)
    return open_all(team, source, [Program(ENGINES, big("tp", 1), options=_OPTIONS)])


def open_engine(team, address, processes=(4, 5)):
    program = Program(processes, big("tp", 1), group="next", options=_OPTIONS)
    for index, process in enumerate(processes):
        team.start(process, programs.open_destination, address, *program.arguments(index))
    for process in processes:
        team.result(process).get()


def assert_all_raise(team, processes, within_s, words=""):
    answers = [team.result(process) for process in processes]
    for answer in answers:
        assert answer.kinds, "no error was raised"
        assert answer.seconds < within_s, (answer.seconds, answer.trace)
        assert words in answer.message, answer.message
    return answers


def torn(team, processes):
    assert team.values(processes, programs.state_of) == [("torn", None)] * len(processes)


def torn_or_untouched(team, processes, version):
    """Where the store stops, some may not have heard yet that the refit begins."""
    for process in processes:
        (state,) = team.values([process], programs.state_of)
        if state != ("torn", None):
            assert state == ("ready", version)
            assert team.values([process], programs.check, version) == [None]


@pytest.mark.parametrize("moment", ["before", "first group", "later group", "after"])
def test_an_engine_process_that_is_killed_is_named_and_the_next_engine_joins(team, moment):
    address = open_both(team)
    refit_once(team, 1)
    if moment == "before":
        team.values([3], programs.stop_before_moving)
        start_refit(team, 2)
        team.wait_until_stopped(3)
    elif moment == "after":
        team.values([3], programs.kill_after_moving)
        start_refit(team, 2)
    else:
        team.values([3], programs.inject, "kill_group", 1 if moment == "first group" else 5)
        start_refit(team, 2)
    if moment == "before":
        team.kill(3)
    answers = assert_all_raise(team, (0, 1, 2), PROMPT_S, "'destination' process 1 (rank 1, pid ")
    team.kill(3)
    assert all("TransportError" in answer.kinds for answer in answers)
    torn(team, [2])
    open_engine(team, address)
    refit_once(team, 2, engines=(4, 5))


@pytest.mark.parametrize("moment", ["before", "in a group"])
def test_a_source_process_that_is_killed_is_named(team, moment):
    """Not the one that hosts the store. The engine is torn and waits for a whole source."""
    open_both(team)
    refit_once(team, 1)
    if moment == "before":
        team.values([1], programs.stop_before_moving)
        start_refit(team, 2)
        team.wait_until_stopped(1)
        team.kill(1)
    else:
        team.values([1], programs.inject, "kill_group", 3)
        start_refit(team, 2)
    assert_all_raise(team, (0, 2, 3), PROMPT_S, "process 1 (rank 1, pid ")
    team.kill(1)
    torn(team, ENGINES)


def test_the_source_process_with_the_store_is_killed(team):
    open_both(team)
    refit_once(team, 1)
    team.values([0], programs.inject, "kill_group", 3)
    start_refit(team, 2)
    assert_all_raise(team, (1, 2, 3), PROMPT_S)
    team.kill(0)
    torn(team, ENGINES)


@pytest.mark.parametrize("victim", [1, 3])
def test_a_process_that_stops_is_named_at_the_deadline_and_may_come_back(team, victim):
    address = open_both(team)
    refit_once(team, 1)
    team.values([victim], programs.stop_before_moving)
    start_refit(team, 2, timeout_s=LIMIT_S)
    team.wait_until_stopped(victim)
    others = [process for process in EVERYBODY if process != victim]
    answers = assert_all_raise(team, others, LIMIT_S + GRACE_S, "process 1 (rank 1, pid ")
    assert kinds_of(answers) == ["TransferTimeout"] * 3
    torn(team, [process for process in ENGINES if process != victim])
    if victim == 3:
        open_engine(team, address)
        refit_once(team, 2, engines=(4, 5))
    team.go_on(victim)
    woken = team.result(victim)
    assert "TransportError" in woken.kinds, woken.trace
    if victim == 3:
        team.values((4, 5), programs.close)
    refit_once(team, 3)


def test_the_store_stops_and_all_others_raise_at_the_deadline(team):
    open_both(team)
    refit_once(team, 1)
    team.values([0], programs.stop_before_moving)
    start_refit(team, 2, timeout_s=LIMIT_S)
    team.wait_until_stopped(0)
    answers = assert_all_raise(team, (1, 2, 3), LIMIT_S + GRACE_S)
    assert kinds_of(answers) == ["TransferTimeout"] * 3
    torn_or_untouched(team, ENGINES, 1)
    team.go_on(0)
    assert "TransportError" in team.result(0).kinds
    refit_once(team, 3)


def test_a_group_that_hangs_ends_the_refit_at_the_deadline(team):
    open_both(team)
    refit_once(team, 1)
    team.values([2], programs.inject, "hang_group", 2)
    start_refit(team, 2, timeout_s=LIMIT_S)
    answers = assert_all_raise(team, EVERYBODY, LIMIT_S + GRACE_S, "waits for ranks")
    assert kinds_of(answers) == ["TransferTimeout"] * 4
    torn(team, ENGINES)
    refit_once(team, 3)


@pytest.mark.parametrize("victim", [0, 3])
def test_an_asynchronous_error_of_one_process_reaches_all(team, victim):
    open_both(team)
    refit_once(team, 1)
    team.values([victim], programs.inject, "async_error_group", 2)
    start_refit(team, 2)
    words = "sending and receiving: 2, unhandled system error"
    answers = assert_all_raise(team, EVERYBODY, PROMPT_S, words)
    assert all("TransportError" in answer.kinds for answer in answers)
    torn(team, ENGINES)
    refit_once(team, 3)


def test_a_remote_error_is_explained_by_the_word_of_the_control_plane(team):
    """NCCL says that somebody was lost, the store says who."""
    open_both(team)
    refit_once(team, 1)
    team.values([0, 1, 2], programs.inject, "async_error_code", 6)
    team.values([0, 1, 2], programs.inject, "async_error_group", 2)
    team.values([3], programs.inject, "kill_group", 2)
    start_refit(team, 2)
    assert_all_raise(team, (0, 1, 2), PROMPT_S, "'destination' process 1 (rank 1, pid ")
    team.kill(3)
    torn(team, [2])


def test_an_error_in_one_process_before_the_move_reaches_all(team):
    open_both(team)
    refit_once(team, 1)
    team.values([3], programs.raise_before_moving, "engine ran out of luck")
    start_refit(team, 2)
    answers = assert_all_raise(team, EVERYBODY, PROMPT_S, "engine ran out of luck")
    assert kinds_of(answers)[3] == "RuntimeError"
    torn(team, ENGINES)
    refit_once(team, 2)


def test_joining_that_fails_or_hangs_reaches_all_and_the_next_refit_joins(team):
    open_both(team)
    team.values([2], programs.inject, "fail_init", 3)
    start_refit(team, 1)
    assert_all_raise(team, EVERYBODY, PROMPT_S, "joining: 3, internal error")
    team.values([2], programs.inject, "fail_init", 0)
    team.values([2], programs.inject, "hang_init", 1)
    start_refit(team, 1, timeout_s=LIMIT_S)
    answers = assert_all_raise(team, EVERYBODY, LIMIT_S + GRACE_S)
    assert kinds_of(answers) == ["TransferTimeout"] * 4
    team.values([2], programs.inject, "hang_init", 0)
    refit_once(team, 1)


@pytest.mark.parametrize("victim", [1, 3])
def test_an_end_that_another_thread_closes_in_the_move_ends_it_for_all(team, victim):
    open_both(team)
    refit_once(team, 1)
    team.values([victim], programs.close_in_a_group)
    start_refit(team, 2)
    assert_all_raise(team, EVERYBODY, PROMPT_S)
    (seconds,) = team.values([victim], programs.seconds_to_close)
    assert seconds < PROMPT_S
    torn(team, [process for process in ENGINES if process != victim])


def test_a_hundred_refits_leave_as_much_as_the_first(team, running):
    options = {"timeout_s": 60.0}
    models = fsdp_side(2), tp_side(2)
    open_all(
        team,
        Program(SOURCES, models[0], options=options),
        [Program(ENGINES, models[1], options=options)],
    )

    def refits(first, count):
        for process in ENGINES:
            team.start(process, programs.refit_many, count)
        for process in SOURCES:
            team.start(process, programs.publish_versions, first, count, running.has_kernels)
        for process in EVERYBODY:
            team.result(process, 100.0).get()

    refits(1, 10)
    numbers = team.values(EVERYBODY, programs.gpu_numbers)
    before = team.values(EVERYBODY, programs.resources)
    refits(11, 100)
    assert team.values(ENGINES, programs.check, 110) == [None] * 2
    assert team.values(EVERYBODY, programs.gpu_numbers) == numbers
    for process, early in zip(EVERYBODY, before, strict=True):
        team.values([process], programs.check_no_leak, early)


def test_thirty_failed_refits_leave_as_much_as_the_first(team):
    open_both(team)

    def fail(count):
        for process in SOURCES:
            team.start(process, programs.attempts, count, 1, False)
        team.start(2, programs.attempts, count, None)
        team.start(3, programs.failing_attempts, count, "no luck")
        errors = [team.result(process, 100.0).get() for process in EVERYBODY]
        assert [len(each) for each in errors] == [count] * 4
        assert {"no luck" in text for each in errors for _, text in each} == {True}

    team.values(SOURCES, programs.fill, 1)
    fail(5)
    numbers = team.values(EVERYBODY, programs.settled_gpu_numbers)
    assert numbers == [{}] * 4
    before = team.values(EVERYBODY, programs.resources)
    fail(30)
    assert team.values(EVERYBODY, programs.settled_gpu_numbers) == numbers
    for process, early in zip(EVERYBODY, before, strict=True):
        team.values([process], programs.check_no_leak, early)
    refit_once(team, 7)
