"""The benchmark's own small planner: exact cover for every layout pair and workload."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.layout_pairs import LAYOUT_PAIRS
from benchmarks.regions import Region, region_of, transfers_of
from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize("name", LAYOUT_PAIRS)
@pytest.mark.parametrize("shape", [(8, 12), (16,)])
def test_transfers_write_every_destination_element_once(name: str, shape: tuple[int, ...]) -> None:
    pair = LAYOUT_PAIRS[name]
    everything = Region((0,) * len(shape), shape)
    transfers = transfers_of(pair, shape)
    for rank in range(pair.destination.num_ranks):
        written = np.zeros(shape, int)
        for transfer in transfers:
            if transfer.destination == rank:
                written[transfer.region.slices_within(everything)] += 1
        wanted = np.zeros(shape, int)
        wanted[region_of(pair.destination, shape, rank).slices_within(everything)] = 1
        assert np.array_equal(written, wanted)


@pytest.mark.parametrize("name", LAYOUT_PAIRS)
@pytest.mark.parametrize("shape", [(8, 12), (16,)])
def test_sources_hold_what_they_send(name: str, shape: tuple[int, ...]) -> None:
    pair = LAYOUT_PAIRS[name]
    for transfer in transfers_of(pair, shape):
        held = region_of(pair.source, shape, transfer.source)
        assert held.intersection(transfer.region) == transfer.region


def test_regions_of_a_mesh_of_two_axes_by_hand() -> None:
    side = LAYOUT_PAIRS["C"].source
    regions = [region_of(side, (4, 8), rank) for rank in range(4)]
    assert regions == [
        Region((0, 0), (2, 4)),
        Region((0, 4), (2, 4)),
        Region((2, 0), (2, 4)),
        Region((2, 4), (2, 4)),
    ]


def test_uneven_division_is_refused() -> None:
    with pytest.raises(ValueError, match="6 elements left for 4 ranks"):
        region_of(LAYOUT_PAIRS["A"].source, (6, 8), 0)


def test_workloads_are_what_the_tables_say() -> None:
    dense = WORKLOADS["dense-1.5g"]
    assert len(dense.parameters) == 129
    assert dense.nbytes == 1_524_748_288
    assert len(WORKLOADS["tiny-1000"].parameters) == 1000
    assert {parameter.nbytes for parameter in WORKLOADS["tiny-1000"].parameters} == {8192}
    for workload in WORKLOADS.values():
        assert len({parameter.name for parameter in workload.parameters}) == len(
            workload.parameters
        )
        assert all(dim % 4 == 0 for parameter in workload.parameters for dim in parameter.shape)
