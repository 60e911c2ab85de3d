"""Run a plan for all ranks in one process, on NumPy arrays: to try layouts, and for tests.

The same tables and the same native code as in a refit, with every rank local. NumPy is loaded by
the first call, so that the names of this module are there without it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import ItemsView, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from reshard.buffers import Buffer, BufferKey, check_apart, check_buffers
from reshard.dtypes import DType
from reshard.errors import LayoutError, TransferTimeout, UnsupportedError
from reshard.explanation import ranks_text
from reshard.plan import Plan
from reshard.program_table import make_program_tables
from reshard.tensor_spec import TensorSpec

__all__ = ["buffer_of_array", "local_array", "numpy_dtype", "run_in_process"]

if TYPE_CHECKING:
    import numpy as np

Arrays: TypeAlias = "Mapping[int, Mapping[str, np.ndarray | None]]"
"""Local arrays per rank and stored name; None, as from `local_array`, is the same as no entry."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_NUMPY_NAMES = {DType.BOOL: "bool", **{d: str(d) for d in DType if 1 <= d <= 14 and d != 10}}


def numpy_dtype(dtype: DType) -> np.dtype:
    """Returns the NumPy type of an element type.

    Raises:
        UnsupportedError: for bfloat16 and float8 types if `ml_dtypes` is not installed.
    """
    _require_numpy("numpy_dtype")
    import numpy as np

    name = _NUMPY_NAMES.get(dtype)
    if name is not None:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise UnsupportedError(
            f"NumPy by itself has no {dtype}. Install what adds it: pip install ml_dtypes."
        ) from error
    found: np.dtype = np.dtype(getattr(ml_dtypes, str(dtype)))
    return found


def _require_numpy(function: str) -> None:
    try:
        import numpy  # noqa: F401 (only whether it is there)
    except ImportError as error:
        raise ImportError(
            f"reshard.{function} works on NumPy arrays, and NumPy is not installed. Install it: "
            "pip install numpy. The rest of reshard does not need it.",
            name="numpy",
        ) from error


def buffer_of_array(array_: np.ndarray) -> Buffer:
    """Returns the buffer of a NumPy array, which stays its owner. Any strides are allowed."""
    return Buffer(
        array_.__array_interface__["data"][0],
        array_.shape,
        array_.strides,
        DType.of(array_.dtype),
        array_.flags.writeable,
        array_,
    )


def run_in_process(
    plan: Plan,
    sources: Arrays,
    destinations: Arrays | None = None,
    *,
    chunk_bytes: int = 1 << 18,
    timeout_s: float = 600.0,
) -> dict[int, dict[str, np.ndarray]]:
    """Executes a plan for all of its ranks in this process.

    Args:
        plan: from `make_plan`.
        sources: per source rank, per stored name, the rank's local array (any strides), as from
            `local_array`. None is the same as no entry: a rank outside the layout stores nothing.
        destinations: arrays to write into, in the same form; None makes new ones, zero-filled.
        chunk_bytes: size of a message, 16 to 2**30; results do not depend on it.
        timeout_s: limit for the whole run.

    Returns:
        Per destination rank, per stored name, the local array.

    Raises:
        LayoutError: if an array does not fit the layout that its spec declares, is of a rank that
            its side of the plan has not, or the arrays are not given per rank and name.
        ImportError: if NumPy is not installed.

    Example:
        >>> import numpy as np
        >>> from reshard import Layout, Mesh, Shard, TensorSpec, make_plan, run_in_process
        >>> rows = TensorSpec("w", (2, 4), "int32", Layout(Mesh.of(fsdp=2), (Shard(0),)))
        >>> columns = TensorSpec("w", (2, 4), "int32", Layout(Mesh.of(tp=2), (Shard(1),)))
        >>> plan = make_plan([rows], [columns.shifted(2)])
        >>> w = np.arange(8, dtype=np.int32).reshape(2, 4)
        >>> run_in_process(plan, {0: {"w": w[:1]}, 1: {"w": w[1:]}})[3]["w"].tolist()
        [[2, 3], [6, 7]]
    """
    _require_numpy("run_in_process")
    from reshard._native import Program

    src_specs = list({id(pair.src): pair.src for pair in plan.pairs}.values())
    dst_specs = list({id(pair.dst): pair.dst for pair in plan.pairs}.values())
    if destinations is None:
        destinations = _new_arrays(dst_specs, plan.dst_ranks)
    src_buffers = _buffers("sources", sources, plan.src_ranks)
    dst_buffers = _buffers("destinations", destinations, plan.dst_ranks)
    check_buffers(src_specs, list(plan.src_ranks), src_buffers, writes=False)
    check_buffers(dst_specs, list(plan.dst_ranks), dst_buffers, writes=True)
    check_apart(src_buffers, dst_buffers)
    deadline = time.monotonic() + timeout_s
    for hop in range(plan.num_hops):
        tables = make_program_tables(plan, plan.ranks, src_buffers, dst_buffers, hop)
        sides = src_buffers, dst_buffers
        program = Program(
            tables.streams,
            tables.operations,
            tables.zeros,
            tables.extents,
            len(tables.endpoints),
            chunk_bytes,
            rules=tables.rules,
            changes=tables.changes,
        )
        addresses = array("Q", [sides[e.side][e.rank, e.name].address for e in tables.endpoints])
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TransferTimeout(f"the run took longer than {timeout_s} s; hop {hop} is left.")
        program.run(None, addresses, run_id=1 + hop, timeout_s=remaining_s)
        program.close()
    return {
        rank: {name: array_ for name, array_ in by_name.items() if array_ is not None}
        for rank, by_name in destinations.items()
    }


def _buffers(argument: str, arrays: Arrays, ranks: tuple[int, ...]) -> dict[BufferKey, Buffer]:
    buffers: dict[BufferKey, Buffer] = {}
    known = frozenset(ranks)
    for rank, by_name in _items(argument, arrays):
        for name, array_ in _items(f"{argument}[{rank!r}]", by_name):
            if array_ is not None:
                _check_array(f"{argument}[{rank!r}][{name!r}]", array_)
                if rank not in known:
                    raise LayoutError(
                        f"{argument}[{rank!r}]: the plan has no such rank on this side, where it "
                        f"has {ranks_text(ranks)}. Give arrays of these alone; specs that were "
                        "shifted have other ranks than before."
                    )
                buffers[rank, name] = buffer_of_array(array_)
    return buffers


def _items(where: str, given: Mapping[_Key, _Value]) -> ItemsView[_Key, _Value]:
    kind: object = given
    if not isinstance(kind, Mapping):
        raise LayoutError(f"{where} is of type {type(kind).__name__}. {_HOW_TO_GIVE_ARRAYS}")
    return given.items()


def _check_array(where: str, given: object) -> None:
    if not hasattr(given, "__array_interface__"):
        raise LayoutError(f"{where} is of type {type(given).__name__}. {_HOW_TO_GIVE_ARRAYS}")


_HOW_TO_GIVE_ARRAYS = (
    "Give NumPy arrays per rank and stored name: {rank: {spec.name: local_array(spec, rank, whole) "
    "for spec in specs} for rank in plan.src_ranks}."
)


def _new_arrays(
    specs: list[TensorSpec], ranks: tuple[int, ...]
) -> dict[int, dict[str, np.ndarray]]:
    import numpy as np

    arrays: dict[int, dict[str, np.ndarray]] = {rank: {} for rank in ranks}
    for spec in specs:
        for rank in ranks:
            shape = spec.layout.local_shape(rank, spec.shape)
            if shape is not None:
                arrays[rank][spec.name] = np.zeros(shape, numpy_dtype(spec.dtype))
    return arrays


def local_array(spec: TensorSpec, rank: int, whole: np.ndarray) -> np.ndarray | None:
    """Returns what a rank stores of a whole stored array; None for a rank outside the layout.

    Raises:
        LayoutError: if the array has another shape than the spec.
        ImportError: if NumPy is not installed.
    """
    _require_numpy("local_array")
    import numpy as np

    _check_array("whole", whole)
    if whole.shape != spec.shape:
        raise LayoutError(f"{spec.name}: array of shape {whole.shape}, spec of shape {spec.shape}.")
    shape = spec.layout.local_shape(rank, spec.shape)
    if shape is None:
        return None
    local = np.zeros(shape, whole.dtype)
    for box, at in spec.layout.local_boxes(rank, spec.shape):
        here = tuple(slice(a, a + n) for a, n in zip(at, box.shape, strict=True))
        there = tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
        local[here] = whole[there]
    return local
