"""What tensor and expert parallelism do to a parameter, told from its canonical name.

One table: the first pattern that a name matches says its rule. A name that matches none has no
rule here; whoever asks must say so to the user, never guess.
"""

from __future__ import annotations

import re
from typing import Final, Literal

__all__ = ["Layer", "Rule", "layer_of_name", "place_of_expert", "rule_of_name"]

Rule = Literal["replicated", "column", "row", "kv", "vocab", "expert_column", "expert_row"]
"""`column` cuts what a layer puts out (dim 0 of a weight, as PyTorch stores it), `row` what it
takes in (dim 1), `kv` is `column` with heads that repeat once the ranks outnumber them, `vocab` is
`column` along the vocabulary. Experts are cut by expert, or, without expert parallelism, as
`column` and `row` inside each expert."""

Layer = int | Literal["first", "last"]
"""A layer number, or the first or last pipeline stage for what lies before or after all layers."""

_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    # Mixtures of experts: stacked (no number) or one by one.
    (r"\.experts\.(\d+\.)?(gate_proj|up_proj|w1|w3)\.weight$", "expert_column"),
    (r"\.experts\.(\d+\.)?(down_proj|w2)\.weight$", "expert_row"),
    (r"\.(gate|router)\.(weight|bias|e_score_correction_bias)$", "replicated"),
    (r"\.shared_expert_gate\.weight$", "replicated"),
    (r"\.(fc1_latent_proj|fc2_latent_proj|eh_proj)\.weight$", "replicated"),
    # Vocabulary.
    (r"(^|\.)(embed_tokens|embeddings|word_embeddings|wte|lm_head)\.weight$", "vocab"),
    (r"\.shared_head\.head\.weight$", "vocab"),
    # State-space mixers: all their vectors run along the heads.
    (r"\.mixer\.(A_log|D|dt_bias|conv1d\.weight|conv1d\.bias|norm\.weight)$", "column"),
    (r"\.mixer\.in_proj\.weight$", "column"),
    # Attention and feed-forward.
    (r"\.(q_a_proj|kv_a_proj_with_mqa)\.(weight|bias)$", "replicated"),
    (r"\.(q_proj|q_b_proj|kv_b_proj|gate_proj|up_proj)\.(weight|bias)$", "column"),
    (r"\.(k_proj|v_proj)\.(weight|bias)$", "kv"),
    (r"\.(o_proj|out_proj|down_proj)\.weight$", "row"),
    (r"\.(o_proj|out_proj|down_proj)\.bias$", "replicated"),
    (r"(^|\.)\w*(norm|norm_f)\.(weight|bias)$", "replicated"),
    (r"\.inv_freq$", "replicated"),
)
_TABLE: Final = tuple((re.compile(pattern), rule) for pattern, rule in _RULES)

_LAYER: Final = re.compile(
    r"^(?:(?:language_model|model|backbone|transformer)\.)*layers\.(\d{1,9})\."
)
_EXPERT: Final = re.compile(r"^(.*\.experts)\.(0|[1-9]\d{0,8})\.(.+)$")
# Scales of blocks of a quantised weight lie in the same order as the weight.
_SCALE: Final = "_scale_inv"


def rule_of_name(name: str) -> Rule | None:
    """Returns the rule of a canonical name, or None if the table does not know it.

    Example:
        >>> rule_of_name("model.layers.0.self_attn.o_proj.weight"), rule_of_name("surprise")
        ('row', None)
    """
    plain = name.removesuffix(_SCALE)
    return next((rule for pattern, rule in _TABLE if pattern.search(plain)), None)


def layer_of_name(name: str) -> Layer:
    """Returns the layer of a canonical name of a language model.

    Outside of the layers, final norm and output head belong to the last stage, all else (input
    embedding, vision towers) to the first.

    Example:
        >>> layer_of_name("model.layers.12.mlp.gate.weight"), layer_of_name("lm_head.weight")
        (12, 'last')
    """
    found = _LAYER.match(name)
    if found:
        return int(found[1])
    is_last = re.search(
        r"^(?:(?:language_model|model|backbone|transformer)\.)*(norm|norm_f)\.", name
    )
    return "last" if is_last or re.search(r"(^|\.)lm_head\.", name) else "first"


def place_of_expert(name: str) -> tuple[str, int] | None:
    """Returns the name of the stack that an expert's parameter belongs to, and its index there.

    Example:
        >>> place_of_expert("model.layers.3.mlp.experts.7.up_proj.weight")
        ('model.layers.3.mlp.experts.up_proj.weight', 7)
    """
    found = _EXPERT.match(name)
    return (f"{found[1]}.{found[3]}", int(found[2])) if found else None
