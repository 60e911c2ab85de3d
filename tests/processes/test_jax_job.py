"""`reshard_jax.device_put` between the processes of one JAX job: what `jax.device_put` refuses."""

from __future__ import annotations

import math
import os
import signal
import time

import numpy as np
import pytest
from helpers import jax_patterns
from helpers.jax_devices import use_cpu_devices
from helpers.jax_processes import reserved_port, start_jax
from helpers.ranks import Outcome, ProcessGroup, listen, tell

use_cpu_devices()

import jax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import reshard_jax  # noqa: E402
from reshard import LayoutError, ReshardError  # noqa: E402
from reshard_jax.compat import coordination_client  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.processes]

TIMEOUT_S = 60.0
LIMIT_S = 100.0
SHORT_S = 2.0
NUM_PROCESSES = 3
SHAPE = (12, 8)


def place(shape, names, order, spec):
    devices = np.array(jax.devices())[list(order)].reshape(shape)
    return NamedSharding(Mesh(devices, names), spec)


def global_array(name, sharding, version=0, shape=SHAPE, dtype=np.float32):
    whole = jax_patterns.values(name, shape, dtype, version=version)
    return jax.make_array_from_callback(shape, sharding, lambda index: whole[index], dtype=dtype)


def count_checked(name, array, version=0):
    """Checks what this process has of an array; returns how many elements that were."""
    count = 0
    for shard in array.addressable_shards:
        offset = [part.indices(n)[0] for part, n in zip(shard.index, array.shape, strict=True)]
        found = np.asarray(shard.data)
        jax_patterns.check(name, found, array.shape, offset, version=version)
        count += found.size
    return count


def words_of(call):
    """Returns which error a call raises, and its words."""
    try:
        call()
    except (ReshardError, ValueError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return "", ""


def values_of(group):
    outcomes: list[Outcome] = group.finish()
    for outcome in outcomes:
        assert outcome.is_success, f"process {outcome.process}: {outcome.error}\n{outcome.output}"
    return [outcome.value for outcome in outcomes]


# ---- moves; ranks 0, 1 are of process 0, ranks 2, 3 of process 1, ranks 4, 5 of process 2

MOVES = [
    ((2, 2), (3, 1, 0, 2), P("x", "y"), (1, 2), (4, 5), P(None, "y")),  # to other processes
    ((1, 1), (5,), P(), (3, 2), (5, 4, 3, 2, 1, 0), P("x", "y")),  # more, in another order
    ((2, 3), (0, 1, 2, 3, 4, 5), P("x"), (2, 2), (0, 4, 1, 5), P(("y", "x"))),  # fewer
    ((1, 4), (0, 1, 2, 3), P(None, "y"), (4, 1), (0, 1, 2, 3), P("x")),  # the same devices
    ((1, 2), (1, 4), P("y"), (1, 2), (1, 4), P("y")),  # in place
]
DEVICE = 3  # of process 1


def move_all(process):
    rows = []
    for src_shape, src_order, src_spec, dst_shape, dst_order, dst_spec in MOVES:
        src = place(src_shape, ("x", "y"), src_order, src_spec)
        dst = place(dst_shape, ("x", "y"), dst_order, dst_spec)
        x = global_array("w", src)
        refusal = words_of(lambda x=x, dst=dst: jax.device_put(x, dst))  # JAX's own
        y = reshard_jax.device_put(x, dst, timeout_s=TIMEOUT_S)
        assert y.sharding == dst
        count_checked("w", x)
        rows.append((refusal[0], refusal[1], count_checked("w", y), y is x))
    return rows


def to_one_device(process):
    """A device of another process: an array of which most processes have nothing."""
    x = global_array("w", place((2, 2), ("x", "y"), (0, 1, 4, 5), P("x", "y")))
    y = reshard_jax.device_put(x, jax.devices()[DEVICE], timeout_s=TIMEOUT_S)
    assert y.devices() == {jax.devices()[DEVICE]}
    return count_checked("w", y)


def several_meshes_in_one_tree(process):
    """Stages of a pipeline; a process without a device of a leaf describes it only."""
    stages = [place((2,), ("fsdp",), (2 * i, 2 * i + 1), P("fsdp")) for i in range(3)]
    tree = {}
    for i, stage in enumerate(stages):
        name = f"layers.{i}.w"
        if i == process:
            tree[name] = global_array(name, stage)
        else:
            tree[name] = jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=stage)
    target = place((2, 3), ("dp", "tp"), (5, 3, 1, 0, 2, 4), P("tp", "dp"))
    moved = reshard_jax.device_put(tree, target, donate=True, timeout_s=TIMEOUT_S)
    deleted = [name for name, x in tree.items() if hasattr(x, "is_deleted") and x.is_deleted()]
    return deleted, [count_checked(name, array) for name, array in moved.items()]


def broken(process):
    def leaves(name, value):
        if process == 1:
            raise LayoutError("no filter")
        return True

    return leaves


def go_wrong(process):
    src = place((2, 2), ("x", "y"), (0, 1, 2, 3), P("x", "y"))
    dst = place((1, 2), ("x", "y"), (4, 5), P(None, "y"))
    other = place((1, 2), ("x", "y"), (4, 5), P("y"))
    x = global_array("w", src)
    found = []

    def call(target, timeout_s=TIMEOUT_S):
        return reshard_jax.device_put({"w": x}, target, timeout_s=timeout_s)

    # One of them gives no tree that fits.
    found.append(words_of(lambda: call({"v": dst} if process == 1 else {"w": dst})))
    # They do not want the same.
    found.append(words_of(lambda: call(other if process == 2 else dst)))
    # One of them fails before anything of the call is known.
    found.append(words_of(lambda: reshard_jax.device_put(x, dst, leaves=broken(process))))
    # They do not want the same check.
    found.append(words_of(lambda: reshard_jax.device_put(x, dst, verify=process != 1)))
    # One of them comes too late.
    if process == 2:
        assert listen(TIMEOUT_S) == "the others gave up"
    found.append(words_of(lambda: call(dst, SHORT_S)))
    tell("gave up")
    # After all of that everybody may go on, and the source is whole.
    assert listen(TIMEOUT_S) == "go on"
    count = count_checked("w", call(dst)["w"])
    count_checked("w", x)
    return found, count


def again_and_again(process):
    src = place((2, 2), ("x", "y"), (0, 1, 2, 3), P("x", "y"))
    dst = place((1, 2), ("x", "y"), (4, 5), P(None, "y"))
    first = global_array("w", src)
    with reshard_jax.Redistribution(first, dst, timeout_s=TIMEOUT_S) as plan:
        lives = []
        for version in range(20):
            y = plan.run(global_array("w", src, version), donate=True)
            count_checked("w", y, version)
            lives.append(len(jax.live_arrays()))
    client = coordination_client()
    client.wait_at_barrier("all closed", int(TIMEOUT_S * 1000))
    return lives[1] == lives[-1], plan.report.nbytes, client.key_value_dir_get_bytes("reshard/")


def lose_a_process(process, num_processes, port):
    start_jax(process, num_processes, port, num_devices=1)
    src = place((3,), ("x",), (0, 1, 2), P("x"))
    dst = place((3,), ("x",), (2, 0, 1), P("x"))
    x = global_array("w", src)
    with reshard_jax.Redistribution(x, dst, timeout_s=SHORT_S) as plan:
        count_checked("w", plan.run(x))
        tell("planned")
        assert listen(TIMEOUT_S) == "go on"
        if process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        words = words_of(lambda: plan.run(x, donate=True))
        seconds = time.monotonic() - begin
    count_checked("w", x)
    tell((words, seconds))
    # JAX aborts all others as soon as process 0 is gone, which hosts its coordination service.
    assert listen(TIMEOUT_S) == "leave"
    os._exit(0)  # JAX's own shutdown waits for the process that is gone, and then aborts


def work(process, num_processes, port):
    """One job for all of it, because to start one takes seconds."""
    start_jax(process, num_processes, port, num_devices=2)
    parts = (move_all, to_one_device, several_meshes_in_one_tree, go_wrong, again_and_again)
    return {part.__name__: part(process) for part in parts}


@pytest.fixture(scope="module")
def results():
    """What each process returned."""
    with (
        reserved_port() as port,
        ProcessGroup(work, NUM_PROCESSES, LIMIT_S, arguments=(port,)) as group,
    ):
        for process in (0, 1):
            assert group.expect(process, LIMIT_S) == "gave up"
        group.send(2, "the others gave up")
        assert group.expect(2, LIMIT_S) == "gave up"
        for process in range(NUM_PROCESSES):
            group.send(process, "go on")
        return values_of(group)


def test_what_jax_refuses_arrives(results):
    moves = [[row[0] for row in each["move_all"]] for each in results]
    words = [row[1] for row in results[0]["move_all"]]
    # JAX itself moves between processes only where the devices, or the shards, are alike.
    refused = {"ValueError", "NotImplementedError"}
    assert [[kind in refused for kind in row] for row in moves] == [
        [True, True, True, False, False]
    ] * NUM_PROCESSES
    assert "For a cross-host reshard in multi-controller JAX, input and target" in words[0]
    counts = [[row[2] for row in each["move_all"]] for each in results]
    num = math.prod(SHAPE)
    assert counts == [
        [0, num // 3, num // 2, num // 2, num // 2],
        [0, num // 3, 0, num // 2, 0],
        [num, num // 3, num // 2, 0, num // 2],
    ]
    assert [[row[3] for row in each["move_all"]] for each in results] == [
        [False, False, False, False, True]
    ] * NUM_PROCESSES


def test_a_device_is_a_place_for_all_processes(results):
    assert [each["to_one_device"] for each in results] == [0, math.prod(SHAPE), 0]


def test_several_meshes_in_one_tree_and_leaves_that_are_only_described(results):
    for process, each in enumerate(results):
        deleted, counts = each["several_meshes_in_one_tree"]
        assert deleted == [f"layers.{process}.w"]
        assert counts == [math.prod(SHAPE) // 3] * 3


def test_errors_reach_all_processes_and_leave_everything_usable(results):
    for process, each in enumerate(results):
        (bad_tree, other_target, broken_call, other_check, late), count = each["go_wrong"]
        assert bad_tree[0] == "LayoutError"
        assert "shardings: not a prefix of the tree of arrays" in bad_tree[1]
        assert process == 1 or "process 1: " in bad_tree[1]
        assert other_target[0] == "LayoutError"
        assert "w" in other_target[1]
        assert broken_call[0] == "LayoutError" if process == 1 else broken_call[0]
        assert "no filter" in broken_call[1]
        assert other_check[0] == "LayoutError"
        assert "verify has to be the same everywhere" in other_check[1]
        assert late[0] == "TransferTimeout"
        assert "2 of 3 processes came" in late[1]
        assert "Silent: process 2 of the JAX job" in late[1]
        assert count == (math.prod(SHAPE) if process == 2 else 0)


def test_runs_leave_nothing_in_memory_and_in_the_coordination_service(results):
    for each in results:
        assert each["again_and_again"] == (True, 4 * math.prod(SHAPE), [])


def test_a_process_that_dies_is_named_and_the_arrays_stay():
    with (
        reserved_port() as port,
        ProcessGroup(lose_a_process, NUM_PROCESSES, LIMIT_S, arguments=(port,)) as group,
    ):
        for process in range(NUM_PROCESSES):
            assert group.expect(process, LIMIT_S) == "planned"
        for process in range(NUM_PROCESSES):
            group.send(process, "go on")
        for process in (0, 2):
            (kind, words), seconds = group.expect(process, LIMIT_S)
            assert kind in ("TransportError", "TransferTimeout"), words
            assert "process 1" in words
            assert seconds < SHORT_S + 1
        for process in (0, 2):
            group.send(process, "leave")
