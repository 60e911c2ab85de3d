"""Execute a plan in this process on made-up values, and check every element of the result.

What each rank must hold follows from whole tensors and layouts alone, not from the plan.
NumPy is loaded by the first call.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reshard.dtypes import DType
from reshard.errors import UnsupportedError
from reshard.explanation import Link, link_between
from reshard.loopback import local_array, numpy_dtype, run_in_process
from reshard.matching import TensorPair
from reshard.plan import Plan
from reshard.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Simulation", "Volumes", "WrongArray", "find_wrong", "simulate"]

_STEP: Final = 0x9E3779B97F4A7C15
_LARGEST_E4M3FN: Final = 448
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class WrongArray:
    """A local array that does not hold what it must.

    Attributes:
        name, rank: which one.
        index: local index of the first wrong element.
        num_wrong, num_elements: how many are wrong, of how many.
    """

    name: str
    rank: int
    index: tuple[int, ...]
    num_wrong: int
    num_elements: int


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes by the way that they went.

    Attributes:
        moved: between ranks, per hop; what is not of hop 0 was passed on.
        copied: within ranks.
        striped: of hop 0, what came in stripes: parts of a box that several ranks share out.
        exchanged: passed on inside a domain.
        relayed: passed on to another domain.
    """

    moved: tuple[int, ...]
    copied: int
    striped: int
    exchanged: int
    relayed: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated move did.

    Attributes:
        num_arrays, num_elements: what was compared, over all destination ranks.
        volumes: which ways the bytes went.
        move_seconds, check_seconds: wall time of the move and of the comparison.
        wrong: every array with a wrong element; empty if all is well.
    """

    num_arrays: int
    num_elements: int
    volumes: Volumes
    move_seconds: float
    check_seconds: float
    wrong: tuple[WrongArray, ...]


def simulate(plan: Plan, *, timeout_s: float = 600.0) -> Simulation:
    """Moves hashed values along a plan, all ranks in this process, and checks all of them.

    Args:
        plan: of tensors that fit into memory; see `Model.scaled_down`.
        timeout_s: limit for the move.

    Raises:
        UnsupportedError: if a tensor is stored in another form than its canonical one, or
            `ml_dtypes` is missing for its type.
        ImportError: if NumPy is not installed.
    """
    src = _specs([pair.src for pair in plan.pairs])
    dst = _specs([pair.dst for pair in plan.pairs])
    wholes = {
        pair.src.name: _whole(
            pair.src,
            is_cast=pair.src.dtype is not pair.dst.dtype or pair.change is not None,
        )
        for pair in plan.pairs
    }
    sources: dict[int, dict[str, np.ndarray | None]] = {rank: {} for rank in plan.src_ranks}
    for spec in src.values():
        for rank in spec.layout.ranks:
            sources[rank][spec.name] = local_array(spec, rank, wholes[spec.name])
    started = time.monotonic()
    results = run_in_process(plan, sources, timeout_s=timeout_s)
    moved = time.monotonic()
    expected = {pair.dst.name: _arriving(pair, wholes[pair.src.name]) for pair in plan.pairs}
    wrong = find_wrong(list(dst.values()), expected, results)
    arrays = [array for by_name in results.values() for array in by_name.values()]
    return Simulation(
        len(arrays),
        sum(array.size for array in arrays),
        _volumes(plan),
        moved - started,
        time.monotonic() - moved,
        tuple(wrong),
    )


def find_wrong(
    specs: list[TensorSpec],
    wholes: Mapping[str, np.ndarray],
    results: Mapping[int, Mapping[str, np.ndarray]],
) -> list[WrongArray]:
    """Compares the bits of all local arrays with what their layouts make of whole tensors.

    Args:
        specs: all destination tensors.
        wholes: whole tensors by stored name, before the cast to the destination's type.
        results: per rank and stored name, what was moved; a missing array is all wrong.
    """
    import numpy as np

    wrong = []
    for spec in specs:
        whole = wholes[spec.name].astype(numpy_dtype(spec.dtype), copy=False)
        for rank in spec.layout.ranks:
            expected = local_array(spec, rank, whole)
            if expected is None:
                continue
            found = results.get(rank, {}).get(spec.name)
            if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
                zeros = (0,) * expected.ndim
                wrong.append(WrongArray(spec.name, rank, zeros, expected.size, expected.size))
                continue
            is_wrong = (_bytes_of(found) != _bytes_of(expected)).any(axis=-1)
            if is_wrong.any():
                first = np.unravel_index(int(is_wrong.argmax()), expected.shape)
                index = tuple(int(i) for i in first)
                count = int(is_wrong.sum())
                wrong.append(WrongArray(spec.name, rank, index, count, expected.size))
    return wrong


def _bytes_of(values: np.ndarray) -> np.ndarray:
    """Returns the bytes of each element, one row per element."""
    import numpy as np

    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, values.dtype.itemsize)


def _specs(specs: list[TensorSpec]) -> dict[str, TensorSpec]:
    for spec in specs:
        if len(spec.parts) != 1 or spec.parts[0].form is not None:
            raise UnsupportedError(
                f"{spec.name}: it is stored in another form than its canonical tensor, and a "
                "simulation knows tensors that are stored as they are. Use run_in_process."
            )
    return {spec.name: spec for spec in specs}


def _whole(spec: TensorSpec, *, is_cast: bool) -> np.ndarray:
    """Returns a whole tensor of hashed bits; of finite numbers where they are converted."""
    import numpy as np

    seed = int.from_bytes(hashlib.blake2b(spec.name.encode(), digest_size=8).digest(), "little")
    dtype = numpy_dtype(spec.dtype)
    num_elements = math.prod(spec.shape)
    words_per_element = max(1, dtype.itemsize // 8)
    values: Any
    mixed: Any = np.arange(num_elements * words_per_element, dtype=np.uint64) * np.uint64(_STEP)
    mixed += np.uint64(seed)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    if is_cast:
        numbers = (mixed >> np.uint64(11)).astype(np.float64) / (1 << 53) - 0.5
        values = numbers.astype(dtype)
    elif spec.dtype is DType.BOOL:
        values = (mixed >> np.uint64(63)).astype(dtype)
    elif dtype.itemsize < 8:
        unused_bits = np.uint64(64 - 8 * dtype.itemsize)
        values = (mixed >> unused_bits).astype(f"u{dtype.itemsize}").view(dtype)
    else:
        values = mixed.view(dtype)
    whole: np.ndarray = values.reshape(spec.shape)
    return whole


def _arriving(pair: TensorPair, whole: np.ndarray) -> np.ndarray:
    """Returns a whole source tensor with its values changed, as far as it is before the cast."""
    import numpy as np

    if pair.change is None:
        return whole
    wide = DType.FLOAT64 if DType.FLOAT64 in (pair.src.dtype, pair.dst.dtype) else DType.FLOAT32
    with np.errstate(over="ignore"):
        changed = pair.change.of(whole.astype(np.float64)).astype(numpy_dtype(wide))
    if pair.dst.dtype is DType.FLOAT8_E4M3FN:  # without an infinity; ml_dtypes makes NaNs of them
        changed = np.clip(changed, -_LARGEST_E4M3FN, _LARGEST_E4M3FN)
    arriving: np.ndarray = changed
    return arriving


def _volumes(plan: Plan) -> Volumes:
    moved: Counter[int] = Counter()
    passed_on: Counter[Link | None] = Counter()
    copied = 0
    for transfer in plan.transfers():
        nbytes = plan.nbytes(transfer)
        if transfer.src_rank == transfer.dst_rank:
            copied += nbytes
            continue
        moved[transfer.hop] += nbytes
        if transfer.hop:
            passed_on[link_between(plan, transfer.src_rank, transfer.dst_rank)] += nbytes
    return Volumes(
        tuple(moved[hop] for hop in range(plan.num_hops)),
        copied,
        _striped_bytes(plan),
        passed_on["inside the domain"],
        passed_on["network"],
    )


def _striped_bytes(plan: Plan) -> int:
    """Returns the bytes that holders send of boxes of which they send a part only to each rank."""
    nbytes = 0
    for kind in plan.planner.kinds:
        for shipment in plan.planner.plan_of(kind).shipments():
            if shipment.delivery is None:
                continue
            length = shipment.delivery.striping.length
            per_index = shipment.num_elements // length * kind.first.wire_dtype.itemsize
            for turn, numbers in kind.turns(shipment.delivery.period).items():
                delivery = shipment.delivery.turned(turn)
                for taker in range(len(shipment.takers)):
                    sizes = [b - a for _, a, b, hop in delivery.received(taker) if hop == 0]
                    striped = sum([size for size in sizes if size < length])
                    nbytes += len(numbers) * striped * per_index
    return nbytes
