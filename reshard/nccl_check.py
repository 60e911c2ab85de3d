"""What NCCL needs on this machine, and what of it is missing."""

from __future__ import annotations

from reshard.environment import nccl_library, nccl_must_block
from reshard.errors import UnsupportedError
from reshard.library_files import cuda_version_text
from reshard.nccl_choice import NcclOffer, nccl_version_text
from reshard.nccl_copies import (
    MIN_NCCL_VERSION,
    find_nccl,
    is_too_new,
    nccl_offers,
    warn_once,
    where_nccl_was_sought,
)

__all__ = ["check_nccl", "nccl_here"]


_REMEDY = "install nvidia-nccl-cu12 (nvidia-nccl-cu13 with CUDA 13)"
_REMEDY_OF_NAMED = (
    "unset RESHARD_NCCL_LIBRARY, or have it name a libnccl.so.2 of "
    f"{nccl_version_text(MIN_NCCL_VERSION)} or newer"
)


def nccl_here() -> tuple[tuple[NcclOffer, ...], str]:
    """Returns the copies that this process offers, and why it cannot use NCCL, empty if it can.

    Loads the CUDA driver; makes no context on a GPU.
    """
    if nccl_must_block():
        warn_once(
            "NCCL_COMM_BLOCKING=1 makes calls of NCCL block, so that a refit whose peer is lost "
            "may not end at its deadline. Unset it."
        )
    problems = []
    offers: tuple[NcclOffer, ...] = ()
    driver_version, driver = _driver()
    try:
        offers = nccl_offers(driver_version)
        if not offers:
            problems.append(_no_copy(driver_version))
    except UnsupportedError as error:
        problems.append(f"RESHARD_NCCL_LIBRARY: {str(error).rstrip('.')}")
    if driver:
        problems.append(driver)
    if not problems:
        return offers, ""
    needs = [_REMEDY_OF_NAMED if nccl_library() else _REMEDY] if not offers else []
    needs += ["run where a GPU and its driver are visible"] if driver else []
    remedy = f"{' and '.join(needs)}, or choose transport='shm', with the weights in host memory"
    text = f"cannot use NCCL: {'; '.join(problems)}. {remedy[0].upper()}{remedy[1:]}."
    return offers, text


def check_nccl() -> None:
    """Checks that this process can use NCCL.

    Raises:
        UnsupportedError: naming everything that is missing, and where it was looked for.
    """
    problem = nccl_here()[1]
    if problem:
        raise UnsupportedError(problem)


def _no_copy(driver_version: int | None) -> str:
    copies = find_nccl()
    if not copies:
        return f"libnccl.so.2 not found ({where_nccl_was_sought()})"
    new = [copy.path for copy in copies if is_too_new(copy, driver_version)]
    others = [copy.path for copy in copies if copy.path not in new]
    problems = []
    if new and driver_version is not None:
        version = cuda_version_text(driver_version)
        problems.append(f"{', '.join(new)} needs a later driver than this one of CUDA {version}")
    if others:
        oldest = nccl_version_text(MIN_NCCL_VERSION)
        problems.append(f"{', '.join(others)} cannot be loaded or is older than NCCL {oldest}")
    return "; ".join(problems)


def _driver() -> tuple[int | None, str]:
    """Returns the CUDA version of the driver, None if there is none, and what is wrong with it."""
    from reshard._native_libraries import CudaLibrary

    try:
        driver = CudaLibrary()
    except UnsupportedError as error:
        return None, str(error).rstrip(".")
    if driver.num_devices == 0:
        sees = "the driver in libcuda.so.1 sees no GPU (CUDA_VISIBLE_DEVICES may hide it)"
        return driver.version, sees
    return driver.version, ""
