"""A JAX trainer that is one process with four devices: python plain_trainer.py

It gives its weights to the engine (python plain_engine.py) after every hundred steps. Both print
what the network says for 1.0, and the numbers agree.
"""

import os

import jax

jax.config.update("jax_num_cpu_devices", 4)  # on a machine with GPUs these are taken

import numpy as np  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from network import FORMS, answer, init, train  # noqa: E402

import reshard_jax  # noqa: E402

ADDRESS = os.environ.get("TRAINER_ADDRESS", "tcp://127.0.0.1:29700")

params = init(Mesh(np.array(jax.devices()), ("fsdp",)))
with reshard_jax.Source(ADDRESS, params, forms=FORMS) as source:
    for version in range(3):
        params = train(params)
        print(source.publish(params, version=version))
        print(f"trainer: version {version} says {answer(params):.4f}", flush=True)
