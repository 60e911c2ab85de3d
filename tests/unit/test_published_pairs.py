"""The published pairs, on as many ranks and with relays and exchanges, byte by byte on a laptop.

Tensors are a few hundred bytes and stand for those of the real models, so that plans cut and pass
on as much as theirs do.
"""

from __future__ import annotations

import pytest

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
    plan = make_plan(
        trainer.specs(small),
        generator.specs(small, trainer.num_ranks),
        topology=make_topology(trainer.num_ranks + generator.num_ranks),
        times_larger=model.nbytes // small.nbytes,
    )
    found = simulate(plan, timeout_s=240)
    assert found.wrong == ()
    assert found.volumes.striped > 0
    assert found.volumes.exchanged + found.volumes.relayed > 0
    assert len(found.volumes.moved) == plan.num_hops
    assert sum(found.volumes.moved) + found.volumes.copied == plan.view.loads.delivered
