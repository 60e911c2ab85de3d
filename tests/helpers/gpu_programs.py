"""Refits of processes whose arrays lie in device memory: calls for `Team` beside `refit_programs`.

The arrays of `refit_programs` stay on the host; they are uploaded before a version is published and
downloaded before it is checked. Memory comes from the driver, so that no framework is needed.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from benchmarks.gpu_device import Gpu
from benchmarks.gpu_libraries import Libraries
from helpers import refit_programs as programs
from helpers.full_doubles import Controls, FullDoubles
from helpers.team import Desk
from reshard import RefitReport, ReshardError

__all__ = [
    "check",
    "close",
    "publish",
    "publish_many",
    "put_on_gpu",
    "refit",
    "refit_and_fail",
    "refit_many",
    "take_libraries",
]


def take_libraries(desk: Desk, own: Libraries, device: int) -> None:
    """Says which libraries and which GPU this process takes from now on."""
    if not own.is_real:
        os.environ["RESHARD_CUDA_LIBRARY"] = own.driver
    if own.nccl is not None:
        os.environ["RESHARD_NCCL_LIBRARY"] = own.nccl
    desk.own = own
    desk.gpu = Gpu(own.driver, device)


def put_on_gpu(desk: Desk) -> None:
    """Gives every array of this process memory of the GPU; nothing is uploaded yet."""
    for key, buffer in desk.buffers.items():
        if not buffer.is_empty:
            address = desk.gpu.allocate(desk.arrays[key].nbytes)
            desk.buffers[key] = dataclasses.replace(
                buffer, address=address, device=desk.gpu.ordinal
            )


def publish(desk: Desk, version: int) -> RefitReport:
    """Fills, uploads and publishes a version."""
    programs.fill(desk, version)
    for key, array in _arrays(desk):
        desk.gpu.upload(desk.buffers[key].address, array.reshape(-1).view(np.uint8))
    return programs.publish(desk, version)


def publish_many(desk: Desk, first: int, count: int) -> None:
    """Publishes versions one after the other, each with contents of its own."""
    for version in range(first, first + count):
        publish(desk, version)


def refit(desk: Desk) -> RefitReport:
    """Receives the next version."""
    return programs.refit(desk)


def refit_many(desk: Desk, first: int, count: int) -> str | None:
    """Receives versions and checks each; says what is wrong, or None."""
    for version in range(first, first + count):
        found = programs.refit(desk).version
        problem = f"version {found} instead of {version}" if found != version else None
        problem = problem or check(desk, version)
        if problem is not None:
            return problem
    return None


def refit_and_fail(desk: Desk, version: int | None, fails: bool) -> str:
    """Takes part in a refit in which some process fails, and returns the message."""
    if fails:
        programs.raise_before_moving(desk, "the test fails this process")
    try:
        if version is None:
            programs.refit(desk)
        else:
            publish(desk, version)
    except (ReshardError, RuntimeError) as error:
        return str(error)
    raise AssertionError("the refit did not fail")


def check(desk: Desk, version: int) -> str | None:
    """Downloads the arrays and compares them with a version; says what is wrong, or None."""
    for key, array in _arrays(desk):
        found = desk.gpu.download(desk.buffers[key].address, array.nbytes)
        array.reshape(-1).view(np.uint8)[...] = found
    return programs.check(desk, version)


def _arrays(desk: Desk):
    for key, array in desk.arrays.items():
        if array.size:
            yield key, array


def close(desk: Desk) -> str:
    """Closes the end, gives the memory of the GPU back, and says what doubles complain of."""
    programs.close(desk)
    desk.gpu.close()
    if desk.own.is_real:
        return ""
    return Controls(FullDoubles(Path(desk.own.driver), Path(desk.own.nccl))).violations()
