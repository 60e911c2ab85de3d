"""Arguments that several commands share, and the plan that they describe."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

from reshard.dtypes import DType
from reshard.errors import LayoutError
from reshard.json_file import MAX_JSON_BYTES
from reshard.model import Model
from reshard.parallelism import Parallelism
from reshard.parameter import Parameter
from reshard.plan import Plan, make_plan
from reshard.schedule import DEFAULT_STAGING_BYTES
from reshard.suggestion import did_you_mean
from reshard.tensor_spec import TensorSpec
from reshard.topology import Topology

__all__ = [
    "Request",
    "Sides",
    "add_json_argument",
    "add_plan_arguments",
    "read_bytes",
    "read_request",
    "read_topology",
]

_UNITS: Final = {"": 1, "b": 1, **{f"{p}ib": 1 << 10 * n for n, p in enumerate("kmgt", 1)}}
_DECIMAL: Final = {f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}
_LEAST_BYTES_PER_SECOND: Final = 1e6
"""No link of a cluster is slower; rates below are of another unit."""

_TOPOLOGIES: Final = ("dgx-h100", "gb200-nvl72", "gb200-nvl72:N", "one-host", "none")


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="write one JSON document to stdout instead of tables"
    )


_GPU_STAGING_BYTES = 1 << 30


def add_plan_arguments(parser: argparse.ArgumentParser, *, takes_files: bool = False) -> None:
    """Adds what describes a plan.

    Args:
        parser: of the command.
        takes_files: True if the model's place may hold a file of another kind.
    """
    parser.add_argument(
        "model",
        metavar="PLAN_OR_MODEL" if takes_files else "MODEL",
        help="a ready-made model ("
        + ", ".join(Model.names())
        + "), a model's JSON file, or a Hugging Face checkpoint: its folder, index or one file"
        + ("; or a plan's JSON file, together with a second one" if takes_files else ""),
    )
    group = parser.add_argument_group(
        "what moves",
        "Source ranks are numbered from 0, destination ranks follow them.",
    )
    group.add_argument(
        "--from",
        dest="src",
        metavar="DEGREES",
        help="parallelism of the source, such as pp16,ep16; default: the model's published one",
    )
    group.add_argument(
        "--to",
        dest="dst",
        metavar="DEGREES",
        help="parallelism of the destination, such as tp32,dp8; default: as published",
    )
    group.add_argument(
        "--to-model",
        metavar="MODEL",
        help="the destination's parameters, where they differ from the source's",
    )
    group.add_argument(
        "--experts",
        choices=("stacked", "separate"),
        help="how both sides store experts; default: as the model has them",
    )
    group.add_argument(
        "--cast",
        action="append",
        default=[],
        metavar="SRC:DST",
        help="the source stores as SRC what the model has as DST, such as float32:bfloat16, and "
        "the refit converts; may be given several times",
    )
    group.add_argument(
        "--allow-unmatched",
        action="append",
        default=[],
        metavar="PATTERN",
        help="names that may stay without a partner, such as 'model.mtp.*'",
    )
    _add_places(group)


def _add_places(group: argparse._ArgumentGroup) -> None:
    """Adds where both sides are and how much memory they may use."""
    group.add_argument(
        "--colocated", action="store_true", help="both sides are on the same ranks, from 0 on"
    )
    group.add_argument(
        "--topology",
        default="none",
        metavar="WHERE",
        help=f"where ranks are: {', '.join(_TOPOLOGIES)} (N: GPUs used per rack), or a JSON file "
        "as Topology.to_json writes it; default: none, which has no floor",
    )
    group.add_argument(
        "--staging",
        metavar="BYTES",
        help="memory of each rank for chunks under way, such as 256MiB; default: 1GiB with a "
        "topology of GPUs, else 64MiB",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Sides:
    """A model laid out on both sides.

    Attributes:
        model, dst_model: parameters of the source, with its own dtypes, and of the destination.
        src, dst: degrees of both sides.
        is_colocated: True if both sides have the same ranks.
    """

    model: Model
    dst_model: Model
    src: Parallelism
    dst: Parallelism
    is_colocated: bool

    @property
    def num_ranks(self) -> int:
        """Ranks of both sides together."""
        both = self.src.num_ranks, self.dst.num_ranks
        return max(both) if self.is_colocated else sum(both)

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Returns the specs of source and destination."""
        first = 0 if self.is_colocated else self.src.num_ranks
        return self.src.specs(self.model), self.dst.specs(self.dst_model, first_rank=first)

    def scaled_down(self, num_layers: int | None = None) -> Sides:
        """Returns the same with small models that are cut alike."""
        small, dst_small = (
            model.scaled_down(self.src, self.dst, num_layers=num_layers)
            for model in (self.model, self.dst_model)
        )
        return dataclasses.replace(self, model=small, dst_model=dst_small)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What the shared arguments ask for.

    Attributes:
        sides: what moves.
        casts: conversions that are wanted.
        allow_unmatched: patterns of names.
        topology: where ranks are.
        where: as `--topology` names it.
        staging_bytes: budget of each process.
    """

    sides: Sides
    casts: tuple[tuple[DType, DType], ...]
    allow_unmatched: tuple[str, ...]
    topology: Topology | None
    where: str
    staging_bytes: int

    def described(self) -> dict[str, object]:
        """Returns what is planned, as values of a document."""
        sides = self.sides
        return {
            "model": sides.model.name,
            "to_model": sides.dst_model.name,
            "from": str(sides.src),
            "to": str(sides.dst),
            "is_colocated": sides.is_colocated,
            "casts": [f"{src}:{dst}" for src, dst in self.casts],
            "idle_casts": [f"{src}:{dst}" for src, dst in self._idle_casts()],
            "allow_unmatched": list(self.allow_unmatched),
            "topology": self.topology and self.where,
            "staging_bytes": self.staging_bytes,
        }

    def _idle_casts(self) -> list[tuple[DType, DType]]:
        """Returns rules that no tensor needs: the destination has none of their types."""
        stored = {parameter.dtype for parameter in self.sides.dst_model.parameters}
        return [cast for cast in self.casts if cast[1] not in stored]

    def plan(
        self,
        specs: tuple[list[TensorSpec], list[TensorSpec]] | None = None,
        *,
        times_larger: int = 1,
    ) -> Plan:
        """Returns the plan.

        Args:
            specs: what `sides.specs()` gave; None has them made.
            times_larger: as in `make_plan`.

        Raises:
            PlanError: if the sides do not fit. LayoutError: if the degrees do not fit the model.
        """
        src, dst = self.sides.specs() if specs is None else specs
        return make_plan(
            src,
            dst,
            casts=self.casts,
            allow_unmatched=self.allow_unmatched,
            staging_bytes=self.staging_bytes,
            topology=self.topology,
            times_larger=times_larger,
        )


def read_request(arguments: argparse.Namespace) -> Request:
    """Returns what the arguments of `add_plan_arguments` ask for.

    Raises:
        LayoutError: if an argument is not what it should be, or a file cannot be read.
    """
    model = Model.load(arguments.model, experts=arguments.experts)
    dst_model = model
    if arguments.to_model is not None:
        dst_model = Model.load(arguments.to_model, experts=arguments.experts)
    casts = tuple(map(_read_cast, arguments.cast))
    _check_casts(casts)
    sides = Sides(
        _stored_as(model, casts),
        dst_model,
        _parallelism(arguments.src, model.trainer, "--from", model),
        _parallelism(arguments.dst, dst_model.generator, "--to", dst_model),
        arguments.colocated,
    )
    topology = read_topology(arguments.topology, sides.num_ranks)
    return Request(
        sides,
        casts,
        tuple(arguments.allow_unmatched),
        topology,
        arguments.topology,
        _staging_bytes(arguments.staging, topology),
    )


def _staging_bytes(text: str | None, topology: Topology | None) -> int:
    if text is not None:
        return read_bytes(text, "--staging")
    is_of_gpus = topology is not None and topology.name != "one-host"
    return _GPU_STAGING_BYTES if is_of_gpus else DEFAULT_STAGING_BYTES


def _parallelism(text: str | None, published: str | None, option: str, model: Model) -> Parallelism:
    if text is None and published is None:
        raise LayoutError(
            f"model {model.name!r} has no published parallelism. Give {option}, such as "
            f"{option} tp8."
        )
    try:
        return Parallelism.parse(published or "" if text is None else text)
    except LayoutError as error:
        raise LayoutError(f"{option} {text!r}: {error}") from None


def _check_casts(casts: Sequence[tuple[DType, DType]]) -> None:
    """Refuses two rules for one type of the model: a source stores it as one type."""
    for number, (src, dst) in enumerate(casts):
        for other, same in casts[:number]:
            if same == dst and other != src:
                raise LayoutError(
                    f"--cast {other}:{dst} and --cast {src}:{dst}: the source stores what is {dst} "
                    "in the model as one type. Give one of them."
                )


def _read_cast(text: str) -> tuple[DType, DType]:
    src, separator, dst = text.partition(":")
    if not separator:
        raise LayoutError(f"--cast {text}: not two dtypes. Give SRC:DST, such as float32:bfloat16.")
    return DType.of(src), DType.of(dst)


def _stored_as(model: Model, casts: Sequence[tuple[DType, DType]]) -> Model:
    """Returns the model as a source stores it whose types are converted on the way."""
    src_of = {dst: src for src, dst in casts}
    if not src_of:
        return model
    parameters = []
    for parameter in model.parameters:
        fields = {f.name: getattr(parameter, f.name) for f in dataclasses.fields(parameter)}
        fields["dtype"] = src_of.get(parameter.dtype, parameter.dtype)
        parameters.append(Parameter(**fields))
    return dataclasses.replace(model, parameters=tuple(parameters))


def read_bytes(text: str, option: str) -> int:
    """Returns a number of bytes such as `64MiB`, `1GiB`, `500MB` or `4096`.

    Raises:
        LayoutError: if the text is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    factor = (_UNITS | _DECIMAL).get(found[2]) if found else None
    nbytes = Fraction(found[1]) * factor if found and factor else Fraction(0)
    if nbytes < 1 or (factor == 1 and nbytes.denominator != 1):
        raise LayoutError(
            f"{option} {text}: not a number of bytes. Give one such as 64MiB, 1GiB or 4096."
        )
    return int(nbytes)


def read_topology(text: str, num_ranks: int) -> Topology | None:
    """Returns a ready-made topology of so many ranks, or the one in a file; None for `none`.

    Raises:
        LayoutError: if it is neither, or the file places fewer ranks.
    """
    name, _, count = text.partition(":")
    if text == "none":
        return None
    if text == "dgx-h100":
        return Topology.dgx_h100(num_ranks)
    if text == "one-host":
        return Topology.one_host(num_ranks)
    if text == "gb200-nvl72":
        return Topology.gb200_nvl72(num_ranks)
    if name == "gb200-nvl72" and count.isdecimal() and len(count) < 4:
        return Topology.gb200_nvl72(num_ranks, ranks_per_domain=int(count))
    topology = _read_topology_file(text)
    if topology.num_ranks < num_ranks:
        raise LayoutError(
            f"--topology {text}: places {topology.num_ranks} ranks, and both sides together have "
            f"{num_ranks}. Give a file that places all of them, or smaller degrees."
        )
    return topology


def _read_topology_file(text: str) -> Topology:
    path = Path(text)
    try:
        with path.open(encoding="utf-8") as file:
            content = file.read(MAX_JSON_BYTES)
    except FileNotFoundError:
        raise LayoutError(
            f"--topology {text}: no ready-made one and no file.{did_you_mean(text, _TOPOLOGIES)} "
            f"Give one of {', '.join(_TOPOLOGIES)}, or a JSON file as Topology.to_json writes it."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LayoutError(f"--topology {text}: cannot be read, {error}.") from None
    try:
        topology = Topology.from_json(content)
    except LayoutError as error:
        raise LayoutError(f"--topology {text}: {error}") from None
    for name in ("nic_bytes_per_second", "link_bytes_per_second"):
        rate = getattr(topology, name)
        if rate < _LEAST_BYTES_PER_SECOND:
            raise LayoutError(
                f"--topology {text}: {name}={rate!r} is less than a megabyte per second. Give "
                "bytes per second: a card of 400 Gb/s has 50e9."
            )
    return topology
