"""An array on devices 0 to 2 of a JAX job goes to 3 and 1; run twice at once, with 0 and 1."""

import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard_jax

coordinator = os.environ.get("JAX_COORDINATOR", "127.0.0.1:29720")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(coordinator, num_processes=2, process_id=int(sys.argv[1]))

devices = np.array(jax.devices())  # 0 and 1 are of the first process, 2 and 3 of the second
trainer, engine = Mesh(devices[:3], ("fsdp",)), Mesh(devices[[3, 1]], ("tp",))
weight = np.arange(48, dtype=np.float32).reshape(6, 8)
sharded = NamedSharding(trainer, P("fsdp"))
x = jax.make_array_from_callback((6, 8), sharded, lambda index: weight[index])

y = reshard_jax.device_put(x, NamedSharding(engine, P(None, "tp")))

for shard in y.addressable_shards:
    np.testing.assert_array_equal(shard.data, weight[shard.index])
    print(f"{shard.device} holds {shard.data.shape}, equal to the source")
