"""What the programs of both trainers do: publish a model, take another one, note logits of both."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from cases import Case, cases_of

import reshard_jax

__all__ = ["Trainer", "random_tree", "run", "tokens"]

LIMIT_S = 900.0


class Trainer(NamedTuple):
    """A model of a trainer.

    Attributes:
        config: of the library.
        params: its weights.
        logits: of weights and tokens.
        leaves: which leaves of the tree are weights.
        noted: attributes of `config` that `trainer_trees.json` keeps.
    """

    config: Any
    params: Any
    logits: Callable[[Any, np.ndarray], jax.Array]
    leaves: Callable[[str, object], bool] | None = None
    noted: tuple[str, ...] = ()


def tokens() -> np.ndarray:
    """Returns the tokens that both sides compute logits of: (batch, length)."""
    return np.random.default_rng(7).integers(0, 40, (4, 12), dtype=np.int32)


def random_tree(tree: Any) -> Any:
    """Returns a tree of the same names, shapes and shardings, with other numbers in all leaves."""
    named = reshard_jax.tree.NamedTree(tree)
    leaves = []
    for name, leaf in named.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        is_norm = name.endswith(("norm.scale", "norm.w"))
        values = 0.3 * rng.standard_normal(leaf.shape) + is_norm
        leaves.append(jax.device_put(values.astype(leaf.dtype), leaf.sharding))
    return named.with_values(leaves)


def run(library: str, build: Callable[[Case], Trainer]) -> None:
    """Runs a trainer's program: its arguments are a folder and a JSON text of addresses."""
    folder, addresses = Path(sys.argv[1]), json.loads(sys.argv[2])
    trees = {}
    for case in cases_of(library):
        if case.name not in addresses:
            continue
        forward, back = addresses[case.name]
        trainer = build(case)
        forms = getattr(reshard_jax.models, case.forms)(trainer.config, **case.forms_options)
        given = {"forms": forms, "leaves": trainer.leaves, "timeout_s": LIMIT_S}
        trees[case.name] = _described(trainer)
        with reshard_jax.Source(forward, trainer.params, **given) as source:
            source.publish(trainer.params, version=1)
        own = np.asarray(trainer.logits(trainer.params, tokens()))
        with reshard_jax.Destination(back, trainer.params, **given) as destination:
            taken = destination.refit()
        received = np.asarray(trainer.logits(taken, tokens()))
        np.savez(folder / f"{case.name}.trainer.npz", own=own, received=received)
        print(f"{library}: {case.name}: done", flush=True)
    (folder / f"{library}.trees.json").write_text(json.dumps(trees))


def _described(trainer: Trainer) -> dict[str, Any]:
    named = reshard_jax.tree.NamedTree(trainer.params, trainer.leaves)
    config = {name: getattr(trainer.config, name) for name in trainer.noted}
    return {
        "config": {name: getattr(value, "value", value) for name, value in config.items()},
        "leaves": {name: list(leaf.shape) for name, leaf in sorted(named.items())},
    }
