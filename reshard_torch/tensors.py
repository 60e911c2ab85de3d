"""The tensors of one side by name: specs for the plan, and buffers for every refit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from reshard import (
    AnyLayout,
    Buffer,
    BufferKey,
    Forms,
    Layout,
    LayoutError,
    Mesh,
    Paddings,
    Part,
    TensorSpec,
    UnsupportedError,
    check_forms,
    check_names,
    padding_of,
    parts_of,
)
from reshard_torch.aliases import with_aliases
from reshard_torch.buffers import buffer_of, has_memory
from reshard_torch.compat import (
    local_tensor,
    non_persistent_buffers,
    raw_local,
    unsharded_parameters,
)
from reshard_torch.dtypes import dtype_of
from reshard_torch.layout import LayoutReader, own_boxes
from reshard_torch.placed import Placed, resolve
from reshard_torch.seen import SeenTensor, first_of
from reshard_torch.side import Side

__all__ = ["TensorReader", "TensorSet", "Tensors"]

Tensors = (
    torch.nn.Module
    | Mapping[
        str,
        torch.Tensor
        | tuple[torch.Tensor, AnyLayout]
        | tuple[torch.Tensor, AnyLayout, tuple[int, ...] | None],
    ]
)
"""A module, or name -> tensor, DTensor, or (tensor, layout[, global shape])."""

# What torch.compile and activation checkpointing put into the names of what they wrap.
_WRAPPER_NAMES = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True, slots=True)
class TensorSet:
    """Tensors as they were when read.

    Attributes:
        rank: of this process, on its side.
        specs: what each stored tensor is; the same object as long as nothing but addresses changes.
        tensors: stored name -> the tensor; further names of the same memory are left out. They
            keep the memory of the buffers alive.
    """

    rank: int
    specs: tuple[TensorSpec, ...]
    tensors: Mapping[str, torch.Tensor]
    _buffers: dict[BufferKey, Buffer]

    def buffers(self) -> Mapping[BufferKey, Buffer]:
        """Returns where the tensors are now; the same objects as long as nothing moves.

        They have no owners, so between refits nothing here keeps replaced memory alive.

        Raises:
            LayoutError, UnsupportedError: naming a tensor without usable memory.
        """
        if not self._buffers:
            for name, tensor in self.tensors.items():
                buffer = replace(buffer_of(tensor, name), owner=None)
                self._buffers[self.rank, name] = buffer
        return self._buffers

    def mark_written(self) -> None:
        """Tells autograd that the memory of all tensors changed, as an in-place operation would."""
        tensors = self.tensors.values()
        torch.autograd.graph.increment_version([*tensors, *map(raw_local, tensors)])

    def check_unmoved(self) -> None:
        """Checks that the tensors are still where the buffers say.

        Raises:
            LayoutError: naming a tensor that got other memory meanwhile.
        """
        before = [buffer.address for buffer in self._buffers.values()]
        now = [raw_local(tensor).data_ptr() for tensor in self.tensors.values()]
        if now == before:
            return
        for (_, name), address in zip(self._buffers, now, strict=True):
            buffer = self._buffers[self.rank, name]
            if not buffer.is_empty and address != buffer.address:
                raise LayoutError(
                    f"{name}: its memory moved from {buffer.address:#x} to {address:#x} during the "
                    "refit, so it does not hold what arrived. Leave the tensors alone while a "
                    "refit runs."
                )


class TensorReader:
    """Reads the tensors of a module or mapping, again for every refit.

    Args:
        side: the rank of this process.
        forms: canonical tensors in each stored tensor.
        buffers: of a module, take its persistent buffers too: all tensors that `state_dict` has.
        padding: per stored name, or for all, what elements are that no canonical tensor covers.
    """

    def __init__(
        self,
        side: Side,
        *,
        forms: Forms | None = None,
        buffers: bool = True,
        padding: Paddings = "refuse",
    ) -> None:
        self._side = side
        self._forms = forms
        self._takes_buffers = buffers
        self._padding = padding
        self._reader = LayoutReader(side.rank_of, side.num_ranks)
        self._whole = Layout.replicated(Mesh(("replica",), (side.num_ranks,)))
        self._metadata: dict[str, _Metadata] = {}
        self._specs: tuple[TensorSpec, ...] = ()
        self._seen: list[SeenTensor] = []
        self._stored_names: tuple[str, ...] = ()
        self._buffers: dict[BufferKey, Buffer] = {}

    def read(self, tensors: Tensors) -> TensorSet:
        """Returns the tensors as they are now; specs are made anew only if metadata changed.

        A plain tensor is taken to be replicated over the ranks that have it. Names of one storage
        (tied weights) become aliases of the first of them.

        Raises:
            LayoutError, UnsupportedError: naming the tensor that cannot be described.
        """
        named = dict(_named(tensors, self._takes_buffers))
        if len(named) == len(self._seen) and all(
            seen.is_same(name, given)
            for seen, (name, given) in zip(self._seen, named.items(), strict=True)
        ):
            stored = {name: first_of(named[name]) for name in self._stored_names}
            return TensorSet(self._side.rank, self._specs, stored, self._buffers)
        return self._read_anew(named)

    def _read_anew(self, named: Mapping[str, object]) -> TensorSet:
        for name in named:
            if not isinstance(name, str):
                raise LayoutError(f"{name!r} is no name of a tensor: names are texts.")
        entries = {name: self._entry(name, given) for name, given in named.items()}
        first_names = _first_names(entries)
        metadata = {
            name: _Metadata(entry.shape, entry.local.dtype, entry.layout, first_names[name])
            for name, entry in entries.items()
        }
        if metadata != self._metadata:
            self._specs = self._make_specs(metadata)
            self._metadata = metadata
        stored = {name: entries[name].tensor for name in first_names if first_names[name] == name}
        rank = self._side.rank
        self._seen = []
        self._buffers = {}
        self._stored_names = tuple(stored)
        self._seen = [SeenTensor(name, given) for name, given in named.items()]
        return TensorSet(rank, self._specs, stored, self._buffers)

    def _entry(self, name: str, given: object) -> _Entry:
        rank = self._side.rank
        if isinstance(given, DTensor):
            shape, layout = self._reader.read(name, given)
            return _Entry(given, local_tensor(given), shape, layout)
        if isinstance(given, torch.Tensor):
            local = local_tensor(given)
            shape = tuple(local.shape)
            is_alone = self._side.num_ranks == 1
            whole = self._whole if is_alone else own_boxes(self._whole, rank, shape)
            return _Entry(given, local, shape, whole)
        if isinstance(given, tuple) and len(given) in (2, 3):
            placed = Placed(*given)
            if not _is_placed(*given):
                kinds = ", ".join(type(each).__name__ for each in given)
                raise LayoutError(
                    f"{name}: ({kinds}) is not (tensor, layout) or (tensor, layout, global shape), "
                    "where the layout is a reshard.Layout, BoxLayout or SegmentedLayout."
                )
            shape = resolve(name, placed, rank)
            return _Entry(placed.tensor, local_tensor(placed.tensor), shape, placed.layout)
        raise LayoutError(
            f"{name}: {type(given).__name__} is not a tensor, nor (tensor, layout) or (tensor, "
            "layout, global shape)."
        )

    def _make_specs(self, metadata: Mapping[str, _Metadata]) -> tuple[TensorSpec, ...]:
        check_forms(self._forms, metadata)
        check_names("padding", self._padding, metadata)
        parts: dict[str, tuple[Part, ...]] = {}
        for name, (shape, _, _, first) in metadata.items():
            own = parts_of(self._forms, name, shape)
            parts[first] = with_aliases(first, parts[first], name, own) if first in parts else own
        specs = []
        for name, stored_parts in parts.items():
            shape, torch_dtype, layout, _ = metadata[name]
            try:
                dtype = dtype_of(torch_dtype)
            except UnsupportedError as error:
                raise UnsupportedError(f"{name}: {error}") from None
            specs.append(
                TensorSpec(
                    name, shape, dtype, layout, stored_parts, padding_of(self._padding, name)
                )
            )
        return tuple(specs)


def _is_placed(tensor: object, layout: object, shape: object = None) -> bool:
    are_lengths = shape is None or isinstance(shape, Sequence)
    return isinstance(tensor, torch.Tensor) and hasattr(layout, "local_boxes") and are_lengths


class _Entry(NamedTuple):
    tensor: torch.Tensor
    local: torch.Tensor
    shape: tuple[int, ...]
    layout: AnyLayout


class _Metadata(NamedTuple):
    """What a plan depends on; neither address nor strides are in it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: AnyLayout
    first_name: str


def _named(tensors: Tensors, takes_buffers: bool) -> Iterator[tuple[str, object]]:
    if isinstance(tensors, DistributedDataParallel):
        tensors = tensors.module
    if not isinstance(tensors, torch.nn.Module):
        _check_mapping(tensors)
        yield from tensors.items()
        return
    for gathered in unsharded_parameters(tensors):
        raise LayoutError(
            f"{gathered}: FSDP holds its parameters gathered, as after a forward pass, so they are "
            "not in their sharded layout. Call module.reshard() on it first."
        )
    for name, parameter in tensors.named_parameters(remove_duplicate=False):
        if name.endswith("_flat_param"):
            raise UnsupportedError(
                f"{name}: FullyShardedDataParallel flattens parameters, and does not tell where "
                "each of them lies. Use torch.distributed.fsdp.fully_shard (FSDP2)."
            )
        yield _without_wrappers(name), parameter
    if takes_buffers:
        for prefix, module in tensors.named_modules(remove_duplicate=False):
            hidden = non_persistent_buffers(module)
            for name, buffer in module.named_buffers(prefix, recurse=False, remove_duplicate=False):
                if name.rpartition(".")[2] not in hidden:
                    yield _without_wrappers(name), buffer


def _check_mapping(tensors: object) -> None:
    if not isinstance(tensors, Mapping):
        raise LayoutError(
            f"tensors of type {type(tensors).__name__}: give a module, or a mapping of names to "
            "tensors, such as dict(module.named_parameters())."
        )


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPER_NAMES:
        name = name.replace(wrapper, "")
    return name


def _first_names(entries: Mapping[str, _Entry]) -> dict[str, str]:
    """Returns, for each name, the first name of the same memory."""
    first: dict[object, str] = {}
    names = {}
    for name, (tensor, local, shape, layout) in entries.items():
        where: object = id(tensor)
        if has_memory(local):
            where = local.data_ptr(), tuple(local.stride()), local.dtype, tuple(local.shape)
        names[name] = first.setdefault((where, shape, layout), name)
    return names
