"""Element types of JAX arrays as element types of reshard."""

from __future__ import annotations

import numpy as np

from reshard import DType, LayoutError, UnsupportedError
from reshard_jax.compat import narrowed

__all__ = ["check_not_narrowed", "dtype_of"]


def dtype_of(name: str, dtype: np.dtype) -> DType:
    """Returns the element type of the leaf `name`.

    Raises:
        UnsupportedError: for elements of less than one byte (int4, float4, ...) and unknown types.
    """
    try:
        return DType.of(dtype.name)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from None


def check_not_narrowed(name: str, dtype: np.dtype) -> None:
    """Checks that JAX can hold arrays of this type as they are.

    Raises:
        LayoutError: for 64-bit types while x64 is off; JAX would cut them to 32 bits in silence.
    """
    if narrowed(dtype) != dtype:
        raise LayoutError(
            f"{name}: JAX would narrow {dtype} to {narrowed(dtype)}, because 64-bit types are off. "
            "Set JAX_ENABLE_X64=1 or jax.config.update('jax_enable_x64', True) before the first "
            "array is made, or ask for a 32-bit type in the template."
        )
