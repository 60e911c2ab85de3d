"""What a report says of a refit, and the figures that follow from others."""

from __future__ import annotations

import pickle

import pytest

from reshard import RefitReport
from reshard.copy_rate import one_copy_seconds, probe_copy_rate
from reshard.outcome import Outcome, make_report


def report(**changes):
    values = {
        "version": 3,
        "epoch": 1,
        "num_parameters": 129,
        "nbytes": 3 << 30,
        "nbytes_held": 3 << 30,
        "nbytes_local": 0,
        "phases": {"wait": 1.0, "setup": 2.0, "move": 0.5, "verify": 0.25, "commit": 0.125},
        "busy": {"pack": 0.2, "unpack": 0.3, "idle": 0.1},
        "peak_staging_bytes": 8 << 20,
        "one_copy_seconds": 0.4,
        "fingerprints": {"w": 1},
    }
    return RefitReport(**{**values, **changes})


def test_figures_that_follow():
    found = report()
    assert found.seconds == 0.5 + 0.25 + 0.125
    assert found.bytes_per_second == (3 << 30) / 0.5
    assert found.achieved_share_of_limit == pytest.approx(0.8)
    assert found.share_resharded == 1.0
    assert found.is_verified


def test_a_refit_of_no_bytes_divides_by_nothing():
    found = report(nbytes=0, nbytes_held=0, phases={"move": 0.0, "verify": 0.0, "commit": 0.0})
    assert (found.bytes_per_second, found.achieved_share_of_limit) == (0.0, 0.0)
    assert found.share_resharded == 1.0


def test_what_did_not_arrive_shows():
    assert report(nbytes=1 << 30).share_resharded == pytest.approx(1 / 3)


def test_it_reads_as_a_line():
    assert str(report()) == (
        "version 3: 129 parameters, 3 GiB in 500.0 ms (6.44 GB/s, 80% of the one-copy limit), "
        "verified"
    )
    assert not str(report(fingerprints={})).endswith("verified")


def test_it_survives_pickle_and_hides_the_fingerprints_from_its_repr():
    assert pickle.loads(pickle.dumps(report())) == report()
    assert "fingerprints" not in repr(report())


def outcome(**changes):
    values = dict.fromkeys(Outcome.__struct_fields__, 0)
    return Outcome(**{**values, "sums": b"", **changes})


def test_the_report_of_all_adds_bytes_and_takes_the_slowest():
    outcomes = [
        outcome(bytes_in=10, bytes_held=10, bytes_local=2, move_s=0.5, pack_s=0.1, idle_s=0.3),
        outcome(
            bytes_in=30, bytes_held=30, move_s=0.4, verify_s=0.2, unpack_s=0.7, peak_staging_bytes=9
        ),
    ]
    found = make_report(
        outcomes,
        version=1,
        epoch=2,
        num_parameters=3,
        copy_rate=20.0,
        phases={"wait": 1.0, "commit": 0.1},
        fingerprints={},
    )
    assert (found.nbytes, found.nbytes_held, found.nbytes_local) == (40, 40, 2)
    assert found.phases == {"wait": 1.0, "commit": 0.1, "move": 0.5, "verify": 0.2}
    assert found.busy == {"pack": 0.1, "unpack": 0.7, "idle": 0.3}
    assert found.peak_staging_bytes == 9
    assert found.one_copy_seconds == one_copy_seconds([10, 30], 20.0)


def test_the_one_copy_limit_is_that_of_the_busiest_process_or_of_all_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert one_copy_seconds([10, 10], 10.0) == 1.0
    assert one_copy_seconds([10, 10, 10, 10], 10.0) == 2.0
    assert one_copy_seconds([20, 0], 10.0) == 2.0
    assert one_copy_seconds([], 10.0) == 0.0
    assert one_copy_seconds([10], 0.0) == 0.0


def test_the_copy_rate_is_that_of_a_real_machine():
    assert 1e8 < probe_copy_rate() < 1e12
