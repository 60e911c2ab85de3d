"""One parameter of a model: what it is called, how large it is, and how parallelism cuts it.

Nothing here says on which ranks it lies; `parallelism` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from reshard.box import whole_numbers
from reshard.dtypes import DType, DTypeLike
from reshard.errors import LayoutError
from reshard.sharding_rules import Layer, Rule

__all__ = ["Parameter"]

# The fewest dims that a rule needs; experts one by one have one dim less.
_LEAST_DIMS = {"column": 1, "row": 2, "kv": 1, "vocab": 1, "expert_column": 3, "expert_row": 3}


@dataclass(frozen=True, slots=True, init=False)
class Parameter:
    """A parameter of a model, under its canonical (Hugging Face) name.

    Args:
        name: canonical name.
        shape: in elements; stacked experts are `(experts, out, in)`.
        dtype: element type; all that `DType.of` knows.
        rule: what tensor and expert parallelism do to it.
        layer: its layer, or `"first"` or `"last"` for the stage that holds what lies outside.
        num_kv_heads: heads along dim 0, for the rule `kv`; None where nobody knows.
        expert: its index, for an expert that is a parameter of its own; None for a stack.
        num_experts: of its layer, together with `expert`.

    Raises:
        LayoutError: if these do not fit each other.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    rule: Rule
    layer: Layer
    num_kv_heads: int | None
    expert: int | None
    num_experts: int | None

    def __init__(
        self,
        name: str,
        shape: Iterable[int],
        dtype: DTypeLike,
        rule: Rule,
        layer: Layer,
        num_kv_heads: int | None = None,
        expert: int | None = None,
        num_experts: int | None = None,
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", _read_shape(name, shape))
        object.__setattr__(self, "dtype", DType.of(dtype))
        for field, value in (
            ("rule", rule),
            ("layer", layer),
            ("num_kv_heads", num_kv_heads),
            ("expert", expert),
            ("num_experts", num_experts),
        ):
            object.__setattr__(self, field, value)
        self._check()

    def _check(self) -> None:
        if self.rule not in get_args(Rule):
            raise LayoutError(
                f"{self.name}: rule {self.rule!r} is unknown; use one of {get_args(Rule)}."
            )
        if not (self.layer in ("first", "last") or _is_count(self.layer)):
            raise LayoutError(
                f"{self.name}: layer {self.layer!r} is no layer. Give a number from 0, 'first' or "
                "'last'."
            )
        self._check_experts()
        least = _LEAST_DIMS.get(self.rule, 0) - (self.expert is not None)
        if len(self.shape) < least:
            raise LayoutError(
                f"{self.name}: rule {self.rule!r} needs {least} dims or more, its shape is "
                f"{self.shape}. Give another rule, such as 'replicated'."
            )
        heads = self.num_kv_heads
        if heads is not None and not (
            _is_count(heads) and heads and self.rule == "kv" and self.shape[0] % heads == 0
        ):
            raise LayoutError(
                f"{self.name}: {heads!r} kv heads do not fit rule {self.rule!r} and shape "
                f"{self.shape}. They must divide dim 0 of a parameter of rule 'kv'."
            )

    def _check_experts(self) -> None:
        if self.expert is None and self.num_experts is None:
            return
        fits = _is_count(self.expert) and _is_count(self.num_experts) and self.is_expert
        if not fits or not (self.expert or 0) < (self.num_experts or 0):
            raise LayoutError(
                f"{self.name}: expert {self.expert!r} of {self.num_experts!r} with rule "
                f"{self.rule!r}. Give an index below the number of experts, both for rules "
                "'expert_column' and 'expert_row' only, or neither for a stack."
            )

    @property
    def is_expert(self) -> bool:
        """True for an expert of a mixture, or a stack of all of a layer."""
        return self.rule in ("expert_column", "expert_row")

    @property
    def num_elements(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return self.num_elements * self.dtype.itemsize


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def _read_shape(name: object, given: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(name, str) or not name:
        raise LayoutError(
            f"parameter name {name!r} is no text. Names are such as 'lm_head.weight'."
        )
    try:
        shape = whole_numbers(given)
    except TypeError:
        shape = (-1,)
    if min(shape, default=0) < 0:
        raise LayoutError(
            f"{name}: its shape is {given!r}. Give the number of elements along each dim, such as "
            "(4, 6)."
        )
    return shape
