"""The published pairs, on as many ranks and with relays and exchanges, byte by byte on a laptop.

Tensors are a few hundred bytes, cut as the large ones are. Cards and stripes are as much slower and
smaller, so that plans pass on as much as those of the large models do.
"""

from __future__ import annotations

import dataclasses

import pytest
from helpers.topologies import min_stripe_bytes

from reshard import Model, Parallelism, Topology, make_plan
from reshard.simulation import simulate


def racks(num_ranks):
    return Topology.gb200_nvl72(num_ranks, ranks_per_domain=64)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "num_layers", "make_topology"),
    [
        ("qwen3-235b", 8, Topology.dgx_h100),
        ("deepseek-v3", 16, Topology.dgx_h100),
        ("deepseek-v3", 16, racks),
        ("nemotron-ultra", 4, racks),
    ],
)
def test_every_element_arrives_through_hops(name, num_layers, make_topology):
    model = Model.load(name)
    trainer, generator = Parallelism.parse(model.trainer), Parallelism.parse(model.generator)
    small = model.scaled_down(trainer, generator, num_layers=num_layers)
    topology = make_topology(trainer.num_ranks + generator.num_ranks)
    factor = small.nbytes / model.nbytes
    slow = dataclasses.replace(
        topology,
        nic_bytes_per_second=topology.nic_bytes_per_second * factor,
        link_bytes_per_second=topology.link_bytes_per_second * factor,
    )
    with min_stripe_bytes(16):
        plan = make_plan(
            trainer.specs(small), generator.specs(small, trainer.num_ranks), topology=slow
        )
        found = simulate(plan, timeout_s=240)
    assert found.wrong == ()
    assert len(found.moved_bytes) == plan.num_hops
    assert min(found.moved_bytes[:2]) > 0
    loads = plan.view.loads
    assert sum(found.moved_bytes) + found.copied_bytes == loads.delivered
