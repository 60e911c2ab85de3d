"""Options that concern all tests: seeds, how hard properties are tried, and required frameworks.

`RESHARD_REQUIRE=torch,jax,nvrtc,nccl,cuda_headers,ray` (set where they are installed) turns a skip
for a missing package into a failure, so that a suite that ran nothing cannot pass. Markers are in
pyproject.toml.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator

import hypothesis
import pytest

# The database is off: a failure prints what repeats it, and no run depends on an earlier one.
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    database=None,
    print_blob=True,
    max_examples=60,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,  # says something about the machine, not about the law
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.filter_too_much,
    ],
)
hypothesis.settings.register_profile(
    "thorough", hypothesis.settings.get_profile("default"), max_examples=2000
)
hypothesis.settings.load_profile("default")


# What is imported to see whether a package is there that has another name than its mark.
_MODULES = {
    "cuda_headers": "nvidia.cuda_runtime",
    "nccl": "nvidia.nccl",
    "nvrtc": "nvidia.cuda_nvrtc",
}


def _required() -> list[str]:
    return [name for name in os.environ.get("RESHARD_REQUIRE", "").split(",") if name]


def pytest_configure(config: pytest.Config) -> None:
    """Imports what has to be there, so that its absence is one clear error and not many skips."""
    for name in _required():
        try:
            importlib.import_module(_MODULES.get(name, name))
        except ImportError as error:
            raise pytest.UsageError(
                f"RESHARD_REQUIRE names {name}, which cannot be imported: {error}"
            ) from error


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps together what `-n` must not spread over its workers.

    Tests that start processes come one after the other, as their limits suppose a machine that is
    theirs but for one other worker. All others stay with their module, which made fixtures once.
    """
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            starts_processes = item.get_closest_marker("processes") is not None
            group = "processes" if starts_processes else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that skips for want of a framework which `RESHARD_REQUIRE` names."""
    report = yield
    missing = [name for name in _required() if item.get_closest_marker(name)]
    if item.get_closest_marker("gpu"):
        missing = []  # a missing device is no missing framework
    if report.skipped and missing and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although RESHARD_REQUIRE names {missing}: {report.longrepr}"
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Names the seed after a run that was not clean, also where -q hides the header."""
    seed = config.getoption("randomly_seed", None)
    is_clean = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if seed is not None and not is_clean:
        terminalreporter.write_line(f"repeat this order with: -p randomly --randomly-seed={seed}")
