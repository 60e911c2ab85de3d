"""Degrees of parallelism, as people write them: `pp16,ep16` or `tp32,dp8`.

Turns a `Model` into `TensorSpec`s. Pipeline stages hold runs of layers on ranks of their own;
inside a stage, `stage_layouts` says who holds what.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reshard.errors import LayoutError
from reshard.stage_layouts import Degrees, StageLayouts
from reshard.suggestion import did_you_mean
from reshard.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from reshard.model import Model
    from reshard.sharding_rules import Layer

__all__ = ["Parallelism"]

_KINDS: Final = {
    "pp": "pipeline stages",
    "tp": "tensor parallelism",
    "ep": "expert parallelism",
    "cp": "context parallelism, replicates",
    "fsdp": "fully sharded data parallelism, cuts dim 0",
    "dp": "data parallelism, replicates",
}
# Specs hold rank numbers one by one; more ranks than this are a slip of the pen.
_MAX_RANKS: Final = 1 << 20
_ITEM: Final = re.compile(r"([a-z]+)([0-9]{1,9})(?::([0-9]{1,9}(?:\+[0-9]{1,9})*))?")


@dataclass(frozen=True, slots=True, init=False)
class Parallelism:
    """How many ranks share a model, and how.

    Each pipeline stage has dp x fsdp x cp x tp ranks, the last of these varying fastest. Its dense
    parameters lie on a mesh of these axes; its experts on one of (edp, ep) over the same ranks,
    ep varying fastest, if ep is above 1, and else as dense ones.

    Args:
        pp: pipeline stages; stage 0 has the lowest ranks.
        tp: tensor parallelism. More ranks than kv heads share a head between them.
        ep: expert parallelism; it must divide the ranks of a stage.
        cp: context parallelism; replicates parameters.
        fsdp: cuts dim 0 of everything, after tp or ep; together with dp that is HSDP. Experts are
            cut over all ranks of a replica that hold the same experts, as torchtitan does.
        dp: data parallelism; replicates. None is the least that makes ep divide a stage, or what
            follows from `world`.
        world: number of all ranks; None is what follows from the degrees.
        pp_layers: layers per stage; empty follows the model, as published or balanced.

    Raises:
        LayoutError: if the degrees do not fit each other; says which would.

    Dims that do not divide are cut as torch does (`chunk`: the last ranks have less), except whole
    experts over ep, where the first ranks have one more (`balanced`), as vLLM does: `chunk` would
    leave ranks without an expert while others have several.

    Example:
        >>> Parallelism.parse("pp16,ep16")
        Parallelism(pp=16, tp=1, ep=16, cp=1, fsdp=1, dp=16, pp_layers=())
        >>> Parallelism.parse("pp16,ep16").num_ranks
        256
    """

    pp: int
    tp: int
    ep: int
    cp: int
    fsdp: int
    dp: int
    pp_layers: tuple[int, ...]

    def __init__(
        self,
        pp: int = 1,
        tp: int = 1,
        ep: int = 1,
        cp: int = 1,
        fsdp: int = 1,
        dp: int | None = None,
        pp_layers: tuple[int, ...] = (),
        *,
        world: int | None = None,
    ) -> None:
        given = {"pp": pp, "tp": tp, "ep": ep, "cp": cp, "fsdp": fsdp, "dp": dp, "world": world}
        for name, value in given.items():
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_number and not (value is None and name in ("dp", "world")):
                raise LayoutError(f"parallelism: {name}={value!r} is not a whole number above 0.")
            if name != "world":
                object.__setattr__(self, name, value)
        object.__setattr__(self, "pp_layers", tuple(pp_layers))
        if dp is None:
            object.__setattr__(self, "dp", self._implied_dp() if world is None else 1)
            if world is not None:
                object.__setattr__(self, "dp", max(1, world // self.num_ranks))
        self._check(world)

    def _implied_dp(self) -> int:
        """Returns the least dp with which ep divides the ranks of a stage."""
        return self.ep // math.gcd(self.ep, self.fsdp * self.cp * self.tp)

    def _check(self, world: int | None) -> None:
        if self.num_ranks > _MAX_RANKS:
            raise LayoutError(
                f"parallelism {self._text()}: {self.num_ranks} ranks are more than {_MAX_RANKS}. "
                "Give smaller degrees."
            )
        if world is not None and self.num_ranks != world:
            raise LayoutError(
                f"parallelism {self._text()}: these degrees make {self.num_ranks} ranks, or a "
                f"multiple of {self.num_ranks // self.dp} with another dp, not world={world}. "
                "Change a degree, or leave out dp or world."
            )
        if self.ranks_per_stage % self.ep:
            raise LayoutError(
                f"parallelism {self._text()}: ep={self.ep} does not divide the "
                f"{self.ranks_per_stage} ranks of a stage (dp x fsdp x cp x tp). Give dp as a "
                f"multiple of {self._implied_dp()}, or leave it out."
            )
        inner = self.fsdp * self.cp * self.tp
        if self.fsdp > 1 and inner % self.ep and self.ep % inner:
            fitting = [
                ep
                for ep in range(1, self.ranks_per_stage + 1)
                if not self.ranks_per_stage % ep and not (inner % ep and ep % inner)
            ]
            raise LayoutError(
                f"parallelism {self._text()}: ep={self.ep} covers {inner} ranks of a replica "
                f"(fsdp x cp x tp) neither evenly nor wholly. With these degrees ep may be "
                f"{', '.join(map(str, fitting))}."
            )
        if not all(type(n) is int and n >= 0 for n in self.pp_layers):
            raise LayoutError(
                f"parallelism: pp_layers={self.pp_layers!r} are not whole numbers from 0."
            )
        if self.pp_layers and len(self.pp_layers) != self.pp:
            raise LayoutError(
                f"parallelism {self._text()}: pp={self.pp} stages but layers for "
                f"{len(self.pp_layers)}: {self.pp_layers}. Give one number per stage."
            )

    @classmethod
    def parse(cls, text: str, *, world: int | None = None) -> Parallelism:
        """Returns the parallelism that a text such as `pp16,ep16` stands for.

        Args:
            text: degrees, each a kind and a number, joined by commas, in any order: pp, dp, fsdp,
                cp, tp, ep, and world for the number of all ranks. Layers per stage follow pp as in
                `pp2:11+9`.
            world: number of all ranks, where the text does not say it.

        Raises:
            LayoutError: if the text is no such list, or the degrees do not fit each other.
        """
        degrees: dict[str, int] = {}
        layers: tuple[int, ...] = ()
        for item in str(text).split(","):
            found = _read_degree(item.strip())
            if not found:
                raise LayoutError(
                    f"parallelism {text!r}: {item.strip()!r} is no degree."
                    f"{_meant(item.strip())} Give a kind and a number, joined by commas, as in "
                    "'pp4,tp8,dp2'; kinds are "
                    f"{', '.join(f'{name} ({what})' for name, what in _KINDS.items())} and world "
                    "(all ranks)."
                )
            kind = found[1]
            if kind in degrees:
                raise LayoutError(f"parallelism {text!r}: {kind} is given twice.")
            degrees[kind] = int(found[2])
            layers = tuple(map(int, found[3].split("+"))) if found[3] else layers
        if world is not None and degrees.setdefault("world", world) != world:
            raise LayoutError(
                f"parallelism {text!r}: says world{degrees['world']}, but world={world} was given "
                "beside it. Leave out one."
            )
        return cls(**degrees, pp_layers=layers)

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.dp * self.fsdp * self.cp * self.tp

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.pp * self.ranks_per_stage

    def layers_per_stage(self, model: Model) -> tuple[int, ...]:
        """Returns how many layers of a model each stage has."""
        return self.pp_layers or model.layers_per_stage(self.pp)

    def specs(self, model: Model, first_rank: int = 0) -> list[TensorSpec]:
        """Returns the specs of all parameters of a model, in its order.

        Parameters that are cut alike on the same ranks share one `Layout` object.

        Args:
            model: whose parameters.
            first_rank: the lowest rank; the others follow without gaps.

        Raises:
            LayoutError: if stages and layers, or tp and kv heads, do not fit; if the model is none.
        """
        from reshard.model import Model  # which parses parallelisms itself

        given: object = model
        if not isinstance(given, Model):
            raise LayoutError(
                f"parallelism {self}: specs of {given!r:.60}, which is no Model. Give one, such as "
                "Model.load('qwen3-235b')."
            )
        stage_of_layer = model.stage_of_layers(self.layers_per_stage(model))
        degrees = Degrees(dp=self.dp, fsdp=self.fsdp, cp=self.cp, tp=self.tp, ep=self.ep)
        size = self.ranks_per_stage
        stages = [StageLayouts(degrees, first_rank + stage * size) for stage in range(self.pp)]

        def stage_of(layer: Layer) -> StageLayouts:
            if isinstance(layer, int):
                return stages[stage_of_layer[layer]]
            return stages[0] if layer == "first" else stages[-1]

        return [
            TensorSpec(
                parameter.name,
                parameter.shape,
                parameter.dtype,
                stage_of(parameter.layer).layout(parameter),
            )
            for parameter in model.parameters
        ]

    def _text(self) -> str:
        """Returns the degrees above 1; dp where it does not follow from the others."""
        shown = {kind: getattr(self, kind) for kind in _KINDS}
        if self.dp == self._implied_dp():
            del shown["dp"]
        items = [f"{kind}{degree}" for kind, degree in shown.items() if degree > 1]
        if self.pp_layers:
            layers = "+".join(map(str, self.pp_layers))
            items = [f"pp{self.pp}:{layers}", *items[self.pp > 1 :]]
        return ",".join(items) or "dp1"

    def __str__(self) -> str:
        return self._text()


def _read_degree(text: str) -> re.Match[str] | None:
    """Returns kind, number and layers per stage of a degree, or None if the text is none."""
    found = _ITEM.fullmatch(text)
    is_one = found and found[1] in {*_KINDS, "world"} and (found[1] == "pp" or not found[3])
    return found if is_one else None


def _meant(text: str) -> str:
    """Returns what to write instead of a text that is no degree, as far as it can be guessed."""
    plain = re.sub(r"[\s=_-]", "", text.lower())
    if plain in {*_KINDS, "world"}:
        return f" Its number is missing, as in '{plain}2'."
    if _read_degree(plain):
        return f" Did you mean {plain!r}?"
    return did_you_mean(plain.rstrip("0123456789"), _KINDS)
