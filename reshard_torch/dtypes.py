"""Element types: torch's and ours have the same names, so one is looked up by the other's."""

from __future__ import annotations

import torch

from reshard import DType, UnsupportedError

__all__ = ["dtype_of", "torch_dtype_of"]


def dtype_of(torch_dtype: torch.dtype) -> DType:
    """Returns the element type of a torch dtype.

    Raises:
        UnsupportedError: for quantised types, complex32, bits8, bits16, and types of less than one
            byte.
    """
    return DType.of(str(torch_dtype))


def torch_dtype_of(dtype: DType) -> torch.dtype:
    """Returns the torch dtype of an element type.

    Raises:
        UnsupportedError: if this version of torch has no such type.
    """
    found = getattr(torch, str(dtype), None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(
            f"torch {torch.__version__} has no dtype {dtype}. View the tensor as uint8 on both "
            "sides, or cast on the side that has the type."
        )
    return found
