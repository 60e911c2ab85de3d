"""What the trees of all MaxText models have in common: where layers are, whole leaves, kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from reshard import Elementwise, LayoutError, check_config
from reshard_jax.models.rules import Place, Rule, Tree

__all__ = [
    "MaxTextConfig",
    "Stacks",
    "attention_out",
    "expert_kernels",
    "heads",
    "maxtext_tree",
    "read_config",
    "stack",
    "transposed",
    "value_of",
    "vector",
]

Stacks = Mapping[str, tuple[tuple[int, ...], int | None]]
"""Path below `decoder` -> the layers in its leaves, and their dim; None for one layer alone."""

_FIELDS = (
    "decoder_block",
    "num_decoder_layers",
    "scan_layers",
    "param_scan_axis",
    "logits_via_embedding",
    "normalize_embedding_logits",
    "vocab_size",
)


class MaxTextConfig(Protocol):
    """What is read of a MaxText configuration; each function needs a few of them."""

    @property
    def decoder_block(self) -> object:
        """Kind of decoder layer: an enumeration, or its value."""

    @property
    def num_decoder_layers(self) -> int:
        """Number of decoder layers."""

    @property
    def scan_layers(self) -> bool:
        """True if leaves hold stacks of layers."""

    @property
    def param_scan_axis(self) -> int:
        """Dim of the layers in a stack."""

    @property
    def logits_via_embedding(self) -> bool:
        """True if the output head is the embedding."""

    @property
    def normalize_embedding_logits(self) -> bool:
        """True if logits of a tied head are divided by sqrt(emb_dim)."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, padded ones included."""


def read_config(
    function: str,
    config: MaxTextConfig,
    fields: tuple[str, ...],
    block: str,
    *,
    divides_logits: bool = False,
) -> None:
    """Refuses the configuration of something else than a MaxText model of the family.

    Args:
        function: that was called.
        config: what it was given.
        fields: attributes that it reads besides those that all families have.
        block: the family's `decoder_block`.
        divides_logits: True if a tied head is stored times sqrt(emb_dim), and the model has to
            divide logits by it.

    Raises:
        LayoutError: saying what is not there or of another kind.
    """
    check_config(function, config, (*_FIELDS, *fields), "the configuration of a MaxText model")
    found = value_of(config.decoder_block)
    if found != block:
        raise LayoutError(
            f"{function}: decoder_block is {found!r}, but these are the rules of {block!r}, and "
            "other families scale or order elements otherwise. Call the function of the family."
        )
    if config.logits_via_embedding and config.normalize_embedding_logits != divides_logits:
        raise LayoutError(
            f"{function}: normalize_embedding_logits is {config.normalize_embedding_logits}, so "
            "logits of the tied head would not be those of the engine with the same weights. Set "
            f"normalize_embedding_logits={divides_logits} in the trainer."
        )


def value_of(given: object) -> object:
    """Returns the value of an enumeration's member, and anything else as it is."""
    return getattr(given, "value", given)


def stack(config: MaxTextConfig, path: str, layers: Iterable[int]) -> Stacks:
    """Returns where layers are that are scanned together: below `path`, or one by one."""
    numbers = tuple(layers)
    if config.scan_layers:
        return {path: (numbers, config.param_scan_axis)}
    return {f"{path}_{i}": ((layer,), None) for i, layer in enumerate(numbers)}


def maxtext_tree(
    function: str,
    config: MaxTextConfig,
    stacks: Stacks,
    layers: Mapping[str, tuple[Rule, ...]],
    *,
    prefix: str = "model.",
    vocab_size: int | None = None,
    embedding: Elementwise | None = None,
    norm: Elementwise | None = None,
) -> Tree:
    """Returns the forms of a model.

    Args:
        function: that was called for them.
        config: the model's configuration.
        stacks: where its layers are.
        layers: rules of the leaves of a layer.
        prefix: of the canonical names, but that of the output head.
        vocab_size: rows of the canonical embedding; None for as many as there are stored.
        embedding, norm: how stored values become canonical ones.

    Raises:
        LayoutError: if there are fewer rows stored than canonical ones.
    """
    if vocab_size is not None and not 0 < vocab_size <= config.vocab_size:
        raise LayoutError(
            f"{function}: vocab_size={vocab_size} is not within the {config.vocab_size} rows that "
            "the model has. Give the engine's number of tokens; the rows after them are padding."
        )
    rows = () if vocab_size is None else (("vocab", vocab_size),)
    is_tied = config.logits_via_embedding
    aliases = ("lm_head.weight",) if is_tied else ()
    whole = {
        "token_embedder.embedding": (
            Rule(
                f"{prefix}embed_tokens.weight",
                ("vocab", "embed"),
                "vocab embed",
                rows,
                aliases=aliases,
                elementwise=embedding,
            ),
        ),
        "decoder.decoder_norm.scale": vector(f"{prefix}norm.weight", norm),
    }
    if not is_tied:
        head = Rule("lm_head.weight", ("embed", "vocab"), "vocab embed", rows)
        whole["decoder.logits_dense.kernel"] = (head,)
    told = (
        f"num_decoder_layers={config.num_decoder_layers}, scan_layers={config.scan_layers}, "
        f"tied embedding: {is_tied}"
    )
    layer_prefix = f"{prefix}layers."
    return Tree(function, told, whole, layers, _places(stacks), layer_prefix, wrapper="base.")


def _places(stacks: Stacks) -> Callable[[str], Place | None]:
    def place_of(name: str) -> Place | None:
        path = name.split(".")
        for depth in (3, 2):
            found = stacks.get(".".join(path[1:depth]))
            if path[0] == "decoder" and len(path) > depth and found is not None:
                return Place(found[0], ".".join(path[depth:]), found[1])
        return None

    return place_of


def vector(name: str, elementwise: Elementwise | None = None) -> tuple[Rule, ...]:
    """Returns the rule of a leaf with one dim."""
    return (Rule(name, ("dim",), "dim", elementwise=elementwise),)


def transposed(name: str) -> tuple[Rule, ...]:
    """Returns the rule of a kernel (in, out)."""
    return (Rule(name, ("inner", "outer"), "outer inner"),)


def heads(
    name: str, *, is_paired: bool = False, elementwise: Elementwise | None = None
) -> tuple[Rule, ...]:
    """Returns the rule of a kernel (in, heads, head size).

    Args:
        name: canonical name.
        is_paired: the model rotates neighbouring lanes (RoPE), where the canonical tensor has the
            first lanes of all pairs and then the second ones.
        elementwise: how stored values become canonical ones.
    """
    if not is_paired:
        stored, canonical = ("embed", "heads", "head_dim"), "(heads head_dim) embed"
        return (Rule(name, stored, canonical, elementwise=elementwise),)
    stored, canonical = ("embed", "heads", "(half pair)"), "(heads pair half) embed"
    return (Rule(name, stored, canonical, (("pair", 2),), elementwise=elementwise),)


def attention_out(name: str) -> tuple[Rule, ...]:
    """Returns the rule of a kernel (heads, head size, out)."""
    return (Rule(name, ("heads", "head_dim", "embed"), "embed (heads head_dim)"),)


def expert_kernels(block: str) -> dict[str, tuple[Rule, ...]]:
    """Returns the rules of the experts of a block: `wi_0`, `wi_1`, `wo`, and `wi` for two in one.

    Args:
        block: name of the block below a layer.
    """
    rules = {
        leaf: Rule(
            f"mlp.experts.{{experts}}.{name}_proj.weight",
            ("experts", "inner", "outer"),
            "outer inner",
        )
        for leaf, name in (("wi_0", "gate"), ("wi_1", "up"), ("wo", "down"))
    }
    halves = tuple(
        replace(
            rules[leaf],
            stored=("experts", "inner", "(half outer)"),
            sizes=(("half", 2),),
            index=(("half", half),),
        )
        for half, leaf in enumerate(("wi_0", "wi_1"))
    )
    return {f"{block}.wi": halves, **{f"{block}.{leaf}": (rule,) for leaf, rule in rules.items()}}
