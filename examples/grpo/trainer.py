"""The trainer: Tunix's GRPO learner on JAX, whose rollouts come from the engine.

Run in a virtual environment that has JAX and no PyTorch:

    python examples/grpo/trainer.py build/demo/checkpoint

It neither starts the engine nor shares anything with it but two addresses: one where it offers its
weights, one where the engine serves rollouts. With REFIT=off in the environment the weights are
never published: the control run, in which the reward must not rise.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from channel import ChannelError, EngineClient
from fingerprints import FingerprintError
from flax import nnx
from messages import Array, Hello, Logits, Ready, Stop, Values
from progress import Progress
from results import RefitRecord, RunResult
from rollout import EngineRollout, WeightPublisher
from task import (
    COMPLETION_LENGTH,
    PROMPT_LENGTH,
    VOCABULARY_SIZE,
    LetterTokenizer,
    make_prompts,
    share_of_chosen_token,
)
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout import base_rollout

import reshard

DEFAULT_RESHARD_ADDRESS = "tcp://127.0.0.1:29600"
DEFAULT_ROLLOUT_ADDRESS = "tcp://127.0.0.1:29601"
MESH_SHAPE, MESH_AXES = (2, 2), ("fsdp", "tp")
PROMPTS_PER_STEP = 8
COMPLETIONS_PER_PROMPT = 8
LEARNING_RATE = 1.5e-3
ENGINE_START_LIMIT_S = 180.0
REPLY_LIMIT_S = 60.0
TUNIX_ROPE_BASE = 1_000_000


def read_config(checkpoint: Path) -> qwen3.ModelConfig:
    """Returns Tunix's configuration of a transformers Qwen3 checkpoint."""
    path = checkpoint / "config.json"
    if not path.is_file():
        raise SystemExit(f"trainer: {checkpoint}: no checkpoint here. See docs/demo.md.")
    stored = json.loads(path.read_text())
    rope_base = stored["rope_parameters"]["rope_theta"]
    if rope_base != TUNIX_ROPE_BASE:
        raise SystemExit(
            f"trainer: {path}: rope_theta is {rope_base:g}, but Tunix's Qwen3 always uses "
            f"{TUNIX_ROPE_BASE:g}. Its logits would differ from the engine's."
        )
    return qwen3.ModelConfig(
        num_layers=stored["num_hidden_layers"],
        vocab_size=stored["vocab_size"],
        embed_dim=stored["hidden_size"],
        hidden_dim=stored["intermediate_size"],
        num_heads=stored["num_attention_heads"],
        head_dim=stored["head_dim"],
        num_kv_heads=stored["num_key_value_heads"],
        rope_theta=TUNIX_ROPE_BASE,
        norm_eps=stored["rms_norm_eps"],
        use_tied_embedding=stored["tie_word_embeddings"],
    )


def make_cluster(
    actor: nnx.Module,
    mesh: jax.sharding.Mesh,
    rollout_engine: functools.partial[EngineRollout],
    num_steps: int,
) -> rl_cluster.RLCluster:
    """Returns Tunix's cluster: the actor trains here, rollouts come from `rollout_engine`."""
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        rollout_engine=rollout_engine,
        offload_to_cpu=False,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adam(LEARNING_RATE),
            eval_every_n_steps=num_steps + 1,
            max_steps=num_steps,
            mini_batch_size=PROMPTS_PER_STEP,
            train_micro_batch_size=PROMPTS_PER_STEP,
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=COMPLETION_LENGTH,
            max_prompt_length=PROMPT_LENGTH,
            temperature=1.0,
        ),
    )
    return rl_cluster.RLCluster(
        actor=actor, reference=None, tokenizer=LetterTokenizer(), cluster_config=config
    )


def train(
    actor: nnx.Module,
    mesh: jax.sharding.Mesh,
    client: EngineClient,
    publisher: WeightPublisher | None,
    *,
    num_steps: int,
    progress: Progress,
) -> list[float]:
    """Trains the actor and returns the mean reward of each step."""
    rewards: list[float] = []

    def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        del prompts
        scores = [share_of_chosen_token(completion) for completion in completions]
        rewards.append(float(np.mean(scores)))
        return scores

    def show() -> None:
        refit = "no refit"
        if publisher is not None:
            refit = f"refit {1000 * publisher.reports[-1].seconds:.1f} ms"
        progress.step(len(rewards), f"reward {rewards[-1]:.3f}, {refit}")

    rollout_engine = functools.partial(
        EngineRollout, client=client, publisher=publisher, on_refit=show
    )
    cluster = make_cluster(actor, mesh, rollout_engine, num_steps)
    config = GRPOConfig(num_generations=COMPLETIONS_PER_PROMPT, num_iterations=1, beta=0.0)
    learner = GRPOLearner(rl_cluster=cluster, algo_config=config, reward_fns=reward)
    progress.note("compiling the first step")
    learner.train(make_prompts(num_steps, PROMPTS_PER_STEP, seed=0))
    return rewards


def largest_logits_difference(actor: nnx.Module, client: EngineClient) -> float:
    """Returns how far the trainer's and the engine's logits are apart on random tokens."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY_SIZE, (4, 20))
    client.send(Logits(Array.of(tokens)))
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    causal = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), dtype=bool))
    mask = jnp.broadcast_to(causal, (tokens.shape[0], *causal.shape))
    forward = nnx.jit(lambda model, ids: model(ids, positions, None, mask)[0])
    own = np.asarray(forward(actor, jnp.asarray(tokens)))
    engine = client.receive(Values, timeout_s=REPLY_LIMIT_S).values.numpy()
    return float(np.abs(own - engine).max())


def run(arguments: argparse.Namespace) -> RunResult:
    """Runs one training against a running engine."""
    started = time.monotonic()
    is_refit_on = arguments.refit == "on"
    progress = Progress(f"refit {arguments.refit}", arguments.steps)
    config = read_config(arguments.checkpoint)
    progress.note("loading the checkpoint")
    mesh = jax.make_mesh(MESH_SHAPE, MESH_AXES, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    actor = qwen3_params.create_model_from_safe_tensors(
        str(arguments.checkpoint), config, mesh=mesh, dtype=jnp.float32
    )
    params = nnx.state(actor, nnx.Param)
    publisher = WeightPublisher(arguments.reshard_address, params, config)
    with EngineClient(arguments.rollout_address) as client:
        progress.note(f"waiting for the engine at {arguments.rollout_address}")
        client.ask(Hello(), Ready, timeout_s=ENGINE_START_LIMIT_S)
        if is_refit_on:
            publisher.publish(params, client)
        rewards = train(
            actor,
            mesh,
            client,
            publisher if is_refit_on else None,
            num_steps=arguments.steps,
            progress=progress,
        )
        difference = largest_logits_difference(actor, client)
        client.ask(Stop(), Ready, timeout_s=REPLY_LIMIT_S)
    publisher.close()
    progress.finish(f"done, reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")
    return RunResult(
        is_refit_on=is_refit_on,
        model_size=sum(leaf.size for leaf in jax.tree.leaves(params)),
        rewards=rewards,
        refits=[RefitRecord.of(report) for report in publisher.reports],
        num_fingerprints=publisher.num_fingerprints,
        logits_difference=difference,
        seconds=time.monotonic() - started,
    )


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of a transformers checkpoint")
    parser.add_argument("--reshard-address", default=DEFAULT_RESHARD_ADDRESS)
    parser.add_argument("--rollout-address", default=DEFAULT_ROLLOUT_ADDRESS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--result", type=Path, help="JSON file to write the result to")
    parser.add_argument(
        "--refit",
        choices=("on", "off"),
        default=os.environ.get("REFIT", "on"),
        help="off: never publish the weights (default: $REFIT, else on)",
    )
    return parser.parse_args()


def main() -> None:
    """Runs the trainer and writes its result."""
    arguments = parse_arguments()
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    num_devices = MESH_SHAPE[0] * MESH_SHAPE[1]
    jax.config.update("jax_num_cpu_devices", num_devices)  # type: ignore[no-untyped-call]
    try:
        result = run(arguments)
    except (ChannelError, FingerprintError, reshard.ReshardError) as error:
        raise SystemExit(f"trainer: {error}") from error
    if arguments.result:
        result.save(arguments.result)


if __name__ == "__main__":
    main()
