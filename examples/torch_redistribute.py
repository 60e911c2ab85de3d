"""A DTensor on ranks 0 and 1 becomes one on ranks 1, 2 and 3; run under torchrun with 4 ranks."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import reshard_torch

dist.init_process_group("gloo")
trainer, engine = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [1, 2, 3])
weight = torch.arange(70.0).reshape(7, 10)

src = distribute_tensor(weight, trainer, [Shard(0)]) if trainer.get_coordinate() else None
dst = distribute_tensor(torch.zeros(7, 10), engine, [Shard(1)]) if engine.get_coordinate() else None
reshard_torch.redistribute(src, dst)

if dst is not None:
    torch.testing.assert_close(dst.full_tensor(), weight, rtol=0, atol=0)
    print(f"rank {dist.get_rank()} holds {tuple(dst.to_local().shape)}, equal to the source")
dist.destroy_process_group()
