"""A PyTorch engine of two ranks with tensor parallelism:

torchrun --nproc-per-node 2 torchrun_engine.py
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import reshard_torch

ADDRESS = os.environ.get("TRAINER_ADDRESS", "tcp://127.0.0.1:29700")

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
with reshard_torch.Destination(ADDRESS, model) as destination:  # on every rank
    for _ in range(3):
        version = destination.refit(timeout_s=120)
        with torch.no_grad():
            print(
                f"engine: version {version} says {model(torch.ones(1, 1)).item():.4f}", flush=True
            )
dist.destroy_process_group()
