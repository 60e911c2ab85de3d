"""A PyTorch engine that is one process: python plain_engine.py"""

import os

import torch

import reshard_torch

ADDRESS = os.environ.get("TRAINER_ADDRESS", "tcp://127.0.0.1:29700")

model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
with reshard_torch.Destination(ADDRESS, model) as destination:
    for _ in range(3):
        version = destination.refit(timeout_s=120)
        with torch.no_grad():
            print(
                f"engine: version {version} says {model(torch.ones(1, 1)).item():.4f}", flush=True
            )
