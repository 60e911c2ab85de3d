"""The inference engine: transformers with tensor parallelism, serving rollouts.

Run by torchrun, in a virtual environment that has PyTorch and no JAX:

    torchrun --standalone --nproc-per-node 2 examples/grpo/engine.py build/demo/checkpoint

It loads the checkpoint, then serves requests until the trainer says stop. On `Refit` it takes the
trainer's current weights, in place. Rank 0 talks to the trainer and passes each request on to the
other ranks, which all do the same work. When the trainer dies, the engine ends.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from channel import ChannelError, EngineServer
from messages import (
    Array,
    Failed,
    Generate,
    Logits,
    Ready,
    Refit,
    Refitted,
    Reply,
    Request,
    Stop,
    Values,
    decode_request,
)
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

import reshard
import reshard_torch

DEFAULT_RESHARD_ADDRESS = "tcp://127.0.0.1:29600"
DEFAULT_ROLLOUT_ADDRESS = "tcp://127.0.0.1:29601"
REFIT_LIMIT_S = 60.0
IDLE_LIMIT_S = 300.0  # a trainer that compiles or has not been started yet is silent for a while
COLLECTIVE_LIMIT = timedelta(seconds=IDLE_LIMIT_S + 60)


class Engine:
    """One rank of the engine.

    Args:
        checkpoint: Folder of a transformers checkpoint.
        reshard_address: Where the trainer offers its weights.
    """

    def __init__(self, checkpoint: Path, reshard_address: str) -> None:
        """Loads this rank's shards of the model."""
        self._model = _load_sharded(checkpoint)
        self._destination = reshard_torch.Destination(
            reshard_address,
            self._model,
            forms=reshard_torch.models.transformers_qwen3(self._model.config),
        )

    def serve(self, request: Request) -> Reply:
        """Does what a request asks.

        Collective: every rank calls it with the same request.
        """
        match request:
            case Refit():
                version = self._destination.refit(timeout_s=REFIT_LIMIT_S)
                return Refitted(version, self._destination.fingerprints())
            case Generate():
                return Values(Array.of(self._generate(request).numpy()))
            case Logits():
                return Values(Array.of(self._logits(request).numpy()))
            case _:
                return Ready(dist.get_world_size())

    def close(self) -> None:
        """Leaves the refit; the model stays as it is."""
        self._destination.close()

    def _generate(self, request: Generate) -> torch.Tensor:
        prompts = torch.tensor(request.prompts.numpy())
        torch.manual_seed(request.seed)
        sequences: torch.Tensor = self._model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=request.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=request.num_tokens,
            min_new_tokens=request.num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        return sequences[:, prompts.shape[1] :]

    def _logits(self, request: Logits) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self._model(torch.tensor(request.tokens.numpy())).logits
        return logits.full_tensor() if isinstance(logits, DTensor) else logits


def _load_sharded(checkpoint: Path) -> PreTrainedModel:
    if not (checkpoint / "config.json").is_file():
        raise SystemExit(f"engine: {checkpoint}: no checkpoint here. See docs/demo.md.")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=torch.float32,
        distributed_config=DistributedConfig(tp_size=dist.get_world_size()),
    )
    return model.eval()


def _receive_on_all_ranks(server: EngineServer | None) -> Request:
    """Returns the next request: rank 0 has the server, the others get it from rank 0."""
    payload = server.receive(IDLE_LIMIT_S) if server else b""
    length = torch.tensor([len(payload)])
    dist.broadcast(length, src=0)
    data = torch.zeros(int(length), dtype=torch.uint8)
    if server:
        data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    dist.broadcast(data, src=0)
    return decode_request(data.numpy().tobytes())


def _serve_until_stopped(engine: Engine, server: EngineServer | None) -> None:
    """Serves requests in order. A failed request is reported to the trainer and ends the engine."""
    request: Request | None = None
    while not isinstance(request, Stop):
        request = _receive_on_all_ranks(server)
        try:
            reply = engine.serve(request)
        except (reshard.ReshardError, RuntimeError) as error:
            if server:
                server.reply(Failed(f"{type(error).__name__}: {error}"))
            raise
        if server:
            server.reply(reply)


def main() -> None:
    """Loads the model and serves the trainer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of a transformers checkpoint")
    parser.add_argument("--reshard-address", default=DEFAULT_RESHARD_ADDRESS)
    parser.add_argument("--rollout-address", default=DEFAULT_ROLLOUT_ADDRESS)
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("engine: this program is started by torchrun. See docs/demo.md.")
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    dist.init_process_group("gloo", timeout=COLLECTIVE_LIMIT)
    server: EngineServer | None = None
    try:
        if dist.get_rank() == 0:
            server = EngineServer(arguments.rollout_address)
        engine = Engine(arguments.checkpoint, arguments.reshard_address)
        _serve_until_stopped(engine, server)
        engine.close()
    except (ChannelError, reshard.ReshardError) as error:
        raise SystemExit(f"engine: rank {dist.get_rank()}: {error}") from error
    finally:
        if server:
            server.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
