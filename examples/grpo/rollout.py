"""Tunix's view of the engine: a rollout worker whose `update_params` is a refit.

`WeightPublisher` is all that the trainer does with reshard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from channel import EngineClient
from fingerprints import compare_fingerprints
from messages import Array, Generate, Refit, Refitted, Values
from task import LetterTokenizer
from tunix.models.qwen3 import model as qwen3
from tunix.rl.rollout import base_rollout

import reshard_jax

REFIT_LIMIT_S = 60.0
GENERATE_LIMIT_S = 60.0


class WeightPublisher:
    """Brings the trainer's weights into the engine and checks that they arrived.

    Args:
        address: Where the engine's ranks find the weights, such as `tcp://127.0.0.1:29600`.
        params: Any tree of the model's parameters with the layout that later ones have too.
        config: Tunix's configuration of the model.
    """

    def __init__(self, address: str, params: object, config: qwen3.ModelConfig) -> None:
        """Offers the weights; moves nothing yet."""
        self._source = reshard_jax.Source(
            address, params, forms=reshard_jax.models.tunix_qwen3(config)
        )
        self.reports: list[Any] = []
        self.num_fingerprints = 0

    def publish(self, params: object, client: EngineClient) -> None:
        """Refits the engine with `params`; returns when the engine has them all."""
        version = len(self.reports)
        client.send(Refit())
        report = self._source.publish(params, version=version, timeout_s=REFIT_LIMIT_S)
        engine_side = client.receive(Refitted, timeout_s=REFIT_LIMIT_S)
        compare_fingerprints(version, report.fingerprints, engine_side)
        self.num_fingerprints += len(engine_side.fingerprints)
        self.reports.append(report)

    def close(self) -> None:
        """Withdraws the offer."""
        self._source.close()


class EngineRollout(base_rollout.BaseRollout):  # type: ignore[misc] # Tunix ships no types
    """Generates with the engine, and refits it whenever Tunix has new weights.

    Args:
        rollout_actor: Tunix's model; unused, the engine has its own.
        tokenizer: Unused; the task's tokenizer is part of the task.
        mesh: Unused; the engine has its own.
        rollout_config: Unused here; `generate` gets it with each call.
        client: The engine.
        publisher: The refit, or None for the control run in which the engine keeps its first
            weights.
        on_refit: Called after each `update_params`.
    """

    def __init__(
        self,
        *,
        rollout_actor: object,
        tokenizer: object,
        mesh: object,
        rollout_config: object,
        client: EngineClient,
        publisher: WeightPublisher | None,
        on_refit: Callable[[], None],
    ) -> None:
        """Takes the parts; the engine already serves."""
        del rollout_actor, tokenizer, mesh, rollout_config
        self._client = client
        self._publisher = publisher
        self._on_refit = on_refit
        self._tokenizer = LetterTokenizer()
        self._num_calls = 0

    def update_params(self, params: object, filter_types: tuple[type, ...] | None = None) -> None:
        """Refits the engine. Tunix calls this once per step."""
        del filter_types  # `params` is filtered already
        if self._publisher is not None:
            self._publisher.publish(params, self._client)
        self._on_refit()

    def generate(
        self, prompts: list[str], rollout_config: base_rollout.RolloutConfig, **_: object
    ) -> base_rollout.RolloutOutput:
        """Samples one completion per prompt on the engine."""
        tokens = np.array([self._tokenizer.encode(prompt) for prompt in prompts], dtype=np.int64)
        self._num_calls += 1
        request = Generate(
            prompts=Array.of(tokens),
            num_tokens=rollout_config.max_tokens_to_generate,
            temperature=rollout_config.temperature,
            seed=self._num_calls,
        )
        reply = self._client.ask(request, Values, timeout_s=GENERATE_LIMIT_S)
        completions = reply.values.numpy().astype(np.int32)
        return base_rollout.RolloutOutput(
            text=[self._tokenizer.decode(completion) for completion in completions],
            logits=None,
            tokens=list(completions),
            left_padded_prompt_tokens=tokens.astype(np.int32),  # all prompts have the full length
            logprobs=None,
        )

    def get_per_token_logps(self, *_: object, **__: object) -> jax.Array:
        """Refuses: GRPO with one iteration per batch needs none from the engine."""
        raise NotImplementedError

    def pad_id(self) -> int:
        """Returns the padding token."""
        return self._tokenizer.pad_id()

    def eos_id(self) -> int:
        """Returns the token that ends a text."""
        return self._tokenizer.eos_id()

    def model(self) -> None:
        """Returns None: the model is in another program, so Tunix always brings weights over."""
