"""A model as far as moving its weights goes: its parameters, layer by layer, and how they are cut.

The value itself is pure; what reads files is in `model_file` and `checkpoint` and is loaded by
`Model.load` only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, Literal, get_args

from reshard.division import divide
from reshard.errors import LayoutError
from reshard.parameter import Parameter
from reshard.sharding_rules import place_of_expert

if TYPE_CHECKING:
    import os

    from reshard.parallelism import Parallelism

__all__ = ["Experts", "Model"]

Experts = Literal["stacked", "separate"]
"""How the experts of a layer are stored: `(experts, out, in)` tensors, or each as its own."""


# More layers, or experts of one layer, are a slip of the pen.
_MAX_COUNT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Model:
    """The parameters of a model, in order.

    Args:
        name: for people.
        parameters: all of them; every name once.
        num_layers: how many layers the pipeline stages share.
        source: where the shapes are from, for people.
        trainer: the published parallelism of its training, as `Parallelism.parse` reads it; None
            where none is known.
        generator: the same of its inference engine.
        pipeline_splits: published numbers of layers per stage, one tuple per number of stages.
        unknown_names: parameters whose name no sharding rule knows; they are replicated.
        notes: what a reader of the file should know, such as sizes that disagree.

    Raises:
        LayoutError: if these do not fit each other.

    Example:
        >>> model = Model.load("deepseek-v3")
        >>> print(model)
        deepseek-v3: 1025 parameters in 61 layers, 671.0 G elements, 1342.1 GB
    """

    name: str
    parameters: tuple[Parameter, ...]
    num_layers: int
    source: str = ""
    trainer: str | None = None
    generator: str | None = None
    pipeline_splits: tuple[tuple[int, ...], ...] = ()
    unknown_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("parameters", "unknown_names", "notes"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        object.__setattr__(self, "pipeline_splits", tuple(map(tuple, self.pipeline_splits)))
        if type(self.num_layers) is not int or not 0 <= self.num_layers <= _MAX_COUNT:
            raise LayoutError(
                f"model {self.name!r}: num_layers={self.num_layers!r} is not from 0 to "
                f"{_MAX_COUNT}."
            )
        seen: set[str] = set()
        for parameter in self.parameters:
            if parameter.name in seen:
                raise LayoutError(f"model {self.name!r}: parameter {parameter.name} comes twice.")
            seen.add(parameter.name)
            if isinstance(parameter.layer, int) and parameter.layer >= self.num_layers:
                raise LayoutError(
                    f"model {self.name!r}: {parameter.name} is in layer {parameter.layer}, but the "
                    f"model has {self.num_layers} layers, counted from 0."
                )
        for split in self.pipeline_splits:
            self._check_split(split, len(split))

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str], *, experts: Experts | None = None) -> Model:
        """Returns a ready-made model, or one that a file describes.

        Args:
            name_or_path: one of `Model.names()`; a JSON file that `to_json` wrote; a Hugging Face
                checkpoint: its folder, its `model.safetensors.index.json`, or one `.safetensors`
                file. Of checkpoints only headers are read, never weights; where shard files are
                missing, shapes follow from `config.json`.
            experts: how to store experts; None leaves them as the file has them.

        Raises:
            LayoutError: if there is no such model, or the file is not sound; names what is wrong.
            UnsupportedError: for elements smaller than one byte.
        """
        # Reading files needs what planning must not: loaded when it is asked for.
        from reshard.model_reader import read_model

        model = read_model(name_or_path)
        return model if experts is None else model.with_experts(experts)

    @staticmethod
    def names() -> tuple[str, ...]:
        """Returns the names of the ready-made models."""
        from reshard.model_reader import ready_made_names

        return ready_made_names()

    def to_json(self) -> str:
        """Returns the model as JSON that `load` reads from a file; people can read it too."""
        from reshard.model_file import model_to_json

        return model_to_json(self)

    @property
    def num_elements(self) -> int:
        """Elements of one copy of all parameters."""
        return sum(parameter.num_elements for parameter in self.parameters)

    @property
    def nbytes(self) -> int:
        """Bytes of one copy of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)

    def layers_per_stage(self, pp: int) -> tuple[int, ...]:
        """Returns how many layers each of `pp` pipeline stages has.

        As published where the model says it for this number of stages; else balanced: the first
        stages have one layer more where it does not divide.

        Raises:
            LayoutError: if there are more stages than layers.
        """
        for split in self.pipeline_splits:
            if len(split) == pp:
                return split
        if not 1 <= pp <= max(self.num_layers, 1):
            raise LayoutError(
                f"model {self.name!r}: pp={pp} stages for {self.num_layers} layers. Every stage "
                f"needs one: give pp from 1 to {max(self.num_layers, 1)}."
            )
        return tuple(stop - start for start, stop in divide(self.num_layers, pp, "balanced"))

    def stage_of_layers(self, layers_per_stage: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the stage of each layer, given how many layers each stage has.

        Raises:
            LayoutError: if the numbers do not add up to the layers of the model.
        """
        self._check_split(layers_per_stage, len(layers_per_stage))
        return tuple(stage for stage, n in enumerate(layers_per_stage) for _ in range(n))

    def _check_split(self, split: tuple[int, ...], pp: int) -> None:
        if not split or min(split) < 0 or sum(split) != self.num_layers:
            raise LayoutError(
                f"model {self.name!r}: {pp} pipeline stages of {'+'.join(map(str, split))} layers "
                f"are {sum(split)} layers, the model has {self.num_layers}. Give numbers that add "
                "up to it."
            )

    def with_experts(self, experts: Experts) -> Model:
        """Returns the same model with its experts stacked or each a parameter of its own.

        Stacked: `...mlp.experts.up_proj.weight` of shape `(experts, out, in)`. Separate:
        `...mlp.experts.7.up_proj.weight` of shape `(out, in)`, expert by expert, as Hugging Face
        checkpoints have them.

        Raises:
            LayoutError: if `experts` is neither word, or a stack lacks an expert or would have
                experts of different shapes.
        """
        if experts not in get_args(Experts):
            raise LayoutError(
                f"model {self.name!r}: experts={experts!r} is unknown; use one of "
                f"{get_args(Experts)}."
            )
        change = _separated if experts == "separate" else _stacked
        return dataclasses.replace(self, parameters=tuple(change(self.parameters)))

    def scaled_down(self, *sides: Parallelism, num_layers: int | None = None) -> Model:
        """Returns a model of a few MB that is cut as this one is; see `scaled_model`.

        Args:
            sides: every parallelism that the small model will be laid out with.
            num_layers: how many layers to keep, of every kind at least one; None keeps all.

        Raises:
            LayoutError: if a side does not fit the small model, or it has more kinds of layers
                than are to be kept.
        """
        from reshard.scaled_model import scaled_down

        return scaled_down(self, sides, num_layers=num_layers)

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.parameters)} parameters in {self.num_layers} layers, "
            f"{_in_units(self.num_elements, ' elements')}, {_in_units(self.nbytes, 'B')}"
        )


def _in_units(number: int, what: str) -> str:
    """Returns how many there are with a prefix that suits it, giga at most: `671.0 G elements`."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.1f} {prefix}{what}"
    return f"{number} {what.strip()}"


def _separated(parameters: tuple[Parameter, ...]) -> Iterator[Parameter]:
    """Yields every expert on its own; neighbouring stacks of a layer take turns, as modules do."""

    def key(parameter: Parameter) -> object:
        is_stack = parameter.is_expert and parameter.expert is None
        return (parameter.layer, parameter.shape[0]) if is_stack else None

    for kind, group in groupby(parameters, key):
        if kind is None:
            yield from group
            continue
        stacks = list(group)
        if stacks[0].shape[0] > _MAX_COUNT:
            raise LayoutError(
                f"{stacks[0].name}: {stacks[0].shape[0]} experts are more than {_MAX_COUNT}. Keep "
                "them stacked."
            )
        for index in range(stacks[0].shape[0]):
            for stack in stacks:
                before, separator, after = stack.name.rpartition(".experts.")
                if not separator:
                    raise LayoutError(
                        f"{stack.name}: a stack of experts is called '...experts.<what>', so that "
                        "its experts can be called '...experts.<number>.<what>'."
                    )
                yield Parameter(
                    f"{before}.experts.{index}.{after}",
                    stack.shape[1:],
                    stack.dtype,
                    stack.rule,
                    stack.layer,
                    expert=index,
                    num_experts=stack.shape[0],
                )


def _stacked(parameters: tuple[Parameter, ...]) -> Iterator[Parameter]:
    """Yields stacks in place of their first experts."""
    members: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        if parameter.expert is not None:
            members.setdefault(_stack_name(parameter), []).append(parameter)
    for parameter in parameters:
        if parameter.expert is None:
            yield parameter
            continue
        name = _stack_name(parameter)
        if members[name][0] is parameter:
            yield _stack(name, members[name])


def _stack_name(parameter: Parameter) -> str:
    place = place_of_expert(parameter.name)
    if place is None or place[1] != parameter.expert:
        raise LayoutError(
            f"{parameter.name}: expert {parameter.expert} is called '...experts."
            f"{parameter.expert}.<what>' where it is to be stacked."
        )
    return place[0]


def _stack(name: str, members: list[Parameter]) -> Parameter:
    first = members[0]
    known = {member.expert for member in members}
    missing = list(islice((i for i in range(first.num_experts or 0) if i not in known), 5))
    if missing:
        raise LayoutError(
            f"{name}: experts {missing} of {first.num_experts} are missing, so they "
            "cannot be stacked. Load the model with experts='separate', or complete it."
        )
    for member in members:
        if (member.shape, member.dtype, member.layer) != (first.shape, first.dtype, first.layer):
            raise LayoutError(
                f"{member.name}: {member.dtype}{list(member.shape)} in layer {member.layer} cannot "
                f"be stacked with {first.name}: {first.dtype}{list(first.shape)} in layer "
                f"{first.layer}. Load the model with experts='separate'."
            )
    return Parameter(name, (len(members), *first.shape), first.dtype, first.rule, first.layer)
