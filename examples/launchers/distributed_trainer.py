"""A JAX trainer of two processes with two devices each:

    python distributed_trainer.py 0 & python distributed_trainer.py 1

Under Slurm, Kubernetes or on TPUs jax.distributed.initialize() finds its arguments by itself.
"""

import os
import sys

import jax

jax.config.update("jax_num_cpu_devices", 2)  # of each process
jax.distributed.initialize(
    os.environ.get("JAX_COORDINATOR", "127.0.0.1:29710"),
    num_processes=2,
    process_id=int(sys.argv[1]),
)

import numpy as np  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from network import FORMS, answer, init, train  # noqa: E402

import reshard_jax  # noqa: E402

ADDRESS = os.environ.get("TRAINER_ADDRESS", "tcp://127.0.0.1:29700")  # on the host of process 0

params = init(Mesh(np.array(jax.devices()), ("fsdp",)))
with reshard_jax.Source(ADDRESS, params, forms=FORMS) as source:  # in every process
    for version in range(3):
        params = train(params)
        report = source.publish(params, version=version)
        if jax.process_index() == 0:
            print(report)
        print(f"trainer: version {version} says {answer(params):.4f}", flush=True)
