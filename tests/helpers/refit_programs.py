"""What the processes of a refit do in tests: calls for `Team`, with arrays filled by the oracle.

Every tensor of version v holds `patterns.whole(name, shape, itemsize, v)`; a process holds the
parts of its own ranks and checks them after a refit.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers import oracle
from helpers.full_doubles import Controls, FullDoubles
from helpers.patterns import Array, as_bits, as_dtype, bit_dtype, explain_mismatch, whole
from helpers.ranks import listen, tell
from helpers.team import Desk
from reshard import (
    Destination,
    LayoutError,
    RefitReport,
    ReshardError,
    Source,
    TensorSpec,
    Topology,
    device_kernels,
)
from reshard import plan as plan_module
from reshard.elementwise import Change
from reshard.loopback import buffer_of_array

__all__ = [
    "attempts",
    "check",
    "check_no_leak",
    "check_numbers",
    "close",
    "close_end_only",
    "close_in_a_group",
    "damage_buffers",
    "damage_buffers_in_place",
    "fail_to_prepare",
    "failing_attempts",
    "fill",
    "fill_with_numbers",
    "forget_nvrtc",
    "gpu_numbers",
    "group_numbers",
    "inject",
    "inject_nothing",
    "kill_after_moving",
    "memory_digest",
    "messages_received",
    "open_destination",
    "open_source",
    "pause_before_moving",
    "peak_device_bytes",
    "plan_numbers",
    "pretend_host",
    "pretend_planner_version",
    "publish",
    "publish_filled",
    "publish_many",
    "publish_until_error",
    "publish_versions",
    "put_on_host",
    "put_on_one_gpu",
    "raise_before_moving",
    "refit",
    "refit_many",
    "refit_until_error",
    "remember_nvrtc",
    "repair_buffers",
    "replace_specs",
    "resources",
    "seconds_to_close",
    "settled_gpu_numbers",
    "spoil_replica",
    "staging_mapped",
    "state_of",
    "stop_before_moving",
    "tell_and",
    "tell_before_moving",
    "topology_of",
    "transpose_memory",
    "use_gpus",
    "violations",
]


_SETTLE_S = 10.0


def open_source(
    desk: Desk,
    address: str,
    specs: Sequence[TensorSpec],
    ranks: Sequence[int],
    options: dict[str, Any],
) -> str | None:
    """Makes this process an end of a source, with arrays that are not filled yet."""
    desk.end = Source(address, specs, ranks=ranks, **options)
    desk.specs, desk.ranks = tuple(specs), tuple(ranks)
    _allocate(desk)
    address_: str | None = desk.end.address
    return address_


def open_destination(
    desk: Desk,
    address: str,
    specs: Sequence[TensorSpec],
    ranks: Sequence[int],
    options: dict[str, Any],
) -> None:
    """Makes this process an end of a destination, with arrays of zeros."""
    desk.end = Destination(address, specs, ranks=ranks, **options)
    desk.specs, desk.ranks = tuple(specs), tuple(ranks)
    _allocate(desk)


def replace_specs(desk: Desk, specs: Sequence[TensorSpec]) -> None:
    """Declares other tensors, with new arrays."""
    desk.end.replace_specs(specs)
    desk.specs = tuple(specs)
    _allocate(desk)


def _allocate(desk: Desk) -> None:
    desk.arrays, desk.places = {}, {}
    for spec in desk.specs:
        for rank in desk.ranks:
            shape = spec.layout.local_shape(rank, spec.shape)
            if shape is not None:
                bits = np.zeros(shape, bit_dtype(spec.dtype.itemsize))
                desk.arrays[rank, spec.name] = as_dtype(bits, spec.dtype)
    _make_buffers(desk)


def _make_buffers(desk: Desk) -> None:
    desk.buffers = {key: buffer_of_array(array) for key, array in desk.arrays.items()}
    if hasattr(desk, "doubles"):
        _put_on_gpus(desk)


def use_gpus(desk: Desk, cuda: str, nccl: str, first_device: int) -> None:
    """Makes arrays that are allocated from now on memory of GPUs, one GPU per rank of a process.

    Args:
        desk: this process.
        cuda, nccl: paths of the doubles that play the GPUs.
        first_device: number of the GPU of this process's first rank.
    """
    os.environ["RESHARD_CUDA_LIBRARY"] = cuda
    os.environ["RESHARD_NCCL_LIBRARY"] = nccl
    desk.doubles = Controls(FullDoubles(Path(cuda), Path(nccl)))
    desk.first_device = first_device
    desk.registered = []


def forget_nvrtc(desk: Desk) -> None:
    """Makes this process one without NVRTC, where plain copies do what kernels would."""
    desk.nvrtc_candidates = device_kernels._candidates
    device_kernels._images.clear()
    device_kernels._candidates = lambda: iter(())


def remember_nvrtc(desk: Desk) -> None:
    """Takes `forget_nvrtc` back."""
    device_kernels._images.clear()
    device_kernels._candidates = desk.nvrtc_candidates


def inject(desk: Desk, name: str, value: int) -> None:
    """Makes something happen in the double of NCCL of this process."""
    desk.doubles.inject(name, value)


def inject_nothing(desk: Desk) -> None:
    """Takes back what was injected."""
    names = ("async_error_group", "hang_group", "kill_group", "hang_init", "fail_init")
    for name in names if hasattr(desk, "doubles") else ():
        desk.doubles.inject(name, 0)
    if hasattr(desk, "doubles"):
        desk.doubles.inject("async_error_code", 2)  # as it is at the start


def settled_gpu_numbers(desk: Desk) -> dict[str, int]:
    """Returns what the doubles count as in use when nothing more of it goes away by itself.

    A stream that was destroyed while it had work ends a moment later.
    """
    limit = time.monotonic() + _SETTLE_S
    while True:
        used = {name: count for name, count in gpu_numbers(desk).items() if count}
        if not used or time.monotonic() > limit:
            return used
        os.sched_yield()


def publish_versions(desk: Desk, first: int, count: int, verify: bool) -> None:
    """Fills and publishes several versions in a row."""
    for version in range(first, first + count):
        publish_filled(desk, version, {"verify": verify})


def _put_on_gpus(desk: Desk) -> None:
    for address in desk.registered:
        desk.doubles.unregister(address)
    desk.registered = []
    for key, buffer in desk.buffers.items():
        if buffer.is_empty:
            continue
        device = desk.first_device + list(desk.ranks).index(key[0])
        low, high = buffer.extent
        desk.doubles.register(buffer.address + low, high - low, device)
        desk.registered.append(buffer.address + low)
        desk.buffers[key] = dataclasses.replace(buffer, device=device)


def pretend_host(desk: Desk, name: str) -> None:
    """Makes this process say that it runs on another machine; only GPUs reach across machines."""
    import reshard.contribution as contribution

    own = contribution.this_machine()
    machine = type(own)(name, name, own.network_namespace, own.num_cards, own.card_bytes_per_second)
    contribution.this_machine = lambda: machine


def plan_numbers(desk: Desk) -> tuple[int, int]:
    """Returns the hops of the plan, and the bytes that this process's ranks receive in it."""
    session = desk.end._session
    plan, local = session.plan, session._ranks
    return plan.num_hops, sum(plan.nbytes(each) for rank in local for each in plan.receives(rank))


def put_on_one_gpu(desk: Desk) -> None:
    """Makes this process say that all of its ranks have their arrays on the GPU of the first."""
    first = desk.first_device
    desk.buffers = {k: dataclasses.replace(b, device=first) for k, b in desk.buffers.items()}


def put_on_host(desk: Desk) -> None:
    """Takes the arrays of this process off the GPUs."""
    desk.buffers = {k: dataclasses.replace(b, device=None) for k, b in desk.buffers.items()}


def peak_device_bytes(desk: Desk) -> int:
    """Returns the most device memory that this process had at a time since it was last asked."""
    peak: int = desk.doubles.cuda("peak_bytes")
    desk.doubles.reset()
    return peak


def group_numbers(desk: Desk) -> dict[str, int]:
    """Returns what the double of NCCL counted in this process."""
    return {name: desk.doubles.nccl(name) for name in ("groups", "operations", "largest_group")}


def violations(desk: Desk) -> str:
    """Returns what this process did against the rules of CUDA and NCCL."""
    text: str = desk.doubles.violations()
    return text


def gpu_numbers(desk: Desk) -> dict[str, int]:
    """Returns what the doubles count as in use now."""
    names = ("allocations", "streams", "events", "modules", "contexts", "threads")
    counts = {name: desk.doubles.cuda(name) for name in names}
    return {**counts, **{n: desk.doubles.nccl(n) for n in ("communicators", "meetings")}}


def fill(desk: Desk, version: int) -> None:
    """Writes a version into the arrays of a source."""
    for spec in desk.specs:
        values = {
            part.name: whole(
                part.name, oracle.canonical_shape(spec.shape, part), spec.dtype.itemsize, version
            )
            for part in spec.parts
        }
        for rank in desk.ranks:
            if (rank, spec.name) in desk.arrays:
                bits = as_bits(desk.arrays[rank, spec.name])
                bits[...] = _expected(desk, spec, rank, values)


def fill_with_numbers(desk: Desk) -> None:
    """Writes small whole numbers that follow from the index, which every float type can hold."""
    for key, numbers in _numbers(desk):
        desk.arrays[key][...] = numbers


def check_numbers(desk: Desk, changes: Mapping[str, Change] | None = None) -> bool:
    """Says whether the arrays hold what `fill_with_numbers` writes, whatever their type.

    Args:
        desk: this process.
        changes: by stored name, what becomes of the numbers.
    """
    for key, numbers in _numbers(desk):
        expected = numbers.astype(np.float64)
        if changes and key[1] in changes:
            expected = changes[key[1]].of(expected)
        array = desk.arrays[key]
        expected = expected.astype(np.float32).astype(array.dtype)
        if not np.array_equal(as_bits(array), as_bits(expected)):
            return False
    return True


def _numbers(desk: Desk) -> Iterator[tuple[tuple[int, str], Array]]:
    for spec in desk.specs:
        for rank in desk.ranks:
            if (rank, spec.name) in desk.arrays:
                ((_, at),) = oracle.canonical_places(spec, rank).items()
                yield (rank, spec.name), at % 13 - 6


def _expected(desk: Desk, spec: TensorSpec, rank: int, values: dict[str, Array]) -> Array:
    """Returns what an array must hold; works out only once which element is which."""
    key = rank, spec.name
    if key not in desk.places:
        places = oracle.canonical_places(spec, rank)
        desk.places[key] = {name: (at != oracle.HOLE, at) for name, at in places.items()}
    local = as_bits(desk.arrays[key]).copy()
    for name, (covered, at) in desk.places[key].items():
        local[covered] = values[name].reshape(-1)[at[covered]]
    return local


def check(desk: Desk, version: int) -> str | None:
    """Compares the arrays with a version; says what is wrong, or None."""
    for spec in desk.specs:
        values = {
            part.name: whole(
                part.name, oracle.canonical_shape(spec.shape, part), spec.dtype.itemsize, version
            )
            for part in spec.parts
        }
        everything = np.concatenate([value.reshape(-1) for value in values.values()])
        for rank in desk.ranks:
            if (rank, spec.name) not in desk.arrays:
                continue
            bits = as_bits(desk.arrays[rank, spec.name])
            expected = _expected(desk, spec, rank, values)
            problem = explain_mismatch(f"{spec.name} on rank {rank}", bits, expected, everything)
            if problem is not None:
                return problem
    return None


def publish(desk: Desk, version: int, options: dict[str, Any] | None = None) -> RefitReport:
    """Publishes a version that is filled already."""
    report: RefitReport = desk.end.publish(desk.buffers, version=version, **(options or {}))
    return report


def refit(desk: Desk, options: dict[str, Any] | None = None) -> RefitReport:
    """Receives the next version."""
    report: RefitReport = desk.end.refit(desk.buffers, **(options or {}))
    return report


def publish_filled(desk: Desk, version: int, options: dict[str, Any] | None = None) -> RefitReport:
    """Fills and publishes a version."""
    fill(desk, version)
    return publish(desk, version, options)


def refit_many(desk: Desk, count: int) -> list[int]:
    """Receives several versions in a row and returns their numbers."""
    return [desk.end.refit(desk.buffers).version for _ in range(count)]


def publish_many(desk: Desk, versions: Sequence[int]) -> None:
    """Publishes several versions in a row, without other contents."""
    for version in versions:
        desk.end.publish(desk.buffers, version=version)


def tell_and(desk: Desk, word: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Tells a word to the test, then does a call."""
    tell(word)
    return function(desk, *arguments)


def damage_buffers(desk: Desk, how: str, name: str, *details: Any) -> None:
    """Gives buffers from now on of which one is wrong; `repair_buffers` ends it."""
    desk.buffers = dict(desk.buffers)
    damage_buffers_in_place(desk, how, name, *details)


def damage_buffers_in_place(desk: Desk, how: str, name: str, *details: Any) -> None:
    """Exchanges a buffer by a wrong one in the mapping that the end knows already."""
    (rank,) = desk.ranks
    array, key = desk.arrays[rank, name], (rank, name)
    buffers = desk.buffers
    if how == "drop":
        del buffers[key]
    elif how == "drop all":
        buffers.clear()
    elif how == "reshape":
        buffers[key] = buffer_of_array(np.zeros(details[0], array.dtype))
    elif how == "retype":
        buffers[key] = dataclasses.replace(buffers[key], dtype=details[0])
    elif how == "freeze":
        buffers[key] = dataclasses.replace(buffers[key], is_writable=False)
    elif how == "share":
        buffers[key] = buffers[rank, details[0]]
    elif how == "repeat":
        buffers[key] = dataclasses.replace(buffers[key], strides=(0,) * array.ndim)
    else:
        raise ValueError(how)


def repair_buffers(desk: Desk) -> None:
    """Gives the buffers of the arrays again."""
    desk.buffers = {key: buffer_of_array(array) for key, array in desk.arrays.items()}


def stop_before_moving(desk: Desk) -> None:
    """Makes the next refit stop this whole process when bytes are about to move."""
    _before_moving(desk, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def fail_to_prepare(desk: Desk, message: str) -> None:
    """Fails while the buffers of the next refit are made."""
    with desk.end.telling_others():
        raise LayoutError(message)


def pause_before_moving(desk: Desk) -> None:
    """Makes the next refit wait in this process, when bytes are about to move, until it is killed.

    Unlike a process that stops, it goes on serving the store.
    """
    _before_moving(desk, listen)


def tell_before_moving(desk: Desk) -> None:
    """Makes the next refit tell the test when bytes are about to move in this process."""
    _before_moving(desk, lambda: tell("moving"))


def kill_after_moving(desk: Desk) -> None:
    """Makes the next refit end this process when it has moved all that it had to."""

    def end() -> None:
        desk.end._session._done = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    _before_moving(desk, end)


def close_in_a_group(desk: Desk) -> None:
    """Makes another thread close this end when the next refit has posted a group that hangs."""
    desk.doubles.inject("hang_group", 1)
    before = desk.doubles.nccl("groups")

    def close() -> None:
        limit = time.monotonic() + _SETTLE_S
        while desk.doubles.nccl("groups") == before and time.monotonic() < limit:
            os.sched_yield()
        start = time.monotonic()
        desk.end.close()
        desk.seconds_to_close = time.monotonic() - start

    desk.closer = threading.Thread(target=close)
    _before_moving(desk, desk.closer.start)


def seconds_to_close(desk: Desk) -> float:
    """Returns how long that thread needed."""
    desk.closer.join(_SETTLE_S)
    seconds: float = desk.seconds_to_close
    return seconds


def raise_before_moving(desk: Desk, message: str) -> None:
    """Makes the next refit fail in this process when bytes are about to move."""

    def fail() -> None:
        raise RuntimeError(message)

    _before_moving(desk, fail)


def _before_moving(desk: Desk, action: Callable[[], None]) -> None:
    usual = desk.end._before_move

    def before_move() -> None:
        usual()
        desk.end._before_move = usual
        action()

    desk.end._before_move = before_move


def spoil_replica(desk: Desk, rank: int, name: str) -> None:
    """Changes one byte of a source array, so that it differs from its replicas."""
    as_bits(desk.arrays[rank, name]).reshape(-1).view(np.uint8)[0] ^= 1


def attempts(
    desk: Desk, count: int, version: int | None, verify: bool = True
) -> list[tuple[str, str]]:
    """Takes part in refits that all fail, and returns (class, message) of each error."""
    errors = []
    for _ in range(count):
        try:
            if version is None:
                desk.end.refit(desk.buffers)
            else:
                desk.end.publish(desk.buffers, version=version, verify=verify)
        except ReshardError as error:
            errors.append((type(error).__name__, str(error)))
    return errors


def failing_attempts(desk: Desk, count: int, message: str) -> list[tuple[str, str]]:
    """As `attempts` of a destination, where this process is the one that fails each time."""
    errors = []
    for _ in range(count):
        raise_before_moving(desk, message)
        try:
            desk.end.refit(desk.buffers)
        except (ReshardError, RuntimeError) as error:
            errors.append((type(error).__name__, str(error)))
    return errors


def refit_until_error(desk: Desk) -> tuple[str, str, float, int]:
    """Receives versions until something breaks: (class, message, when, versions before)."""
    count = 0
    while True:
        try:
            desk.end.refit(desk.buffers)
        except ReshardError as error:
            return type(error).__name__, str(error), time.monotonic(), count
        count += 1
        if count == 3:
            tell("refitted")


def publish_until_error(desk: Desk, first_version: int) -> tuple[str, str, float, int]:
    """Publishes versions until something breaks: (class, message, when, last version)."""
    version = first_version
    while True:
        try:
            desk.end.publish(desk.buffers, version=version, verify=False)
        except ReshardError as error:
            return type(error).__name__, str(error), time.monotonic(), version
        version += 1


def pretend_planner_version(desk: Desk, version: int | None) -> None:
    """Makes this process plan as another version of the library would; None ends it."""
    desk.real_version = getattr(desk, "real_version", plan_module.PLANNER_VERSION)
    plan_module.PLANNER_VERSION = desk.real_version if version is None else version


def close_end_only(desk: Desk) -> None:
    """Closes the end, and leaves everything else so that it can be misused."""
    desk.end.close()


def memory_digest(desk: Desk) -> str:
    """Returns a hash of all arrays."""
    content = hashlib.sha256()
    for key in sorted(desk.arrays):
        content.update(np.ascontiguousarray(desk.arrays[key]).tobytes())
    return content.hexdigest()


def state_of(desk: Desk) -> tuple[str, int | None]:
    """Returns state and version of a destination."""
    return desk.end.state, desk.end.version


def topology_of(desk: Desk) -> Topology | None:
    """Returns what the end knows of all ranks."""
    return desk.end.topology


def messages_received(desk: Desk) -> int:
    """Returns how many control messages the store of this source has got."""
    count: int = desk.end._server.messages_received
    return count


def resources(desk: Desk) -> dict[str, int]:
    """Returns what a leak would make grow."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "descriptors": _count("/proc/self/fd"),
        "threads": _count("/proc/self/task"),
        "python threads": threading.active_count(),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "resident": int(resident.split()[1]) * 1024,
    }


def check_no_leak(desk: Desk, before: dict[str, int]) -> None:
    """Raises if this process has more of anything than it had; a heap may have grown a little.

    A thread that has been joined may be listed for a moment longer, hence the wait.
    """
    slack = {"resident": 8 << 20, "mappings": 10}
    deadline = time.monotonic() + _SETTLE_S
    while True:
        now = resources(desk)
        more = {name: now[name] - n for name, n in before.items() if now[name] > n}
        leaked = {name: n for name, n in more.items() if n > slack.get(name, 0)}
        if not leaked:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"more than before: {leaked}, of {now}")
        os.sched_yield()


def transpose_memory(desk: Desk) -> None:
    """Moves every array to new memory with its dims in the opposite order."""
    for key, array in desk.arrays.items():
        moved = np.zeros(tuple(reversed(array.shape)), array.dtype).T
        moved[...] = array
        desk.arrays[key] = moved
    _make_buffers(desk)


def _count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def staging_mapped(desk: Desk) -> int:
    """Returns the bytes of shared memory of the transport that this process has mapped."""
    total = 0
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if not head.endswith(":"):
            is_ours = "/memfd:" in line
        elif is_ours and head == "Size:":
            total += int(line.split()[1]) * 1024
    return total


def close(desk: Desk) -> None:
    """Closes the end of this process, if it has one, and lets its arrays go."""
    if hasattr(desk, "end"):
        desk.end.close()
        del desk.end
    desk.arrays, desk.buffers = {}, {}
