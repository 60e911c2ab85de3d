"""Prints the seed of a failed run, so that it can be repeated; markers are in pyproject.toml."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Names the seed after a run that was not clean, also where -q hides the header."""
    seed = config.getoption("randomly_seed", None)
    is_clean = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if seed is not None and not is_clean:
        terminalreporter.write_line(f"repeat this order with: -p randomly --randomly-seed={seed}")
