"""Move a tensor between two layouts, all ranks in this process; needs NumPy only."""

import numpy as np

import reshard
from reshard import Layout, Mesh, Replicate, Shard, TensorSpec

# Trainer: rows over fsdp=2, columns over tp=2. Engine: columns over tp=2, two replicas.
src = TensorSpec("w", (6, 8), "float32", Layout(Mesh.of(fsdp=2, tp=2), (Shard(0), Shard(1))))
dst = TensorSpec("w", (6, 8), "float32", Layout(Mesh.of(dp=2, tp=2), (Replicate(), Shard(1))))

plan = reshard.make_plan([src], [dst.shifted(4)])  # the engine's ranks are 4 to 7
print(plan.describe())
print(plan.explain("w", rank=6))

w = np.arange(48, dtype=np.float32).reshape(6, 8)
shards = {rank: {"w": reshard.local_array(src, rank, w)} for rank in plan.src_ranks}
result = reshard.run_in_process(plan, shards)
for rank in plan.dst_ranks:
    np.testing.assert_array_equal(result[rank]["w"], reshard.local_array(dst, rank - 4, w))
print("every destination rank holds exactly its elements")
