"""The functional matrix of NCCL M2N Reshard between programs: 8 processes over shared memory.

All entries that resolve to 8 ranks. Upstream splits them 4 and 4, 6 and 2, or 2 and 6; ranks of one
entry do not fit another's program, so each split has programs of its own, and all entries of a
split move together, as the tensors of one model, in batches that fit a small machine.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from helpers import matrix_programs as programs
from helpers.m2n_matrix import entries
from helpers.team import Team

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def by_split():
    """Returns the batches of each (source ranks, destination ranks)."""
    found = defaultdict(list)
    for batch in programs.batches():
        own = defaultdict(list)
        for number in batch:
            sides = entries()[number].sides(programs.WORLD)
            own[tuple(side.num_ranks for side in sides)].append(number)
        for split, numbers in own.items():
            found[split].append(tuple(numbers))
    return dict(found)


@pytest.fixture(scope="module")
def team():
    with Team(programs.WORLD) as running:
        yield running


def test_all_entries_of_eight_ranks_are_here():
    numbers = [n for batches in by_split().values() for batch in batches for n in batch]
    expected = [entry.number for entry in entries() if programs.WORLD in entry.worlds]
    assert sorted(numbers) == expected
    assert len(expected) == 200


@pytest.mark.parametrize("split", [(4, 4), (6, 2), (2, 6)], ids=str)
def test_every_entry_arrives_byte_by_byte(team, split):
    num_sources, num_destinations = split
    processes = range(programs.WORLD)
    engines = range(num_sources, programs.WORLD)
    (address,) = team.values([0], programs.open_end, "tcp://127.0.0.1:0", "source", 0, num_sources)
    for process in processes[1:]:
        role, rank = (
            ("source", process)
            if process < num_sources
            else (
                "destination",
                process - num_sources,
            )
        )
        count = num_sources if role == "source" else num_destinations
        team.start(process, programs.open_end, address, role, rank, count)
    for process in processes[1:]:
        team.result(process).get()
    for version, numbers in enumerate(by_split()[split], 1):
        team.values(processes, programs.prepare, numbers)
        reports = team.values(processes, programs.take_part, version)
        assert {report.num_parameters for report in reports} == {len(numbers)}
        assert {report.share_resharded for report in reports} == {1.0}
        assert team.values(engines, programs.check) == [None] * num_destinations
    team.values(processes, programs.close)
