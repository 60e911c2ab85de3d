"""Describes the machine and the software of a run; written into every result."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import subprocess

__all__ = ["Machine", "describe_machine"]

ROOT = pathlib.Path(__file__).resolve().parent.parent
_PACKAGES = ("reshard", "torch", "numpy", "jax", "pyzmq", "msgspec", "torchstore", "torchmonarch")


@dataclasses.dataclass(frozen=True)
class Machine:
    """Cores, memory, libraries and commit of one run."""

    processor: str
    num_cores: int
    memory_bytes: int
    kernel: str
    huge_pages: str
    python: str
    packages: dict[str, str]
    commit: str
    load_average: tuple[float, float, float]

    def summary(self) -> str:
        """Returns two lines for the head of a report."""
        versions = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        load = ", ".join(f"{value:.1f}" for value in self.load_average)
        return (
            f"{self.num_cores} cores of {self.processor}, {self.memory_bytes / 2**30:.0f} GiB, "
            f"Linux {self.kernel}, huge pages {self.huge_pages}, load {load}\n"
            f"python {self.python}, {versions}, commit {self.commit}"
        )


def describe_machine() -> Machine:
    """Reads what the kernel, the package metadata and git say about this run."""
    return Machine(
        processor=_field("/proc/cpuinfo", "model name"),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        huge_pages=_huge_pages(),
        python=platform.python_version(),
        packages=_versions(),
        commit=_commit(),
        load_average=os.getloadavg(),
    )


def _field(path: str, name: str) -> str:
    for line in pathlib.Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _huge_pages() -> str:
    path = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.exists():
        return "absent"
    return path.read_text().partition("[")[2].partition("]")[0]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Returns the short commit, with a plus sign where the tree has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=9"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
