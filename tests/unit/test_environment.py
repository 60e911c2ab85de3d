"""The environment variables that are read, and what is said of those that are not."""

from __future__ import annotations

import logging

import pytest

from reshard.environment import configure_logging


@pytest.fixture
def logger():
    """The library's logger as it was before the test."""
    logger = logging.getLogger("reshard")
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_a_level_sends_lines_to_stderr(logger, monkeypatch, capsys):
    monkeypatch.setenv("RESHARD_LOG", "INFO")
    configure_logging()
    logger.info("epoch 3 begins")
    logger.debug("not said")
    written = capsys.readouterr().err
    assert "reshard INFO epoch 3 begins" in written
    assert "not said" not in written


def test_lines_are_not_doubled_by_a_second_call(logger, monkeypatch, capsys):
    monkeypatch.setenv("RESHARD_LOG", "info")
    configure_logging()
    configure_logging()
    logger.info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_without_it_logging_is_left_to_the_application(logger, monkeypatch):
    monkeypatch.delenv("RESHARD_LOG", raising=False)
    before = list(logger.handlers), logger.level
    configure_logging()
    assert (list(logger.handlers), logger.level) == before


def test_a_level_that_does_not_exist_is_told(logger, monkeypatch, caplog):
    monkeypatch.setenv("RESHARD_LOG", "loud")
    configure_logging()
    assert "RESHARD_LOG=loud is not a level; use one of debug, info" in caplog.text


def test_a_misspelt_variable_is_told(logger, monkeypatch, caplog):
    monkeypatch.setenv("RESHARD_LOGG", "info")
    configure_logging()
    assert (
        "the environment variable RESHARD_LOGG has no effect. Did you mean 'RESHARD_LOG'?"
        in caplog.text
    )
