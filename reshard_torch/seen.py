"""A tensor as it was when it was read, to tell cheaply that nothing about it changed."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from reshard_torch.compat import raw_local, spec_of

__all__ = ["SeenTensor", "first_of"]


def first_of(given: Any) -> torch.Tensor:  # noqa: ANN401 - what `SeenTensor` was made of
    """Returns the tensor of what a user gave under one name: itself, or the first of a tuple."""
    tensor: torch.Tensor = given[0] if isinstance(given, tuple) else given
    return tensor


class SeenTensor:
    """What a reader saw under one name. Keeps neither the tensor nor its memory alive."""

    __slots__ = (
        *("_address", "_dtype", "_lazy", "_local", "_name", "_rest", "_shape", "_spec"),
        *("_stride", "_tensor"),
    )

    def __init__(self, name: str, given: object) -> None:
        tensor = first_of(given)
        local = raw_local(tensor)
        # A tensor of a class of its own (an unfinished collective) is never taken for the same, nor
        # is one without an address and strides (sparse), which is refused when it is to be moved.
        is_plain = type(local) in (torch.Tensor, torch.nn.Parameter)
        is_plain = is_plain and local.layout is torch.strided
        self._name = name if is_plain else None
        self._tensor = weakref.ref(tensor)
        self._local = weakref.ref(local)
        self._spec = spec_of(tensor)
        self._rest = given[1:] if isinstance(given, tuple) else None
        self._address = local.data_ptr() if is_plain else 0
        self._dtype = local.dtype
        self._shape = local.shape
        self._stride = local.stride() if is_plain else ()
        self._lazy = (local.is_conj(), local.is_neg()) if is_plain else (False, False)

    def is_same(self, name: str, given: object) -> bool:
        """True if the name stands for the same tensor, placed alike, in the same memory."""
        if isinstance(given, tuple):
            tensor, rest = given[0], given[1:]
        else:
            tensor, rest = given, None
        seen = self._tensor()
        if seen is None or tensor is not seen or name != self._name or rest != self._rest:
            return False
        local = raw_local(seen)
        return (
            local is self._local()
            and spec_of(seen) is self._spec
            and local.data_ptr() == self._address
            and local.dtype == self._dtype
            and local.shape == self._shape
            and local.stride() == self._stride
            and (local.is_conj(), local.is_neg()) == self._lazy
        )
