"""A JAX trainer and a PyTorch engine of two ranks as Ray actors: python ray_actors.py"""

import socket
from pathlib import Path

import ray


@ray.remote
class Trainer:
    """One process with two devices; on GPUs, ask Ray for them with num_gpus=."""

    def __init__(self) -> None:
        import jax

        jax.config.update("jax_num_cpu_devices", 2)
        import network
        import numpy as np
        from jax.sharding import Mesh

        import reshard_jax

        self.network = network
        self.params = network.init(Mesh(np.array(jax.devices()), ("fsdp",)))
        # Between machines: tcp://<this machine>:0, and a token that all actors know.
        self.source = reshard_jax.Source("tcp://127.0.0.1:0", self.params, forms=network.FORMS)

    def address(self) -> str:
        """Where the engine finds the trainer."""
        return self.source.address

    def step(self, version: int) -> float:
        """Trains, publishes the weights and returns the answer of the network."""
        self.params = self.network.train(self.params)
        self.source.publish(self.params, version=version)
        return self.network.answer(self.params)


@ray.remote
class Engine:
    """One rank of a process group of torch."""

    def __init__(self, rank: int, num_ranks: int, init_method: str, address: str) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        import reshard_torch

        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=num_ranks)
        layers = torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        self.model = torch.nn.Sequential(*layers)
        mesh = init_device_mesh("cpu", (num_ranks,))
        parallelize_module(self.model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        self.destination = reshard_torch.Destination(address, self.model)

    def refit(self) -> float:
        """Takes the next weights and returns the answer of the network."""
        import torch

        self.destination.refit(timeout_s=60)
        with torch.no_grad():
            return self.model(torch.ones(1, 1)).item()


def free_port() -> int:
    """Returns a port for torch's process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent  # where the actors find network.py
    ray.init(num_cpus=3, runtime_env={"env_vars": {"PYTHONPATH": str(folder)}})
    trainer = Trainer.remote()
    address = ray.get(trainer.address.remote())
    meeting = f"tcp://127.0.0.1:{free_port()}"
    engines = [Engine.remote(rank, 2, meeting, address) for rank in range(2)]
    for version in range(3):
        # A refit is a call of all: start it on the engine before waiting for the trainer.
        answers = [engine.refit.remote() for engine in engines]
        trained = ray.get(trainer.step.remote(version))
        print(f"trainer: version {version} says {trained:.4f}")
        for answer in ray.get(answers):
            print(f"engine: version {version} says {answer:.4f}", flush=True)
    ray.shutdown()
